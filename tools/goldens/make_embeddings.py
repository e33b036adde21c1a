#!/usr/bin/env python3
"""Makes tests/goldens/models/NAME/embeddings.txt: what transformers pools from the hidden states of the tiny models.

For each prompt of logits.txt: the hidden state of the last token, of the first (cls), and the mean over all tokens, after
the model's final norm, as it is and divided by its Euclidean length. CPU, float32, eager attention. The format is described in
tests/goldens/README.md.

    python make_embeddings.py                  all models that have a logits.txt
    python make_embeddings.py qwen3 gemma3     only these
    python make_embeddings.py --gguf smollm2.gguf tokenizer.json URL     compares with a server that has this model
Needs: torch (CPU), transformers; for --gguf also accelerate, gguf, tokenizers.
"""
import json
import pathlib
import sys
import urllib.request

import torch
from transformers import AutoModel

from greedy_prompts import PROMPTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests/goldens/models"
POOLINGS = {"last": lambda hidden: hidden[-1], "mean": lambda hidden: hidden.mean(0), "cls": lambda hidden: hidden[0]}


def hidden_states(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]


def normalized(vector):
    return torch.nn.functional.normalize(vector, dim=0)


def make(folder):
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    lines = []
    for line in (folder / "logits.txt").read_text().splitlines():
        if not line.startswith("prompt "):
            continue
        hidden = hidden_states(model, [int(word) for word in line.split()[1:]])
        lines.append(line)
        for name, pool in POOLINGS.items():
            for kind, vector in (("raw", pool(hidden)), ("normalized", normalized(pool(hidden)))):
                lines.append(f"embedding {name} {kind} " + " ".join(f"{value:.8g}" for value in vector.tolist()))
    (folder / "embeddings.txt").write_text("\n".join(lines) + "\n")
    print(f"{folder.name}: {len(lines)} lines")


def compare(gguf, tokenizer_file, url):
    from tokenizers import Tokenizer
    tokenizer, path = Tokenizer.from_file(tokenizer_file), pathlib.Path(gguf).resolve()
    model = AutoModel.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32,
                                      attn_implementation="eager").eval()
    worst, name = 0.0, json.load(urllib.request.urlopen(url + "/v1/models"))["data"][0]["id"]
    for prompt in PROMPTS:
        body = {"model": name, "input": prompt, "encoding_format": "float"}
        request = urllib.request.Request(url + "/v1/embeddings", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request))["data"][0]["embedding"]
        expected = normalized(POOLINGS["last"](hidden_states(model, tokenizer.encode(prompt).ids)))
        worst = max(worst, float((torch.tensor(answer) - expected).abs().max()))
    print(f"{len(PROMPTS)} prompts, largest difference {worst:.3g}")
    return 0 if worst <= 1e-4 else 1


def main():
    if sys.argv[1:2] == ["--gguf"]:
        sys.exit(compare(*sys.argv[2:]))
    names = sys.argv[1:] or sorted(path.parent.name for path in MODELS.glob("*/logits.txt"))
    for name in names:
        make(MODELS / name)


if __name__ == "__main__":
    main()
