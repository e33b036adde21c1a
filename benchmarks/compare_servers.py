#!/usr/bin/env python3
"""Two servers under the same load, in turns on the same machine: `quire serve` and a peer.

    compare_servers.py QUIRE MODEL --peer 'llama-server -m MODEL -t 2 -np 16 -c 16384 --port PORT' [--rounds 3]
                       [--out RESULTS.json] [-- LOAD...]

LOAD are flags of `quire bench-serve`; without any: 16 clients, 500 shared and 60 own ids, 100 tokens out. MODEL and PORT
in the peer's command are replaced. Each round starts a server, loads it and stops it, ours and the peer's in turns, so
that neither meets a cache of the round before. Prints a JSON line a run, then medians and ratios; RESULTS.json keeps the
runs. No assertion of speed.
"""

import argparse
import json
import os
import pathlib
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time

from compare_cpu import machine

LOAD = ("-n 48 -c 16 --prompts ids --id-range 100,40000 --shared-prefix-len 500 --input-len 60 --output-len 100 "
        "--ignore-eos")
FIGURES = [  # name, where it is in bench-serve's JSON, more is better
    ("output tok/s", ("output_tok_s",), True),
    ("TTFT p50 ms", ("ttft_ms", "p50"), False),
    ("TTFT p99 ms", ("ttft_ms", "p99"), False),
    ("TTFT last ms", ("ttft_ms", "max"), False),
    ("gap p50 ms", ("itl_ms", "p50"), False),
    ("gap p99 ms", ("itl_ms", "p99"), False),
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run(name, command, quire, load):
    port = free_port()
    command = [word.replace("PORT", port) for word in command]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        bench = subprocess.run([quire, "bench-serve", "--url", f"http://127.0.0.1:{port}", "--wait", "120", "--json", *load],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    finally:
        server.terminate()
        server.wait()
    result = {"server": name, "command": [os.path.basename(word) if "/" in word else word for word in command],
              **json.loads(bench.stdout)}
    result["settings"]["model"] = os.path.basename(result["settings"]["model"])
    print(json.dumps(result), flush=True)
    return result


def figure(result, path):
    for key in path:
        result = result[key]
    return result


def main():
    arguments, load = sys.argv[1:], []
    if "--" in arguments:
        split = arguments.index("--")
        arguments, load = arguments[:split], arguments[split + 1:]
    parser = argparse.ArgumentParser()
    parser.add_argument("quire")
    parser.add_argument("model")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--serve-flags", default="--threads 2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    options = parser.parse_args(arguments)
    load = load or shlex.split(LOAD)
    servers = {
        "quire": [options.quire, "serve", options.model, "--port", "PORT", *shlex.split(options.serve_flags)],
        "peer": [word.replace("MODEL", options.model) for word in shlex.split(options.peer)],
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a server under way is ended too
    results = {name: [] for name in servers}
    for _ in range(options.rounds):
        for name, command in servers.items():
            results[name].append(run(name, command, options.quire, load))
    if options.out:
        record = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "model": os.path.basename(options.model),
                  "load": load, "runs": [result for runs in results.values() for result in runs]}
        pathlib.Path(options.out).write_text(json.dumps(record, indent=1) + "\n")
    print(f"{'median of ' + str(options.rounds):<14}{'quire':>12}{'peer':>12}{'better by':>12}", file=sys.stderr)
    for label, path, is_more_better in FIGURES:
        ours, theirs = (statistics.median(figure(result, path) for result in results[name]) for name in ("quire", "peer"))
        ratio = (ours / theirs if is_more_better else theirs / ours) if ours and theirs else float("nan")
        print(f"{label:<14}{ours:>12.1f}{theirs:>12.1f}{ratio:>11.2f}x", file=sys.stderr)


if __name__ == "__main__":
    main()
