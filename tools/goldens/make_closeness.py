#!/usr/bin/env python3
"""Makes tests/goldens/NAME_closeness.txt: what transformers predicts, in float32, at each token of mixed_text.txt.

    python make_closeness.py smollm2 smollm2.gguf tokenizer.json
    python make_closeness.py gemma3 gemma3.gguf tokenizer.json
The text is cut into windows of 1024 ids (less the BOS that Gemma asks for); each is a sequence of its own. For every id
but a window's first: its log-probability and the id that was best instead. compare_closeness.py measures other programs
against the file. Weights are dequantized from the GGUF file; CPU. Format: tests/goldens/README.md.
Needs: torch (CPU), transformers, accelerate, gguf, tokenizers. Some minutes on one core.
"""
import argparse
import pathlib

import torch
from tokenizers import Tokenizer

from make_greedy import load_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
WINDOW = 1024


def windows(tokenizer):
    text = (ROOT / "tests/goldens/mixed_text.txt").read_text(encoding="utf-8")
    bos = tokenizer.encode("").ids
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    length = WINDOW - len(bos)
    return [bos + ids[start:start + length] for start in range(0, len(ids), length)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("tokenizer")
    args = parser.parse_args()
    model, lines = load_model(args.gguf.resolve()), []
    for ids in windows(Tokenizer.from_file(args.tokenizer)):
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1].double()
        logprobs = torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
        print(f"{len(ids)} ids, mean log-probability {logprobs.mean():.4f}", flush=True)
        lines += ["ids " + " ".join(map(str, ids)),
                  "logprobs " + " ".join(f"{value:.5f}" for value in logprobs.tolist()),
                  "best " + " ".join(map(str, logits.argmax(-1).tolist()))]
    (ROOT / f"tests/goldens/{args.name}_closeness.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
