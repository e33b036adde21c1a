#!/usr/bin/env python3
"""How close a program's logits are to float32: the mean |difference| of the log-probability of the actual next token,
and the share of positions with the same best token, against NAME_closeness.txt (make_closeness.py).

    python compare_closeness.py smollm2 --llama-cpp MODEL.gguf       llama.cpp, defaults (see llama_cpp_logits.py)
    python compare_closeness.py smollm2 --quire 'quire generate MODEL.gguf'    further flags may follow the model
    python compare_closeness.py smollm2 --transformers-bf16 MODEL.gguf    transformers in bf16; what make_closeness.py needs

--save FILE keeps what each position gave; --beside FILE compares with what another program saved: the mean difference of
the two programs' errors, with its interval of 95 %, from blocks of 64 positions (neighbours depend on one another).
"""
import argparse
import json
import pathlib
import shlex
import subprocess
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]


def read_golden(name):
    """[(ids, log-probabilities of ids[1:], best ids)]"""
    lines = (ROOT / f"tests/goldens/{name}_closeness.txt").read_text().splitlines()
    rows = [line.split()[1:] for line in lines]
    return [(list(map(int, ids)), np.array(logprobs, float), list(map(int, best)))
            for ids, logprobs, best in zip(rows[0::3], rows[1::3], rows[2::3])]


def from_llama_cpp(path, windows):
    from llama_cpp_logits import LlamaCpp
    model = LlamaCpp(path, context_length=max(map(len, windows)))
    for ids in windows:
        logits = model.logits(ids)[:-1]
        shifted = logits - logits.max(-1, keepdims=True)
        norms = np.log(np.exp(shifted).sum(-1, dtype=np.float64))
        yield shifted[np.arange(len(ids) - 1), ids[1:]] - norms, logits.argmax(-1).tolist()


def from_quire(command, windows):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as prompts:
        prompts.writelines(json.dumps({"prompt_token_ids": ids}) + "\n" for ids in windows)
        prompts.flush()
        flags = ["--max-tokens", "1", "--temperature", "0", "--prompt-logprobs", "1", "--json"]
        command = [*shlex.split(command), "--prompts", prompts.name, *flags]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    for line in run.stdout.splitlines():
        result = json.loads(line)
        if "prompt_logprobs" in result:
            entries = result["prompt_logprobs"][1:]
            yield np.array([e["logprob"] for e in entries]), [e["top"][0]["token_id"] for e in entries]


def from_transformers_bf16(path, windows):
    import torch
    from make_greedy import load_model
    model = load_model(pathlib.Path(path).resolve()).to(torch.bfloat16)
    for ids in windows:
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1].double()
        logprobs = torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
        yield logprobs.numpy(), logits.argmax(-1).tolist()


def paired(differences):
    """Mean, and half of its interval of 95 %."""
    blocks = differences[:len(differences) // 64 * 64].reshape(-1, 64).mean(1)
    return differences.mean(), 1.96 * blocks.std(ddof=1) / np.sqrt(len(blocks))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--llama-cpp", metavar="GGUF")
    parser.add_argument("--quire", metavar="COMMAND")
    parser.add_argument("--transformers-bf16", metavar="GGUF")
    parser.add_argument("--save", type=pathlib.Path)
    parser.add_argument("--beside", type=pathlib.Path)
    args = parser.parse_args()
    golden = read_golden(args.name)
    windows = [ids for ids, _, _ in golden]
    if args.llama_cpp:
        results = from_llama_cpp(args.llama_cpp, windows)
    elif args.transformers_bf16:
        results = from_transformers_bf16(args.transformers_bf16, windows)
    else:
        results = from_quire(args.quire, windows)
    differences, equal = [], []
    for (_, logprobs, best), (actual, actual_best) in zip(golden, results, strict=True):
        differences.append(np.abs(logprobs - actual))
        equal += [a == b for a, b in zip(best, actual_best, strict=True)]
    differences = np.concatenate(differences)
    print(f"{args.name}: {len(differences)} positions, mean |difference| {differences.mean():.4f} nats "
          f"(median {np.median(differences):.4f}, 99 % {np.quantile(differences, 0.99):.3f}), "
          f"same best token {100 * np.mean(equal):.2f} %")
    if args.save:
        args.save.write_text(json.dumps({"differences": differences.tolist(), "equal": [bool(e) for e in equal]}))
    if args.beside:
        other = json.loads(args.beside.read_text())
        mean, spread = paired(differences - np.array(other["differences"]))
        best, best_spread = paired(np.array(equal, float) - np.array(other["equal"], float))
        print(f"less the other's: {mean:+.4f} ± {spread:.4f} nats, {100 * best:+.2f} ± {100 * best_spread:.2f} % of "
              "best tokens")


if __name__ == "__main__":
    main()
