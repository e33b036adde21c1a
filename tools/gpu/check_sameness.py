#!/usr/bin/env python3
"""Whether `--sameness strict` keeps what it says: a request's tokens and log-probabilities, digit for digit, whatever runs beside it.

    check_sameness.py QUIRE [MODEL] [FLAGS OF EVERY SERVER...]        (default: the small Llama of tests/goldens/models)

24 requests, greedy and drawn with seeds, some with two choices, go to servers of the same model one after another: to one alone, to
another all at once, in small steps, over so few pages that sequences give way, in larger pages, and a second time, when their prompts are
found in the prefix cache. Prints how many answers differ; exit 0 or 1. Standard library only.
"""

import concurrent.futures
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from check_server import DEFAULT_MODEL, Server, sum_of  # noqa: E402


def requests_of(rng, most_words):
    words = "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you were".split()
    bodies = []
    for i in range(24):
        bodies.append({"prompt": " ".join(rng.choice(words) for _ in range(rng.randrange(1, most_words))),
                       "max_tokens": rng.randrange(20, 60), "temperature": 0 if i % 2 == 0 else 0.9, "seed": i, "logprobs": 3,
                       "n": 2 if i % 8 == 5 else 1, "ignore_eos": True})
    return bodies


def answer_of(server, body):
    choices = server.post("/v1/completions", body)["choices"]
    return [(choice["text"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"])
            for choice in sorted(choices, key=lambda choice: choice["index"])]


def main():
    quire = sys.argv[1]
    model = sys.argv[2] if len(sys.argv) > 2 else DEFAULT_MODEL
    flags = ["--sameness", "strict", "--device", os.environ.get("QUIRE_CHECK_DEVICE", "cuda"), "--gpu-memory-utilization", "0.3", *sys.argv[3:]]
    few_pages = os.environ.get("QUIRE_CHECK_KV_MEMORY", "96KiB")
    bodies = requests_of(random.Random(11), 120 if len(sys.argv) > 2 else 10)  # the small model has a context of 128
    servers = [("alone", ["--max-num-seqs", "4"], False),
               ("all at once", [], True),
               ("steps of 48 tokens", ["--max-num-batched-tokens", "48", "--max-num-seqs", "24"], True),
               ("few pages", ["--kv-cache-memory", few_pages, "--preemption", "recompute"], True),
               ("pages of 64", ["--page-size", "64"], True)]
    expected = None
    failures = []
    for name, own_flags, is_together in servers:
        server = Server(quire, model, *flags, *own_flags, compute="auto")
        for turn in range(2):
            if is_together:
                with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
                    got = list(pool.map(lambda body: answer_of(server, body), bodies))
            else:
                got = [answer_of(server, body) for body in bodies]
            if expected is None:
                expected = got
            wrong = [i for i, (a, b) in enumerate(zip(got, expected)) if a != b]
            if wrong:
                failures.append(f"{name}, turn {turn}: {len(wrong)} of {len(bodies)} differ, first request {wrong[0]}")
        told = {part: sum_of(server.counters(), part) for part in ("num_preemptions_total", "prefix_cache_hits_total")}
        print(f"{name}: {told}")
        if name == "few pages" and told["num_preemptions_total"] == 0:
            failures.append("no sequence had to give way")
        server.end()
    for failure in failures:
        print("FAILED:", failure)
    num_tokens = sum(len(tokens) for answer in expected for _, tokens, _, _ in answer)
    print(f"{len(bodies)} requests, {num_tokens} tokens, {2 * len(servers)} turns: {'wrong' if failures else 'equal'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
