#!/usr/bin/env python3
"""Makes tests/goldens/rope_tables.txt: the inverse frequencies and attention factors of transformers for configs with
each kind of RoPE scaling, in the forms in which config.json files write them.

    python make_rope_tables.py [OUTPUT]
Needs: torch (CPU), transformers.
"""
import copy
import json
import pathlib
import sys

import torch
from transformers import AutoConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 8,
         "num_key_value_heads": 2, "vocab_size": 1000, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072}
LLAMA = {**SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 500000.0}
QWEN2 = {**SIZES, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_theta": 1000000.0,
         "max_position_embeddings": 32768}
PHI3 = {**SIZES, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rope_theta": 10000.0, "pad_token_id": 0,
        "eos_token_id": 1, "bos_token_id": 2}
GEMMA3 = {**SIZES, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 256,
          "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window": 512}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
FACTORS = {"short_factor": [1.0 + i / 97 for i in range(32)], "long_factor": [1.1 ** i for i in range(32)]}

CASES = [
    {**LLAMA, "rope_theta": 10000.0},
    {**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 32.0, **LLAMA3}},
    {**LLAMA, "head_dim": 128, "rope_scaling": {"type": "llama3", "factor": 8.0, **LLAMA3}},
    {**LLAMA, "rope_theta": None, "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                                                      **LLAMA3}},
    {**LLAMA, "max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.5}},
    {**QWEN2, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
    {**QWEN2, "rope_scaling": {"rope_type": "yarn", "factor": 40.0, "beta_fast": 16, "beta_slow": 2, "mscale": 0.707,
                               "mscale_all_dim": 1.1, "original_max_position_embeddings": 4096}},
    {**QWEN2, "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "truncate": False, "attention_factor": 1.25,
                               "original_max_position_embeddings": 2048}},
    {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
    {**PHI3, "original_max_position_embeddings": 4096, "rope_scaling": {"type": "longrope", **FACTORS}},
    {**PHI3, "rope_scaling": {"type": "longrope", **FACTORS}},
    {**PHI3, "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "rope_scaling": {
        "type": "longrope", "short_factor": FACTORS["short_factor"][:24], "long_factor": FACTORS["long_factor"][:24]}},
    GEMMA3,
    {**GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    {**GEMMA3, "rope_theta": None, "rope_local_base_freq": None, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0}}},
]


def tables(config):
    """(kind of layer, context, attention factor, inverse frequencies)"""
    kind = config["model_type"]
    read = AutoConfig.for_model(kind, **copy.deepcopy({k: v for k, v in config.items() if k != "model_type"}))
    if kind == "gemma3_text":
        rope = Gemma3RotaryEmbedding(read)
        for layer in ("full_attention", "sliding_attention"):
            yield layer, 1024, getattr(rope, f"{layer}_attention_scaling"), getattr(rope, f"{layer}_inv_freq")
        return
    rope = (Phi3RotaryEmbedding if kind == "phi3" else LlamaRotaryEmbedding)(read)
    for context in (1024, 100000) if kind == "phi3" else (1024,):
        rope(torch.zeros(1), torch.tensor([[context - 1]]))  # takes the factors for this length
        yield "full_attention", context, rope.attention_scaling, rope.inv_freq


def main():
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/goldens/rope_tables.txt"
    lines = []
    for case in CASES:
        config = {key: value for key, value in case.items() if value is not None}
        lines.append("config " + json.dumps(config))
        for layer, context, factor, frequencies in tables(config):
            lines.append(f"table {layer} {context} {float(factor)!r} " +
                         " ".join(f"{value:.9g}" for value in frequencies.tolist()))
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
