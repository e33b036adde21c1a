#!/usr/bin/env python3
"""Compares the greedy tokens of `quire generate` with tests/goldens/NAME_greedy.jsonl.

    python compare_greedy.py smollm2 'quire generate MODEL.gguf --compute f32'      prompts given as ids
    python compare_greedy.py smollm2 'quire generate MODEL.gguf --compute f32' --text      prompts given as text
A prompt passes if all tokens are equal or the first difference stands where the golden's two best logits are less than
0.002 apart (--close-call: under 16-bit floats 0.1 is fair). Also prints how far apart they stand there in the compared
program, and the largest difference of log-probabilities up to there. Exit code 1 if a prompt fails.
"""
import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(command, golden, as_text):
    key = "prompt" if as_text else "prompt_token_ids"
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as prompts:
        prompts.writelines(json.dumps({key: case[key]}) + "\n" for case in golden)
        prompts.flush()
        flags = ["--max-tokens", "64", "--temperature", "0", "--ignore-eos", "--logprobs", "2", "--json"]
        command = [*shlex.split(command), "--prompts", prompts.name, *flags]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}")
    results = [json.loads(line) for line in done.stdout.splitlines() if line]
    return [result for result in results if "choices" in result]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("command")
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--close-call", type=float, default=0.002)
    args = parser.parse_args()
    path = ROOT / f"tests/goldens/{args.name}_greedy.jsonl"
    golden = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    results = run(args.command, golden, args.text)
    num_equal, num_close, num_wrong, worst = 0, 0, abs(len(golden) - len(results)), 0.0
    for case, result in zip(golden, results):
        ids, choice = case["token_ids"], result["choices"][0]
        if result["prompt_token_ids"] != case["prompt_token_ids"]:
            num_wrong += 1
            print(f"prompt {result['index']}: other ids of the prompt {case['prompt'][:40]!r}")
            continue
        pairs = enumerate(zip(choice["token_ids"], ids))
        at = next((i for i, (a, b) in pairs if a != b), min(len(choice["token_ids"]), len(ids)))
        for i in range(at):
            worst = max(worst, abs(choice["logprobs"][i]["logprob"] - case["logprobs"][i]))
        if at == len(ids):
            num_equal += 1
        elif at < len(choice["token_ids"]) and case["gaps"][at] < args.close_call:
            num_close += 1
            best = [other["logprob"] for other in choice["logprobs"][at]["top"]]
            print(f"prompt {result['index']}: differs at {at}, where the gap is {case['gaps'][at]:.2g}, "
                  f"here {best[0] - best[1]:.2g}")
        else:
            num_wrong += 1
            print(f"prompt {result['index']}: WRONG at {at} of {len(choice['token_ids'])}, gap {case['gaps'][at]:.2g}: "
                  f"got {choice['token_ids'][at:at + 4]}, expected {ids[at:at + 4]}; {case['prompt'][:40]!r}")
    print(f"{len(golden)} prompts: {num_equal} equal, {num_close} differ at a close call, {num_wrong} wrong; "
          f"largest difference of a log-probability {worst:.2g}")
    sys.exit(num_wrong != 0)


if __name__ == "__main__":
    main()
