#!/usr/bin/env python3
"""Compares `quire serve` on a GPU with the same on the CPU: greedy texts, embeddings, swapping, the prefix file.

    check_server.py QUIRE [MODEL_FOLDER]        (default: the small Llama of tests/goldens/models)

The GPU's server gets so few pages that sequences have to give way; it is ended and started anew with its prefix file.
Both compute in float, so that texts must be equal. Prints what it compared; exit 0 or 1. Standard library only.
"""

import concurrent.futures
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
DEFAULT_MODEL = os.path.join(HERE, "../../tests/goldens/models/llama")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, quire, model, *flags):
        self.port = free_port()
        command = [quire, "serve", model, "--port", str(self.port), "--compute", "f32", "--log-level", "error", *flags]
        self.process = subprocess.Popen(command)
        for _ in range(600):
            try:
                self.get("/ready")
                return
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit(f"the server ended with {self.process.returncode} before it was ready: {command}")
                time.sleep(0.1)

    def get(self, path):
        return urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60).read().decode()

    def post(self, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        return json.loads(urllib.request.urlopen(request, timeout=120).read())

    def complete(self, body):
        return self.post("/v1/completions", body)["choices"][0]["text"]

    def complete_all(self, bodies):
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(self.complete, bodies))

    def counters(self):
        values = {}
        for line in self.get("/metrics").splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
        return values

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def sum_of(counters, part):
    return sum(value for name, value in counters.items() if part in name and "_bucket" not in name and "_created" not in name)


def main():
    quire = sys.argv[1]
    model = sys.argv[2] if len(sys.argv) > 2 else DEFAULT_MODEL
    rng = random.Random(7)
    letters = "abcdefghij klmnop"
    prompts = ["".join(rng.choice(letters) for _ in range(rng.randrange(1, 60))) for _ in range(24)]
    bodies = [{"prompt": p, "max_tokens": rng.randrange(1, 60), "temperature": 0, "ignore_eos": True} for p in prompts]
    texts = {"input": prompts[:5]}
    failures = []

    cpu = Server(quire, model, "--device", "cpu")
    expected = [cpu.complete(body) for body in bodies]
    vectors = [item["embedding"] for item in cpu.post("/v1/embeddings", texts)["data"]]
    cpu.end()

    with tempfile.TemporaryDirectory() as folder:
        flags = ["--device", os.environ.get("QUIRE_CHECK_DEVICE", "cuda"), "--kv-cache-memory", "192KiB", "--swap-space", "4MiB", "--preemption", "swap",
                 "--max-num-seqs", "16", "--prefix-cache-file", os.path.join(folder, "prefix")]
        for start in range(2):
            gpu = Server(quire, model, *flags)
            for turn in range(3):
                got = gpu.complete_all(bodies)
                wrong = [i for i, (a, b) in enumerate(zip(got, expected)) if a != b]
                if wrong:
                    failures.append(f"start {start}, turn {turn}: {len(wrong)} texts differ, first {bodies[wrong[0]]}: "
                                    f"{got[wrong[0]]!r} instead of {expected[wrong[0]]!r}")
            for a, b in zip(vectors, gpu.post("/v1/embeddings", texts)["data"]):
                distance = math.dist(a, b["embedding"])
                if not distance < 1e-4:
                    failures.append(f"start {start}: embeddings are {distance} apart")
            counters = gpu.counters()
            told = {part: sum_of(counters, part) for part in ("num_preemptions_total", "swap", "prefix_cache_hits_total")}
            print(f"start {start}: {told}")
            if start == 0 and told["num_preemptions_total"] == 0:
                failures.append("no sequence had to give way")
            code = gpu.end()
            if code != 0:
                failures.append(f"start {start}: the server ended with {code}")
    for failure in failures:
        print("FAILED:", failure)
    print(f"{len(bodies)} prompts, 6 turns, {len(vectors)} embeddings of {len(vectors[0])}: {'wrong' if failures else 'equal'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
