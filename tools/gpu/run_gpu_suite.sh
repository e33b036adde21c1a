#!/usr/bin/env bash
# Builds the ops and their tests on a machine with a Hopper GPU, runs the tests labelled gpu and the benchmarks.
#
#   tools/gpu/run_gpu_suite.sh OUTPUT_FOLDER [build] [tests] [sanitizer] [bench]     (all but sanitizer where none is named)
#
# Needs CMake, nvcc 13 and GoogleTest; ninja where there is one. CMAKE_PREFIX_PATH may say where GoogleTest is. Logs and
# tables land in OUTPUT_FOLDER; the build in QUIRE_GPU_BUILD (default build/gpu). Only base, tensor, quant and ops are
# built: they need nothing but the C++ standard library and CUDA.
set -euo pipefail

out=${1:?"usage: $0 OUTPUT_FOLDER [build] [tests] [sanitizer] [bench]"}
shift
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(build tests bench)
source_folder=$(cd "$(dirname "$0")/../.." && pwd)
build=${QUIRE_GPU_BUILD:-$source_folder/build/gpu}
mkdir -p "$out"
out=$(cd "$out" && pwd)
export PATH=$PATH:/usr/local/cuda/bin

wants() {
  local step
  for step in "${steps[@]}"; do [ "$step" = "$1" ] && return 0; done
  return 1
}

failed=0
if wants build; then
  generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  cmake -S "$source_folder" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DQUIRE_CUDA=ON -DQUIRE_OPS_ONLY=ON \
    >"$out/configure.log" 2>&1 || { cat "$out/configure.log"; exit 1; }
  start=$(date +%s)
  cmake --build "$build" -j "$(nproc)" --target cuda_ops_test cuda_ops_bench >"$out/build.log" 2>&1 ||
    { grep -E "error|Error|FAILED" -A4 "$out/build.log" | head -80; exit 1; }
  echo "built in $(($(date +%s) - start)) s"
fi

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu --format=csv,noheader | tee "$out/gpu.txt"

if wants tests; then
  # Most of their time goes to references on the host: some at once.
  shards=4
  pids=()
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i "$build/src/ops/cuda_ops_test" --gtest_brief=1 >"$out/tests.$i.log" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  cat "$out"/tests.[0-9]*.log >"$out/tests.log"
  rm "$out"/tests.[0-9]*.log
  tail -n 60 "$out/tests.log"
fi

if wants sanitizer; then
  compute-sanitizer --tool memcheck "$build/src/ops/cuda_ops_test" --gtest_brief=1 \
    --gtest_filter="${QUIRE_SANITIZER_FILTER:-CudaElementwise.Add:CudaRope.*:CudaPages.*:CudaAttention.One*:CudaFused.Rope*:CudaF8.Fused*:CudaInt8.*:CudaAttention.Converted*:CudaRecording*:CudaLogits.*}" \
    >"$out/sanitizer.log" 2>&1 || failed=1
  tail -n 15 "$out/sanitizer.log"
fi

if wants bench; then
  "$build/benchmarks/cuda_ops_bench" ${QUIRE_BENCH_ARGUMENTS:-ceilings attention elementwise linear int8} >"$out/bench.txt" 2>&1 || failed=1
  cat "$out/bench.txt"
fi
exit $failed
