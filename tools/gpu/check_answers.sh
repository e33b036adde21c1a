#!/usr/bin/env bash
# Whether `quire` on a GPU gives the answers that it gives on a CPU: SmolLM2's greedy tokens and closeness against the
# goldens, a server's texts on both devices and under --sameness strict, and random traffic with all memory back at the end.
#
#   tools/gpu/check_answers.sh OUTPUT_FOLDER QUIRE MODEL.gguf [SECONDS_OF_TRAFFIC [DEVICE_OF_TRAFFIC]]     (480, auto)
#
# MODEL is SmolLM2-135M-Instruct in Q4_1 (tools/fetch_default_model.py), which the goldens are of. Needs Python with
# numpy. The traffic runs beside the other checks; each has a log in OUTPUT_FOLDER. Exit 0 or 1.
set -uo pipefail

out=${1:?"usage: $0 OUTPUT_FOLDER QUIRE MODEL.gguf [SECONDS_OF_TRAFFIC]"}
quire=$(realpath "$2")
model=$(realpath "$3")
seconds=${4:-480}
device=${5:-auto}  # cuda:1 where there are two GPUs
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/../.."

failed=0
# check NAME COMMAND...: its last lines, and whether it failed.
check() {
  local name=$1
  shift
  if "$@" >"$out/$name.txt" 2>"$out/$name.log"; then echo "== $name"; else failed=1; echo "== $name FAILED"; tail -n 3 "$out/$name.log"; fi
  tail -n 4 "$out/$name.txt"
}

python3 tests/server_soak.py "$quire" "$model" --seconds "$seconds" -- --sameness strict --device "$device" >"$out/traffic.txt" 2>&1 &
traffic=$!
sleep 5  # it looks at the GPU's memory first, and after the others have ended

greedy=(python3 tools/goldens/compare_greedy.py smollm2)
closeness=(python3 tools/goldens/compare_closeness.py smollm2 --quire)
small="--kv-cache-memory 512MiB"  # as others may use the GPU meanwhile, no share of its memory
check greedy_f32 "${greedy[@]}" "$quire generate $model --compute f32 $small"
check greedy_f32_alone "${greedy[@]}" "$quire generate $model --compute f32 --max-num-seqs 1 $small"
# Transformers in bf16 first leaves these texts where the two best are up to 0.2 apart; we hold 0.1.
check greedy_bf16 "${greedy[@]}" "$quire generate $model $small" --close-call 0.1
check greedy_bf16_alone "${greedy[@]}" "$quire generate $model --max-num-seqs 1 $small" --close-call 0.1
check greedy_f16 "${greedy[@]}" "$quire generate $model --dtype f16 $small" --close-call 0.1
check closeness_bf16 "${closeness[@]}" "$quire generate $model $small"
check closeness_f16 "${closeness[@]}" "$quire generate $model --dtype f16 $small"
check closeness_fp8_kv "${closeness[@]}" "$quire generate $model --kv-cache-dtype fp8 $small"
check closeness_int8_kv "${closeness[@]}" "$quire generate $model --kv-cache-dtype int8 $small"
check server python3 tools/gpu/check_server.py "$quire"
check sameness env QUIRE_CHECK_KV_MEMORY=42MiB python3 tools/gpu/check_sameness.py "$quire" "$model"

if wait "$traffic"; then echo "== traffic of $seconds s"; else failed=1; echo "== traffic of $seconds s FAILED"; fi
tail -n 12 "$out/traffic.txt"
exit $failed
