#!/usr/bin/env python3
"""Compares `quire serve` on a GPU with the same on the CPU: texts under all sorts of sampling, log-probabilities,
embeddings, swapping, the prefix file.

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
    def __init__(self, quire, model, *flags, compute="f32"):
        self.port = free_port()
        command = [quire, "serve", model, "--port", str(self.port), "--compute", compute, "--log-level", "error", *flags]
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
        choices = self.post("/v1/completions", body)["choices"]
        return Answer("\n".join(choice["text"] for choice in choices), [choice.get("logprobs") for choice in choices],
                      choices[0].get("prompt_logprobs") or [])

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


class Answer:
    """A text, and the log-probabilities of its tokens and of the best ones in their places, by token."""

    def __init__(self, text, logprobs, of_prompt):
        self.text = text
        self.of_prompt = of_prompt
        self.logprobs = []
        for told in logprobs:
            if told:
                self.logprobs += zip(told["tokens"], told["token_logprobs"], told["top_logprobs"])

    def difference(self, other):
        """None, or what differs: texts must be equal, log-probabilities near."""
        if self.text != other.text:
            return f"{self.text!r} instead of {other.text!r}"
        if len(self.logprobs) != len(other.logprobs):
            return f"{len(self.logprobs)} log-probabilities instead of {len(other.logprobs)}"
        for own, its in zip(self.of_prompt, other.of_prompt, strict=True):
            for token in set(own or {}) & set(its or {}):
                if not abs(own[token]["logprob"] - its[token]["logprob"]) < 1e-3:
                    return f"in the prompt {own} instead of {its}"
        for (token, own, own_best), (_, its, its_best) in zip(self.logprobs, other.logprobs):
            # The last of the best may be another one that is as good.
            both = set(own_best or {}) & set(its_best or {})
            if len(both) + 1 < len(own_best or {}):
                return f"the best tokens are {own_best} instead of {its_best}"
            for a, b in [(own, its)] + [(own_best[best], its_best[best]) for best in both]:
                if not abs(a - b) < 1e-3:
                    return f"at {token!r} a log-probability of {a} instead of {b}"
        return None


SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 4}},
          "required": ["name", "sizes"]}


def sampling_of(rng, i):
    """Fields for the i-th request: the first are plain, the others have a mixture of all that changes logits."""
    if i < 8:
        return {}
    fields = {}
    if i % 2 == 0:
        fields["logprobs"] = rng.choice([0, 3, 5])
    if i % 3 == 0:
        fields |= {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2}
    if i % 4 == 1:
        fields["logit_bias"] = {str(rng.randrange(3, 200)): rng.uniform(-4, 4) for _ in range(20)}
    if i % 7 == 3:
        fields["prompt_logprobs"] = 3
    if i % 5 == 0:
        fields |= {"ignore_eos": False, "min_tokens": 5}
    if i % 6 == 1:
        fields["allowed_token_ids"] = [rng.randrange(3, 200) for _ in range(50)]
    elif i % 6 == 2:
        fields |= {"response_format": {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}, "ignore_eos": False}
    elif i % 6 == 4:
        # Nothing is cut off: then the host and the GPU draw the same tokens, unless a sum is as good as hit.
        fields |= {"temperature": 0.7, "seed": i}
    return fields


def sum_of(counters, part):
    return sum(value for name, value in counters.items() if part in name and "_bucket" not in name and "_created" not in name)


def main():
    quire = sys.argv[1]
    model = sys.argv[2] if len(sys.argv) > 2 else DEFAULT_MODEL
    rng = random.Random(7)
    letters = "abcdefghij klmnop"
    prompts = ["".join(rng.choice(letters) for _ in range(rng.randrange(1, 60))) for _ in range(48)]
    bodies = [{"prompt": p, "max_tokens": rng.randrange(1, 60), "temperature": 0, "ignore_eos": True} for p in prompts]
    bodies = [body | sampling_of(rng, i) for i, body in enumerate(bodies)]
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
                wrong = [(body, what) for body, a, b in zip(bodies, got, expected) if (what := a.difference(b))]
                if wrong:
                    failures.append(f"start {start}, turn {turn}: {len(wrong)} answers differ, first {wrong[0][0]}: {wrong[0][1]}")
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
    print(f"{sum('response_format' in body for body in bodies)} under a schema, {sum('repetition_penalty' in body for body in bodies)} with penalties, "
          f"{sum(len(answer.logprobs) for answer in expected)} log-probabilities, {sum(len(answer.of_prompt) for answer in expected)} of prompts")
    for failure in failures:
        print("FAILED:", failure)
    print(f"{len(bodies)} prompts, 6 turns, {len(vectors)} embeddings of {len(vectors[0])}: {'wrong' if failures else 'equal'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
