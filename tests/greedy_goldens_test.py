#!/usr/bin/env python3
"""Greedy answers of a real model against those of Hugging Face transformers in float32, token by token.

Usage: greedy_goldens_test.py PATH/TO/quire MODEL GOLDENS.jsonl [MORE QUIRE FLAGS]. With --compute f32 (the default here) answers
must be equal, or differ first where the two best tokens of the golden lie less than 0.002 apart: there rounding decides. An empty
MODEL stands for $QUIRE_TEST_MODEL; where that names none either, the test is skipped (exit code 77).
"""
import json
import os
import subprocess
import sys
import tempfile

CLOSE_CALL = 0.002


def first_difference(golden, answer):
    for i, (expected, found) in enumerate(zip(golden["token_ids"], answer)):
        if expected != found:
            return i
    return None if len(answer) >= len(golden["token_ids"]) else len(answer)


def main():
    quire, model, goldens_path, *flags = sys.argv[1:]
    model = model or os.environ.get("QUIRE_TEST_MODEL")
    if not model:
        print("skipped: QUIRE_TEST_MODEL names no model")
        sys.exit(77)
    with open(goldens_path) as file:
        goldens = [json.loads(line) for line in file]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as prompts:
        for golden in goldens:
            prompts.write(json.dumps({"prompt_token_ids": golden["prompt_token_ids"], "max_tokens": len(golden["token_ids"])}) + "\n")
        prompts.flush()
        command = [quire, "generate", model, "--prompts", prompts.name, "--json", "--temperature", "0", "--ignore-eos",
                   "--kv-cache-memory", "1GiB", *(flags or ["--compute", "f32"])]
        result = subprocess.run(command, stdout=subprocess.PIPE)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} exited with {result.returncode}")
    lines = [json.loads(line) for line in result.stdout.decode().splitlines()]
    summary = lines.pop()["summary"]
    assert len(lines) == len(goldens), (len(lines), len(goldens))

    num_equal = num_close = num_wrong = 0
    for golden, line in zip(goldens, lines):
        at = first_difference(golden, line["choices"][0]["token_ids"])
        if at is None:
            num_equal += 1
        elif at < len(golden["gaps"]) and golden["gaps"][at] < CLOSE_CALL:
            num_close += 1
        else:
            num_wrong += 1
            print(f"prompt {line['index']}: differs at token {at}, where the two best are {golden['gaps'][at]:.4f} apart")
    print(f"{num_equal} of {len(goldens)} answers equal, {num_close} differ first at a close call, {num_wrong} wrong; {summary}")
    sys.exit(1 if num_wrong else 0)


if __name__ == "__main__":
    main()
