#!/usr/bin/env python3
"""Makes the tiny random models of tests/goldens/models/ and the logits that transformers computes for them.

One model for each architecture and each kind of RoPE scaling that Quire supports: a Hugging Face folder, for
most of them the same weights as GGUF (model.gguf), and logits.txt, computed by transformers on the CPU in float32 with
eager attention. Every weight is a number that bf16 and f16 both hold exactly, so that the files agree to the bit
whatever dtype they use. Formats are described in tests/goldens/README.md.

    python make_tiny_models.py                    all models, into tests/goldens/models
    python make_tiny_models.py qwen3 gemma3       only these
    python make_tiny_models.py --out DIR --gguf-dtype f32     for checks with other programs
Needs: torch (CPU), transformers, safetensors, gguf, numpy.
"""
import argparse
import json
import math
import pathlib
import zlib

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>",
                  "<|tool|>", "<|reserved_0|>", "<|reserved_1|>", "<|reserved_2|>"]
MERGES = ["Ġ t", "Ġ a", "h e", "i n", "r e", "o n", "Ġt he", "in g"]
VOCAB_SIZE = 256 + len(MERGES) + len(SPECIAL_TOKENS)
FIRST_SPECIAL = 256 + len(MERGES)
END_OF_TEXT, IM_END, PAD = FIRST_SPECIAL, FIRST_SPECIAL + 2, FIRST_SPECIAL + 3
SHORT_PROMPT_LENGTH, LONG_PROMPT_LENGTH = 12, 80
SHORT_POSITIONS, LONG_POSITIONS = (0, 11), (15, 40, 79)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

# What most of them share; each model below adds its own. Written as the config.json files of hubs are
# (rope_theta and rope_scaling at the top level), which transformers reads like its newer rope_parameters.
COMMON = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB_SIZE, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu",
    "bos_token_id": END_OF_TEXT, "eos_token_id": IM_END, "pad_token_id": PAD,
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "head_dim": None, "use_sliding_window": False}
PHI3 = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "head_dim": None, "num_attention_heads": 2,
        "num_key_value_heads": 1, "tie_word_embeddings": False}
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_act": None,
          "hidden_activation": "gelu_pytorch_tanh", "num_attention_heads": 2, "num_key_value_heads": 1,
          "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window": 8,
          "query_pre_attn_scalar": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

