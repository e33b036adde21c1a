#!/usr/bin/env python3
"""Attention of a whole prompt: quire's paged kernels beside PyTorch's scaled_dot_product_attention, in turns.

    compare_attention.py ATTENTION_BENCH [--threads 2] [--rounds 3] [--samples 7] [--out RESULTS.json]

ATTENTION_BENCH is build/…/benchmarks/attention_bench. Shapes are those of its cases: causal, as many KV heads as heads;
quire reads K and V from shuffled pages of 16 tokens, PyTorch from one tensor. A round runs each once, in its own process;
times are medians over a round, of which the medians are compared. The memory that quire's call takes beyond its inputs
is measured at growing lengths. Needs torch (the Python that runs this). No assertion.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

# Case, heads, tokens, head_dim, dtype: of K, V, and the products; PyTorch has queries and output in it too.
CASES = [
    ("prefill_2k_d64_mha_f32", 8, 2048, 64, "f32"),
    ("prefill_2k_d128_mha_f32", 4, 2048, 128, "f32"),
    ("prefill_2k_d64_mha_bf16", 8, 2048, 64, "bf16"),
    ("prefill_2k_d128_mha_bf16", 4, 2048, 128, "bf16"),
]
MEMORY_CASES = ["prefill_2k_d64_mha_f32", "prefill_4k_d64_mha_f32", "prefill_8k_d64_mha_f32"]

TORCH_PROGRAM = """
import statistics, sys, time, torch
threads, heads, tokens, size, samples = map(int, sys.argv[1:6])
dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[sys.argv[6]]
torch.set_num_threads(threads)
torch.manual_seed(1)
q, k, v = ((torch.rand(1, heads, tokens, size) * 4 - 2).to(dtype) for _ in range(3))
times = []
with torch.inference_mode():
    for i in range(samples + 2):
        begin = time.perf_counter()
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        if i >= 2:
            times.append(time.perf_counter() - begin)
print(statistics.median(times), torch.__version__)
"""


def run_quire(options, case, dtype, samples):
    command = [options.bench, "--case", case, "--threads", str(options.threads), "--samples", str(samples)]
    command += ["--compute", dtype] + (["--row", options.row] if options.row else [])
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    machine, rows = json.loads(lines[0]), [json.loads(line) for line in lines[1:]]
    return machine, rows[0]


def run_torch(options, heads, tokens, size, dtype):
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "MKL_NUM_THREADS": str(options.threads)}
    arguments = [options.threads, heads, tokens, size, options.samples, dtype]
    output = subprocess.run([sys.executable, "-c", TORCH_PROGRAM] + [str(a) for a in arguments], check=True,
                            capture_output=True, text=True, env=environment).stdout.split()
    return float(output[0]) * 1e3, output[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("--row", help="kernel row, such as avx512, of the order of the cases; default: the best")
    parser.add_argument("--dtype", choices=["f32", "bf16"], help="only cases of it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--out")
    options = parser.parse_args()

    results = {"cases": [], "memory": []}
    for case, heads, tokens, size, dtype in CASES:
        if options.dtype not in (None, dtype):
            continue
        quire, torch, shares = [], [], []
        for _ in range(options.rounds):
            machine, row = run_quire(options, case, dtype, options.samples)
            quire.append(row["median_ms"])
            shares.append(row["percent_of_limit"])
            milliseconds, version = run_torch(options, heads, tokens, size, dtype)
            torch.append(milliseconds)
        result = {"case": case, "row": row["row"], "machine": machine["machine"], "threads": options.threads,
                  "torch": version,
                  "quire_ms": quire, "torch_ms": torch, "quire_percent_of_limit": statistics.median(shares),
                  "ratio": statistics.median(torch) / statistics.median(quire)}
        results["cases"].append(result)
        print(f"{case}: quire {statistics.median(quire):.1f} ms ({result['quire_percent_of_limit']:.0f} % of the limit), "
              f"torch {version} {statistics.median(torch):.1f} ms: {result['ratio']:.2f} x", flush=True)
    for case in MEMORY_CASES:
        _, row = run_quire(options, case, "f32", 1)
        results["memory"].append({"case": case, "peak_bytes": row["peak_bytes"]})
        print(f"{case}: {row['peak_bytes'] / 2**20:.1f} MiB beyond inputs and output", flush=True)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
