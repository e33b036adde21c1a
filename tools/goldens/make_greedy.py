#!/usr/bin/env python3
"""Makes tests/goldens/NAME_greedy.jsonl: 24 prompts and the 64 greedy tokens that transformers gives for each.

Weights are dequantized from the GGUF file by transformers; CPU, float32, eager attention, KV cache. Ids of the prompts
come from Hugging Face's tokenizers (tokenizer.json, see make_tokenizer_json.py), with the tokens that the model asks
for before a prompt (SmolLM2: none; Gemma: <bos>). Generation does not stop at end-of-sequence tokens. The format is
described in tests/goldens/README.md.

    python make_greedy.py smollm2 smollm2.gguf tokenizer.json
    python make_greedy.py gemma3 gemma3.gguf tokenizer.json
Needs: torch (CPU), transformers, accelerate, gguf, tokenizers. A few minutes on one core.
"""
import argparse
import json
import pathlib
import time

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from greedy_prompts import PROMPTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUM_TOKENS = 64


def load_model(path):
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32,
                                                 attn_implementation="eager")
    return model.eval()


def generate(model, ids):
    """[(token id, gap between the two best logits, log-probability)] of NUM_TOKENS greedy steps."""
    steps, cache, step_ids = [], None, torch.tensor([ids])
    for _ in range(NUM_TOKENS):
        with torch.no_grad():
            out = model(step_ids, cache=cache, use_cache=True, logits_to_keep=1)
        cache, logits = out.cache, out.logits[0, -1].double()
        best = torch.topk(logits, 2)
        logprob = best.values[0] - torch.logsumexp(logits, 0)
        steps.append((int(best.indices[0]), float(best.values[0] - best.values[1]), float(logprob)))
        step_ids = best.indices[:1].reshape(1, 1)
    return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("tokenizer")
    args = parser.parse_args()
    tokenizer, model = Tokenizer.from_file(args.tokenizer), load_model(args.gguf.resolve())
    path, started, smallest = ROOT / f"tests/goldens/{args.name}_greedy.jsonl", time.time(), []
    with path.open("w", encoding="utf-8") as out:
        for prompt in PROMPTS:
            ids = tokenizer.encode(prompt).ids
            tokens, gaps, logprobs = zip(*generate(model, ids))
            smallest.append(min(gaps))
            text = tokenizer.decode(list(tokens))
            print(f"{len(ids):5} ids  {time.time() - started:5.0f} s  {text[:60]!r}", flush=True)
            line = {"prompt": prompt, "prompt_token_ids": ids, "token_ids": tokens,
                    "gaps": [float(f"{gap:.4g}") for gap in gaps], "logprobs": [round(value, 5) for value in logprobs]}
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
    print(f"prompts with a gap under 0.002: {sum(gap < 0.002 for gap in smallest)}")


if __name__ == "__main__":
    main()