#   name: (config, storage dtype of model.safetensors, number of shards, writes model.gguf)
MODELS = {
    "llama": ({**LLAMA, "intermediate_size": 96, "tie_word_embeddings": False}, "bf16", 2, True),
    "llama-mha": ({**LLAMA, "num_key_value_heads": 4, "head_dim": None, "num_hidden_layers": 1}, "f32", 1, False),
    "llama-mqa": ({**LLAMA, "num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 32}, "f16", 1, False),
    "llama-rope-llama3": ({**LLAMA, "rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}}, "bf16", 1, True),
    "llama-rope-linear": ({**LLAMA, "num_hidden_layers": 1, "rope_scaling": {
        "type": "linear", "factor": 4.0}}, "bf16", 1, True),
    "llama-rope-yarn": ({**LLAMA, "num_hidden_layers": 1, "rope_scaling": YARN}, "f16", 1, True),
    "mistral": ({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8,
                 "tie_word_embeddings": False}, "bf16", 1, False),
    "qwen2": (QWEN2, "bf16", 1, True),
    "qwen2-rope-yarn": ({**QWEN2, "num_hidden_layers": 1, "rope_theta": 1000000.0, "rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}, "bf16", 1, False),
    "qwen3": ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rms_norm_eps": 1e-6,
               "rope_theta": 1000000.0, "use_sliding_window": False}, "bf16", 1, True),
    "gemma3": ({**GEMMA3, "num_hidden_layers": 7, "intermediate_size": 32,
                "sliding_window_pattern": 6}, "bf16", 1, True),
    "gemma3-variant": ({**GEMMA3, "num_hidden_layers": 3, "query_pre_attn_scalar": 24, "final_logit_softcapping": 5.0,
                        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, "f16", 1, False),
    "phi3": (PHI3, "bf16", 1, True),
    "phi3-window": ({**PHI3, "sliding_window": 9, "num_hidden_layers": 1}, "f16", 1, False),
    "phi3-longrope": ({**PHI3, "original_max_position_embeddings": 32, "partial_rotary_factor": 0.75, "rope_scaling": {
        "type": "longrope", "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4],
        "long_factor": [1.0, 1.25, 1.8, 2.9, 4.6, 7.5]}}, "bf16", 1, True),
}


def byte_chars():
    """The character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


def vocabulary():
    return byte_chars() + [merge.replace(" ", "") for merge in MERGES] + SPECIAL_TOKENS


def tokenizer_json():
    added = [{"id": FIRST_SPECIAL + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, token in enumerate(SPECIAL_TOKENS)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    ordinary = {token: i for i, token in enumerate(vocabulary()[:FIRST_SPECIAL])}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": ordinary, "merges": MERGES}}


def config_of(name):
    config = {**COMMON, **MODELS[name][0]}
    return {key: value for key, value in config.items() if value is not None}


def exact(values):
    """The nearest numbers that bf16 and f16 both hold."""
    values = values.to(torch.bfloat16).to(torch.float32)
    return torch.where(values.abs() < 2.0 ** -13, torch.zeros_like(values), values)


def fill(model, name):
    """Weights under which the attention is uneven and the logits spread over several units."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    with torch.no_grad():
        for key, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in key:
                values = 0.3 * noise + (0.0 if "gemma" in name else 1.0)
            elif key.endswith("bias"):
                values = 0.5 * noise
            elif "embed_tokens" in key or "lm_head" in key:
                values = noise * 3.0 / weight.shape[1] ** 0.5
            elif any(part in key for part in ("q_proj", "k_proj", "qkv_proj")):
                values = noise * 1.5 / weight.shape[1] ** 0.5
            else:
                values = noise / weight.shape[1] ** 0.5
            weight.copy_(exact(values))


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1, sort_keys=False) + "\n", encoding="utf-8")


def write_folder(folder, name, model):
    config, dtype, num_shards, _ = MODELS[name]
    folder.mkdir(parents=True, exist_ok=True)
    torch_dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[dtype]
    names = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
    write_json(folder / "config.json", {**config_of(name), "torch_dtype": names[dtype]})
    write_json(folder / "generation_config.json", {"bos_token_id": END_OF_TEXT, "eos_token_id": [IM_END, END_OF_TEXT],
                                                   "pad_token_id": PAD, "do_sample": False})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(), ensure_ascii=False) + "\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[2], "pad_token": SPECIAL_TOKENS[3], "chat_template": CHAT_TEMPLATE})
    tied = config_of(name)["tie_word_embeddings"]
    state = {key: value.to(torch_dtype).contiguous() for key, value in model.state_dict().items()
             if not (tied and key == "lm_head.weight")}
    if num_shards == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map, shards = {}, [{} for _ in range(num_shards)]
    for i, key in enumerate(sorted(state)):
        shard = i * num_shards // len(state)
        shards[shard][key] = state[key]
        weight_map[key] = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
    for i, shard in enumerate(shards):
        save_file(shard, folder / f"model-{i + 1:05}-of-{num_shards:05}.safetensors", metadata={"format": "pt"})
    total = sum(value.numel() * value.element_size() for value in state.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def interleave(weight, num_heads):
    """Rows of q or k in the order of GGUF's llama architecture: the two halves of a head alternate."""
    rows = weight.shape[0]
    return weight.reshape(num_heads, 2, rows // num_heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def llama3_factors(scaling, theta, head_dim):
    factors = []
    original = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    for i in range(0, head_dim, 2):
        turns = original / (2 * math.pi * theta ** (i / head_dim))  # full turns within the original context
        blend = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - blend) / scaling["factor"] + blend))
    return np.array(factors, np.float32)


def write_gguf(path, name, model, matrix_dtype):
    config = config_of(name)
    arch = {"gemma3_text": "gemma3"}.get(config["model_type"], config["model_type"])
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    scaling = config.get("rope_scaling", {})
    kind = scaling.get("rope_type", scaling.get("type"))
    rope_dim = int(head_dim * config.get("partial_rotary_factor", 1.0))

    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny random model")  # llama.cpp treats the tokens of some names in its own way
    writer.add_file_type({"f32": 0, "f16": 1, "bf16": 32}[matrix_dtype])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(rope_dim)
    writer.add_vocab_size(VOCAB_SIZE)
    if arch == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
    extra = {}
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    elif kind == "llama3":
        extra["rope_freqs.weight"] = llama3_factors(scaling, config["rope_theta"], head_dim)
    elif kind == "longrope":
        original = config["original_max_position_embeddings"]
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(original)
        ratio = config["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(ratio) / math.log(original)))
        extra["rope_factors_long.weight"] = np.array(scaling["long_factor"], np.float32)
        extra["rope_factors_short.weight"] = np.array(scaling["short_factor"], np.float32)

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary())
    writer.add_token_types([1] * FIRST_SPECIAL + [3] * len(SPECIAL_TOKENS))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(END_OF_TEXT)
    writer.add_eos_token_id(IM_END)
    writer.add_eot_token_id(END_OF_TEXT)
    writer.add_pad_token_id(PAD)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)

    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper()), config["num_hidden_layers"])
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        array = value.to(torch.float32).numpy()
        if arch == "llama" and "q_proj" in key:
            array = interleave(array, heads)
        if arch == "llama" and "k_proj" in key:
            array = interleave(array, kv_heads)
        if arch == "gemma3" and "norm" in key:
            array = array + 1.0
        add_tensor(writer, names.get_name(key, try_suffixes=(".weight", ".bias")), array, matrix_dtype)
    for key, array in extra.items():
        add_tensor(writer, key, array, "f32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(writer, name, array, matrix_dtype):
    array = np.ascontiguousarray(array, np.float32)
    if array.ndim == 1 or matrix_dtype == "f32":
        writer.add_tensor(name, array)
    elif matrix_dtype == "f16":
        writer.add_tensor(name, array.astype(np.float16))
    else:
        kind = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)


