#!/usr/bin/env python3
"""Makes a tiny random model with rows of 256 and 512 in every weight format, with the logits of each (never committed).

    python make_format_models.py OUT_FOLDER LLAMA_QUANTIZE
Each is OUT_FOLDER/FORMAT/model.gguf, quantized by llama.cpp's llama-quantize --pure, and logits.txt as in
tests/goldens/models: by transformers in float32 from the dequantized weights of that very file.
Needs what make_tiny_models.py needs, and accelerate.
"""
import argparse
import pathlib
import subprocess

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import make_tiny_models

FORMATS = "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs".split()
make_tiny_models.MODELS["llama-256"] = (
    {**make_tiny_models.LLAMA, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "head_dim": 64},
    "bf16", 1, True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("quantize")
    args = parser.parse_args()
    source = args.out / "f32"
    source.mkdir(parents=True, exist_ok=True)
    make_tiny_models.write_json(source / "config.json", make_tiny_models.config_of("llama-256"))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source)).to(torch.float32)
    (source / "config.json").unlink()
    model.tie_weights()
    make_tiny_models.fill(model, "llama-256")
    make_tiny_models.write_gguf(source / "model.gguf", "llama-256", model, "f32")
    for name in FORMATS:
        folder = args.out / name
        folder.mkdir(exist_ok=True)
        if name != "f32":
            subprocess.run([args.quantize, "--pure", source / "model.gguf", folder / "model.gguf", name, "1"],
                           check=True, capture_output=True)
        print(name, (folder / "model.gguf").stat().st_size, "bytes")
        write_logits(folder)


def write_logits(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    lines = [f"vocab_size {make_tiny_models.VOCAB_SIZE}"]
    for ids, positions in make_tiny_models.prompts("llama-256"):
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
        lines.append("prompt " + " ".join(map(str, ids)))
        lines += [f"logits {p} " + " ".join(f"{value:.9g}" for value in logits[p]) for p in positions]
    (folder / "logits.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
