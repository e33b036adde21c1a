#!/usr/bin/env python3
"""Checks the GGUF files that make_tiny_models.py writes: does llama.cpp compute the logits of logits.txt from them?

    python make_tiny_models.py --out DIR --gguf-dtype f32      float weights: differences are rounding only
    python check_tiny_models.py DIR [NAME...]
Prints the largest difference for each model and prompt; fails above 1e-4 (Gemma: 1e-2, because llama.cpp takes GELU
from a table of f16 values). See llama_cpp_logits.py for what it needs.
llama.cpp picks longrope's factors by the size of the context, which it rounds up to 256, transformers by the length
of the prompt: so a prompt within longrope's original context is not compared.
"""
import argparse
import pathlib
import sys

import numpy as np

from llama_cpp_logits import LlamaCpp


def read_logits(path):
    """[(ids, {position: logits})] from a logits.txt."""
    prompts = []
    for line in path.read_text().splitlines():
        word, *values = line.split()
        if word == "prompt":
            prompts.append(([int(v) for v in values], {}))
        elif word == "logits":
            prompts[-1][1][int(values[0])] = np.array(values[1:], np.float32)
    return prompts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    failed = False
    for path in sorted(args.folder.glob("*/model.gguf")):
        if args.names and path.parent.name not in args.names:
            continue
        for ids, expected in read_logits(path.parent / "logits.txt"):
            if "longrope" in path.parent.name and len(ids) <= 32:
                continue
            model = LlamaCpp(path, kv_f32=True)
            actual = model.logits(ids)
            error = max(float(np.abs(actual[position] - row).max()) for position, row in expected.items())
            failed = failed or not error < (1e-2 if "gemma" in path.parent.name else 1e-4)
            print(f"{path.parent.name:24} {len(ids):3} ids: largest difference {error:.2e}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