def prompts(name):
    rng = np.random.default_rng(zlib.crc32(b"prompt " + name.encode()))
    return [(rng.integers(0, VOCAB_SIZE, length).tolist(), positions) for length, positions in
            ((SHORT_PROMPT_LENGTH, SHORT_POSITIONS), (LONG_PROMPT_LENGTH, LONG_POSITIONS))]


def write_logits(path, folder, name):
    """Logits of the model as transformers reads it back from its folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    lines = [f"vocab_size {VOCAB_SIZE}"]
    for ids, positions in prompts(name):
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
        lines.append("prompt " + " ".join(map(str, ids)))
        for position in positions:
            lines.append(f"logits {position} " + " ".join(f"{value:.9g}" for value in logits[position]))
        print(f"  {len(ids)} ids: logits in [{logits.min():.2f}, {logits.max():.2f}], spread {logits.std():.2f}, "
              f"{len(set(logits.argmax(-1)))} different best tokens")
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models to make (default: all)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/goldens/models")
    parser.add_argument("--gguf-dtype", choices=("f16", "bf16", "f32"), help="dtype of matrices (default f16)")
    args = parser.parse_args()
    for name in args.names or MODELS:
        print(name)
        folder = args.out / name
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", config_of(name))
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="eager")
        model = model.to(torch.float32)
        model.tie_weights()
        fill(model, name)
        write_folder(folder, name, model)
        if MODELS[name][3]:
            write_gguf(folder / "model.gguf", name, model, args.gguf_dtype or ("bf16" if name == "qwen3" else "f16"))
        write_logits(folder / "logits.txt", folder, name)


if __name__ == "__main__":
    main()
