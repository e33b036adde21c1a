#!/usr/bin/env python3
"""Quire on one H200 beside what vLLM, llama.cpp, transformers and cuDNN reach on such a GPU: one table with ratios.

    compare_gpu.py QUIRE [--ops-bench CUDA_OPS_BENCH] [--only WORD,...] [--out RESULTS.json]

Works on random weights of Llama-3.1-8B's shape, so QUIRE needs no model. The peers' figures were measured apart (vLLM
0.26 with torch.compile, CUDA graphs and FlashAttention 3; llama.cpp; transformers compiled); runs on such GPUs differ by
about 2 %, in prefill by 5. An aim is what Quire wants to reach. --only runs the groups whose name has one of the words;
with --ops-bench attention and matrix products by themselves are measured too. RESULTS.json keeps every cell. Progress is
told on stderr. No assertion of speed.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "hidden_act": "silu", "bos_token_id": 128000, "eos_token_id": 128001, "torch_dtype": "bfloat16"}

STRICT = ["--sameness", "strict"]  # what the same answers in any batch cost
FP8 = ["--quantization", "fp8"]
FP8_ALL = [*FP8, "--kv-cache-dtype", "fp8"]
# (name, flags, batch sizes, prompt, generated, repeats)
GROUPS = [
    ("bf16 short", [], [1], 128, 128, 3),
    ("bf16 1k", [], [1, 8, 16, 64, 256], 960, 128, 1),
    ("bf16 short, strict", STRICT, [1], 128, 128, 3),
    ("bf16 1k, strict", STRICT, [1, 8, 16, 64, 256], 960, 128, 1),
    ("bf16 4k", [], [64], 4032, 64, 1),
    ("bf16 prefill", [], [1, 8], 2048, 2, 3),
    ("bf16 requests", [], [256], 1024, 128, 1),
    ("fp8 short", FP8, [1], 128, 128, 3),
    ("fp8 prefill", FP8, [1, 8], 2048, 2, 3),
    ("fp8+kv 1k", FP8_ALL, [64, 256], 960, 128, 1),
    ("fp8+kv 4k", FP8_ALL, [64], 4032, 64, 1),
    ("fp8+kv requests", FP8_ALL, [256], 1024, 128, 1),
    ("int4_g128 short", ["--quantization", "int4_g128"], [1], 128, 128, 3),
    ("int4_g128 1k", ["--quantization", "int4_g128"], [64], 960, 128, 1),
    ("q4_k short", ["--quantization", "q4_k"], [1], 128, 128, 3),
]


def decode(cell):
    return cell["decode_tok_s"]["median"]


def prefill(cell):
    return cell["prefill_tok_s"]["median"]


def total(cell):
    """All tokens of all requests over all time."""
    read, drawn = cell["batch"] * cell["prompt_len"], cell["batch"] * cell["gen_len"]
    return (read + drawn) / (read / prefill(cell) + drawn / decode(cell))


def first_token_ms(cell):
    return 1e3 * cell["prompt_len"] / prefill(cell)


# (what, group, batch, figure, unit, best peer, its figure, aim)
ROWS = [
    ("decode, 1 sequence, bf16", "bf16 short", 1, decode, "tok/s", "llama.cpp", 208, 262),
    ("decode, 1 sequence, bf16, --sameness strict", "bf16 short, strict", 1, decode, "tok/s", "llama.cpp", 208, 262),
    ("decode, 1 sequence, fp8 weights and head", "fp8 short", 1, decode, "tok/s", "vLLM", 285, 500),
    ("decode, 1 sequence, 4 bits in groups of 128", "int4_g128 short", 1, decode, "tok/s", "vLLM", 263, 740),
    ("decode, 1 sequence, q4_k", "q4_k short", 1, decode, "tok/s", "llama.cpp", 264, 600),
    ("decode, 8 at 1k, bf16", "bf16 1k", 8, decode, "tok/s", "vLLM", 1519, 1900),
    ("decode, 8 at 1k, bf16, --sameness strict", "bf16 1k, strict", 8, decode, "tok/s", "vLLM", 1519, 1900),
    ("decode, 16 at 1k, bf16", "bf16 1k", 16, decode, "tok/s", "vLLM", 2869, 3600),
    ("decode, 16 at 1k, bf16, --sameness strict", "bf16 1k, strict", 16, decode, "tok/s", "vLLM", 2869, 3600),
    ("decode, 64 at 1k, bf16", "bf16 1k", 64, decode, "tok/s", "vLLM", 8690, 9500),
    ("decode, 64 at 1k, bf16, --sameness strict", "bf16 1k, strict", 64, decode, "tok/s", "vLLM", 8690, 9500),
    ("decode, 256 at 1k, bf16", "bf16 1k", 256, decode, "tok/s", "vLLM", 15466, 17000),
    ("decode, 256 at 1k, bf16, --sameness strict", "bf16 1k, strict", 256, decode, "tok/s", "vLLM", 15466, 17000),
    ("decode, 64 at 1k, fp8 with fp8 KV", "fp8+kv 1k", 64, decode, "tok/s", "vLLM", 11488, 16000),
    ("decode, 256 at 1k, fp8 with fp8 KV", "fp8+kv 1k", 256, decode, "tok/s", "vLLM", 20239, 28000),
    ("decode, 64 at 4k, bf16", "bf16 4k", 64, decode, "tok/s", "vLLM", 4910, 5100),
    ("decode, 64 at 4k, fp8 with fp8 KV", "fp8+kv 4k", 64, decode, "tok/s", "vLLM", 6538, 9000),
    ("decode, 64 at 1k, 4 bits in groups of 128", "int4_g128 1k", 64, decode, "tok/s", "vLLM", 8734, 11000),
    ("prefill, 1 x 2,048, bf16", "bf16 prefill", 1, prefill, "tok/s", "vLLM", 40400, 43000),
    ("prefill, 8 x 2,048, bf16", "bf16 prefill", 8, prefill, "tok/s", "vLLM", 43400, 45000),
    ("prefill, 1 x 2,048, fp8", "fp8 prefill", 1, prefill, "tok/s", "vLLM", 60700, 68000),
    ("prefill, 8 x 2,048, fp8", "fp8 prefill", 8, prefill, "tok/s", "vLLM", 68400, 74000),
    ("256 requests of 1,024 + 128, bf16", "bf16 requests", 256, total, "tok/s", "vLLM", 36200, 39000),
    ("256 requests of 1,024 + 128, fp8 with fp8 KV", "fp8+kv requests", 256, total, "tok/s", "vLLM", 53600, 60000),
    ("first token of a prompt of 128, bf16", "bf16 short", 1, first_token_ms, "ms", "vLLM", 11.2, 6),
]
# (line of cuda_ops_bench, figure, unit, peer's, aim), the peer is cuDNN over contiguous K and V
ATTENTION = [
    ("decode b256 x 1k", "decode_split_kv", "TB/s", 4.19, 4.1), ("decode b64 x 4k", "decode_split_kv", "TB/s", 4.21, 4.1),
    ("decode b64 x 1k", "decode_split_kv", "TB/s", 3.46, 3.9), ("decode b16 x 4k", "decode_split_kv", "TB/s", 3.53, 3.8),
    ("decode b256 x 1k", "decode_split_kv, f8", "TB/s", None, 3.8), ("decode b1 x 4k", "decode_split_kv", "us", 17.1, 8),
    ("prefill 1 x 2k", "prefill_wgmma", "TFLOP/s", 478, 478), ("prefill 1 x 16k", "prefill_wgmma", "TFLOP/s", 563, 600),
    ("full 1 x 2k", "prefill_wgmma", "TFLOP/s", 592, 592), ("full 1 x 16k", "prefill_wgmma", "TFLOP/s", 617, 640),
]
# vLLM's bf16 products in us, by tokens
PRODUCTS = {1: {"gate_up": 57.2, "down": 28.9, "qkv": 16.3, "o": 10.8}, 64: {"gate_up": 57.3, "down": 33.8, "qkv": 16.6, "o": 11.8}}


def run_group(quire, folder, group):
    name, flags, batches, prompt, generated, repeats = group
    command = [quire, "bench", folder, "--load-format", "dummy", *flags, "--batch-sizes", ",".join(map(str, batches)),
               "--prompt-lens", str(prompt), "--gen-lens", str(generated), "--repeats", str(repeats), "--json"]
    begin = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    ready = re.search(r"ready in ([\d.]+) s", done.stderr)
    return {"command": command[3:], "ready_s": float(ready.group(1)) if ready else None,
            "cells": [json.loads(line) for line in done.stdout.splitlines()]}


def read_ops_bench(program):
    """{(what, row): {us, TB/s, TFLOP/s}}, and [(shape, format, tokens, row, us)] in the order of choice."""
    attention, products = {}, []
    done = subprocess.run([program, "ceilings", "attention", "linear", "few_tokens"], stdout=subprocess.PIPE, text=True, check=True)
    for line in done.stdout.splitlines():
        numbers = re.search(r"\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)%\s*$", line)
        if numbers is None:
            continue
        words = line[: numbers.start()]
        if match := re.match(r"((?:decode|prefill|full) .*?)\s{2,}(\S.*?)\s*$", words):
            attention.setdefault((match.group(1), match.group(2)), dict(zip(("us", "TB/s", "TFLOP/s"), map(float, numbers.groups()))))
        elif match := re.match(r"(\w+)\s+(\w+)\s+(\d+)\s+(\w+)\s*$", words):
            products.append((match.group(1), match.group(2), int(match.group(3)), match.group(4), float(numbers.group(1))))
    return done.stdout, attention, products


def line_of(what, ours, unit, peer, theirs, aim):
    is_time = unit in ("ms", "us", "s")
    better = lambda other: (other / ours if is_time else ours / other) if other else None
    ratio, share = better(theirs), better(aim)
    digits = 0 if ours >= 100 else 1 if ours >= 20 else 2
    return (f"| {what} | {ours:,.{digits}f} {unit} | {f'{peer} {theirs:,}' if theirs else ''} | {f'{ratio:.2f}' if ratio else ''} "
            f"| {f'{aim:,}' if aim else ''} | {f'{share:.2f}' if share else ''} |")


def print_products(products):
    print("\n| product, bf16, us | tokens | ours | row | best of cuBLASLt | ratio | vLLM | ratio |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    seen = set()
    for shape, dtype, tokens, row, us in products:
        if dtype != "bf16" or (shape, tokens) in seen:
            continue
        seen.add((shape, tokens))
        library = [t for s, d, m, r, t in products if (s, d, m, r) == (shape, dtype, tokens, "cublaslt")]
        vllm = PRODUCTS.get(tokens, {}).get(shape)
        print(f"| {shape} | {tokens} | {us:.1f} | {row} | {f'{library[0]:.1f}' if library else ''} "
              f"| {f'{library[0] / us:.2f}' if library else ''} | {vllm or ''} | {f'{vllm / us:.2f}' if vllm else ''} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire")
    parser.add_argument("--ops-bench")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    words = [word for word in options.only.split(",") if word]
    results, ops_text, attention, products = {}, "", {}, []
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        for group in GROUPS:
            if not words or any(word in group[0] for word in words):
                results[group[0]] = run_group(options.quire, folder, group)
    if options.ops_bench:
        ops_text, attention, products = read_ops_bench(options.ops_bench)
    if options.out:
        options.out.write_text(json.dumps({"groups": results, "ops_bench": ops_text}, indent=1) + "\n")
    print("| work | Quire | best peer | ratio | aim | share of it |\n| --- | --- | --- | --- | --- | --- |")
    for what, group, batch, figure, unit, peer, theirs, aim in ROWS:
        for cell in results.get(group, {}).get("cells", []):
            if cell["batch"] == batch:
                print(line_of(what, figure(cell), unit, peer, theirs, aim))
    starts = [group["ready_s"] for group in results.values() if group["ready_s"]]
    if starts:
        print(line_of("process to ready, random weights, the slowest of all", max(starts), "s", "vLLM", 35, 3))
    for what, row, unit, theirs, aim in ATTENTION:
        if (what, row) in attention:
            print(line_of(f"attention, {what}, {row}", attention[what, row][unit], unit, "cuDNN", theirs, aim))
    if products:
        print_products(products)


if __name__ == "__main__":
    main()
