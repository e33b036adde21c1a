#!/usr/bin/env python3
"""Writes tests/goldens/tokenizer/NAME/{tokenizer.json,cases.json}: small vocabularies of every kind and what Hugging Face
`tokenizers` (PyPI) makes of a few hundred texts with them.

Usage: make_tokenizer_goldens.py tests/goldens/tokenizer
"""
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = """The paper was folded twice, and the reader couldn't find the end of it: 1024 pages, 3.14 inches, don't ask.
We've seen that it's hard to say what they'll do; I'm sure you'd agree. HELLO World, hello WORLD!
def encode(text, options=None):\n    if not text:\n        return []\n    return [token.id for token in split(text)]
for (size_t i = 0; i + 1 < num_symbols; ++i) merges[i] = look_up(i);  // 0xFF, 1e-5, a->b, x != y && z
Der schnelle braune Fuchs läuft über die Straße. Où est le café près de l'hôtel? ¿Dónde está el niño?
Быстрая лиса прыгает через ленивую собаку. Η γρήγορη αλεπού. ההצהרה. مرحبا بالعالم
今天天气很好，我们去公园吧。東京はとても大きい都市です。カタカナとひらがな。한국어 문장을 나눕니다.
नमस्ते दुनिया। สวัสดีชาวโลก Xin chào thế giới 🦙🎉👍🏽👨‍👩‍👧 ½ ² ٣ Ⅷ … “quotes” ‘single’ — dash
\t\ttabs and  double   triple    spaces\r\nline ends\n\n\nmore\u00a0spaces\u3000here
"""
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def train(tokenizer, trainer):
    tokenizer.train_from_iterator(TEXT.split("\n") * 3, trainer)
    return tokenizer


def byte_level(name, splits, normalizer=None, size=600, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                         special_tokens=["<|endoftext|>"], show_progress=False))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", AddedToken("<|strip|>", lstrip=True, rstrip=True, special=True)])
    tokenizer.add_tokens([AddedToken("</think>", normalized=False), AddedToken("\n\n\n\n", normalized=False),
                          AddedToken("word", single_word=True, normalized=True)])
    return name, tokenizer


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def sentencepiece_bpe():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    byte_tokens = ["<0x%02X>" % b for b in range(256)]
    train(tokenizer, trainers.BpeTrainer(vocab_size=800, special_tokens=["<unk>", "<s>", "</s>"] + byte_tokens,
                                         show_progress=False, limit_alphabet=90))
    state = json.loads(tokenizer.to_str())
    # Byte tokens are tokens of the model, not texts to look for.
    state["added_tokens"] = [t for t in state["added_tokens"] if not t["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return "sentencepiece_bpe", tokenizer


def metaspace_bpe():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    train(tokenizer, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>"], show_progress=False,
                                         limit_alphabet=70))
    return "metaspace_bpe", tokenizer


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    train(tokenizer, trainers.UnigramTrainer(vocab_size=380, unk_token="<unk>", special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
                                             show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return "unigram", tokenizer


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    train(tokenizer, trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
                                               show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return "wordpiece", tokenizer


def texts(specials):
    rng = random.Random(11)
    out = ["", " ", "\n", "a\0b", "Hello", " Hello", "cafe\u0301", "caf\u00e9", "\u1112\u1161\u11ab", "\ud55c", "Z" * 300, "中" * 100, " " * 70,
           "\u0301" * 40, "e\u0323\u0301\u0302x", "\u180e \u0085\u2028", "\U0001f9d9\u200d\u2642\ufe0f", "<|im_end|>x</think>\n\n\n\n\n", "password word word"]
    alphabet = "abcXYZ 019'’.,;!?/\\-_=+<>|[]{}()\n\t éßñ中世アк🦙\u0301\u00a0"
    for _ in range(120):
        begin = rng.randrange(len(TEXT))
        out.append(TEXT[begin:begin + rng.choice([3, 10, 40, 120])])
    for _ in range(80):
        out.append("".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 30))))
    for _ in range(40):
        out.append("".join(rng.choice(specials + ["Hello", " ", "  \n", "世界", "don't", "word"]) for _ in range(rng.randrange(1, 6))))
    for _ in range(30):
        out.append("".join(chr(c) for c in (rng.randrange(0x10FFFF) for _ in range(6)) if not 0xD800 <= c < 0xE000))
    return out


def main():
    folder = sys.argv[1]
    digits_gpt2 = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made = [
        byte_level("byte_level_digits", digits_gpt2),
        byte_level("byte_level_llama3", [split(LLAMA3), plain], ignore_merges=True),
        byte_level("byte_level_o200k_nfc", [split(O200K, "removed", True), plain], normalizers.NFC()),
        byte_level("byte_level_prefix_space", [pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=True)],
                   normalizers.Sequence([normalizers.Lowercase(), normalizers.Strip()])),
        byte_level("byte_level_merged", [split(r"\s+", "merged_with_next"), split(r"\d", "merged_with_previous"),
                                         split(r"[.,]", "contiguous"), plain], normalizers.NFKD()),
        sentencepiece_bpe(), metaspace_bpe(), unigram(), wordpiece()]
    for name, tokenizer in made:
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        state = json.loads(tokenizer.to_str())
        with open(os.path.join(folder, name, "tokenizer.json"), "w") as out:
            json.dump(state, out, ensure_ascii=False, separators=(",", ":"))
        tokenizer = Tokenizer.from_str(json.dumps(state))
        specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
        cases = []
        for text in texts(specials):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "ids": ids, "with_special": tokenizer.encode(text).ids,
                          "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
        with open(os.path.join(folder, name, "cases.json"), "w") as out:
            out.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")
        print(name, tokenizer.get_vocab_size(), len(cases))


main()
