#!/usr/bin/env python3
"""Starting a command and having its first token, and the memory it holds: quire beside llama.cpp, in turns.

    compare_start.py QUIRE MODEL.gguf [--llama-bin FOLDER] [--rounds 5] [--threads 2] [--out RESULTS.json]

Start to first token is the time of a whole command that generates one token, from exec to exit, with the model's file
in the page cache. Resident memory is that of a command that generates 128, as /proc tells: the peak, and what was held
while it generated, apart for memory of its own and pages of files. The KV cache has 64 MiB in quire, and 1,024 tokens in llama.cpp.
No assertion.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import compare_cpu

PROMPT = "The quick brown fox jumps over the lazy dog."


def quire_command(options, num_tokens):
    return [options.quire, "generate", options.model, "--threads", str(options.threads), "--prompt", PROMPT, "--max-tokens",
            str(num_tokens), "--ignore-eos", "--temperature", "0", "--kv-cache-memory", "64MiB"]


def llama_command(options, num_tokens):
    return [f"{options.llama_bin}/llama-completion", "-m", options.model, "-t", str(options.threads), "-p", PROMPT, "-n",
            str(num_tokens), "--ignore-eos", "--temp", "0", "-no-cnv", "-c", "1024"]


def start(command):
    environment = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(command[0])}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            env=environment)


def time_of(command):
    begin = time.perf_counter()
    if start(command).wait() != 0:
        raise SystemExit(f"compare_start.py: failed: {compare_cpu.shown(command)}")
    return time.perf_counter() - begin


def memory_of(command):
    """Bytes: the peak, and the median of what was held in the second half of the run, when all is loaded."""
    process = start(command)
    samples = []
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        fields = dict(line.split(":", 1) for line in status.splitlines() if line.startswith(("VmRSS", "VmHWM", "RssAnon", "RssFile")))
        if "VmRSS" in fields:
            samples.append({name: int(fields[name].split()[0]) * 1024 for name in fields})
        time.sleep(0.005)
    if process.wait() != 0 or len(samples) < 8:
        raise SystemExit(f"compare_start.py: failed: {compare_cpu.shown(command)}")
    held = {name: int(statistics.median(sample[name] for sample in samples[len(samples) // 2:])) for name in samples[0]}
    return {"peak_bytes": max(sample["VmHWM"] for sample in samples), "resident_bytes": held["VmRSS"],
            "own_bytes": held["RssAnon"], "file_pages_bytes": held["RssFile"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire")
    parser.add_argument("model")
    parser.add_argument("--llama-bin")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out")
    options = parser.parse_args()
    programs = {"quire": quire_command}
    if options.llama_bin:
        programs["llama.cpp"] = llama_command
    file_bytes = os.path.getsize(options.model)
    with open(options.model, "rb") as file:  # into the page cache
        while file.read(1 << 24):
            pass
    runs = []
    for turn in range(options.rounds):
        for program, make_command in programs.items():
            run = {"program": program, "round": turn, "command": compare_cpu.shown(make_command(options, 1)),
                   "start_to_first_token_s": time_of(make_command(options, 1)), **memory_of(make_command(options, 128))}
            runs.append(run)
            print(json.dumps(run), file=sys.stderr, flush=True)
    for program in programs:
        of_program = [run for run in runs if run["program"] == program]
        median = {figure: statistics.median(run[figure] for run in of_program)
                  for figure in ("start_to_first_token_s", "peak_bytes", "resident_bytes", "own_bytes", "file_pages_bytes")}
        sizes = "   ".join(f"{figure[:-6].replace('_', ' ')} {median[figure] / 1e6:.0f} MB ({median[figure] / file_bytes:.2f} x file)"
                           for figure in median if figure.endswith("_bytes"))
        print(f"{program:<12}start to first token {median['start_to_first_token_s']:.3f} s   {sizes}")
    if options.out:
        record = {"date": time.strftime("%Y-%m-%d"), "machine": compare_cpu.machine(), "threads": options.threads,
                  "model": pathlib.Path(options.model).stem, "file_bytes": file_bytes, "runs": runs}
        pathlib.Path(options.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
