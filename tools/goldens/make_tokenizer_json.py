#!/usr/bin/env python3
"""Writes the tokenizer.json of a vocabulary in another form, so that Hugging Face's tokenizers can be its oracle.

    python make_tokenizer_json.py model-or-vocab.gguf OUT.json      byte-level BPE, SentencePiece BPE or unigram in GGUF
    python make_tokenizer_json.py qwen.tiktoken OUT.json --pre qwen2    a tiktoken rank file
    python make_tokenizer_json.py spiece.model OUT.json             a SentencePiece model (BPE or unigram)
The pipeline around the vocabulary (normalizer, pre-tokenizer, decoder) is that of each family's own tokenizer.json.
Needs: tokenizers, gguf; for .model files sentencepiece and protobuf. The results are never committed.
"""
import argparse
import base64
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    "llama-bpe": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST,
    "qwen2": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST,
    "qwen35": (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
               + REST.replace(r"\p{L}\p{N}", r"\p{L}\p{M}\p{N}")),
}
DIGITS_APART = ("smollm", "starcoder", "refact", "command-r")
GPT2_LIKE = ("gpt-2", "mpt")
TIKTOKEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # of qwen.tiktoken, after the ranks
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # GGUF token types


def byte_chars():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


def byte_level(vocab, merges, pre, special, ordinary_added=()):
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe"))
    level = lambda use_regex: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    if pre in SPLITS:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated"), level(False)])
    elif pre in DIGITS_APART:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level(True)])
    elif pre in GPT2_LIKE:
        tokenizer.pre_tokenizer = level(True)
    else:
        raise SystemExit(f"no pre-tokenizer known for {pre!r}")
    if pre == "qwen2":  # qwen35 has none: its vectors keep decomposed letters apart
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ordinary_added])
    return tokenizer


def merges_from_scores(pieces, kinds):
    """The merges that SentencePiece's scores imply: best score first, as the converters of tokenizers order them."""
    ordinary = {piece: i for i, ((piece, _), kind) in enumerate(zip(pieces, kinds)) if kind == NORMAL}
    merges = []
    for piece, i in ordinary.items():
        splits = [(piece[:at], piece[at:], pieces[i][1]) for at in range(1, len(piece))]
        local = [split for split in splits if split[0] in ordinary and split[1] in ordinary]
        merges += sorted(local, key=lambda merge: (ordinary[merge[0]], ordinary[merge[1]]))
    merges.sort(key=lambda merge: (merge[2], len(merge[0]), len(merge[1])), reverse=True)
    return [(left, right) for left, right, _ in merges]


def sentencepiece_bpe(pieces, kinds, add_space_prefix, bos):
    """pieces: [(text, score)] in id order; kinds: a GGUF token type for each."""
    merges = merges_from_scores(pieces, kinds)
    vocab = {piece: i for i, (piece, _) in enumerate(pieces)}
    unknown = next((piece for (piece, _), kind in zip(pieces, kinds) if kind == UNKNOWN), "<unk>")
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    space = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if add_space_prefix else space
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if add_space_prefix else []))
    add_marked(tokenizer, pieces, kinds)
    if bos is not None:
        text = pieces[bos][0]
        tokenizer.post_processor = processors.TemplateProcessing(f"{text} $A", special_tokens=[(text, bos)])
    return tokenizer


def add_marked(tokenizer, pieces, kinds):
    texts = [text for text, _ in pieces]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True)
                                  for text, kind in zip(texts, kinds) if kind in (UNKNOWN, CONTROL)])
    tokenizer.add_tokens([AddedToken(text, normalized=False)
                          for text, kind in zip(texts, kinds) if kind == USER_DEFINED])


def unigram(pieces, kinds, charsmap, unknown_id, add_bos_eos, split_at_whitespace):
    """With split_at_whitespace as XLM-R and T5 are on hubs, else as today's converters do, nearer to SentencePiece."""
    tokenizer = Tokenizer(models.Unigram(pieces, unknown_id, byte_fallback=BYTE in kinds))
    steps = [normalizers.Precompiled(charsmap)] if charsmap else []
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always")
    if split_at_whitespace:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    else:
        steps += [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")]
        tokenizer.pre_tokenizer = metaspace
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    add_marked(tokenizer, pieces, kinds)
    if add_bos_eos:
        bos, eos = add_bos_eos
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{pieces[bos][0]} $A {pieces[eos][0]}", special_tokens=[(pieces[bos][0], bos), (pieces[eos][0], eos)])
    return tokenizer


def from_gguf(path):
    import gguf
    fields = gguf.GGUFReader(path).fields

    def get(key, default=None):
        field = fields.get(f"tokenizer.ggml.{key}")
        return default if field is None else field.contents()

    kind, tokens, kinds = get("model"), get("tokens"), get("token_type")
    if kind == "gpt2":
        marked = [i for i, k in enumerate(kinds) if k in (CONTROL, USER_DEFINED)]
        vocab = {token: i for i, token in enumerate(tokens)}
        return byte_level(vocab, [tuple(merge.split(" ")) for merge in get("merges")], get("pre"),
                          [tokens[i] for i in marked if kinds[i] == CONTROL],
                          [tokens[i] for i in marked if kinds[i] == USER_DEFINED])
    pieces = list(zip(tokens, get("scores")))
    bos = get("bos_token_id") if get("add_bos_token", True) else None
    if kind == "llama":
        return sentencepiece_bpe(pieces, kinds, get("add_space_prefix", True), bos)
    if kind == "t5":
        both = (bos, get("eos_token_id")) if get("add_eos_token", False) and bos is not None else None
        charsmap = bytes(value & 255 for value in get("precompiled_charsmap", []))
        return unigram(pieces, kinds, charsmap, get("unknown_token_id", 3), both, True)
    raise SystemExit(f"tokenizer model {kind!r} is not handled")


def from_tiktoken(path, pre):
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in path.read_bytes().splitlines() if line}
    chars = byte_chars()
    text = lambda raw: "".join(chars[b] for b in raw)
    vocab, merges = {text(raw): rank for raw, rank in ranks.items()}, []
    for raw, rank in ranks.items():
        splits = [(raw[:i], raw[i:]) for i in range(1, len(raw)) if raw[:i] in ranks and raw[i:] in ranks]
        merges += [(rank, ranks[left], ranks[right], text(left), text(right)) for left, right in splits]
    vocab.update({token: len(ranks) + i for i, token in enumerate(TIKTOKEN_SPECIAL)})
    return byte_level(vocab, [merge[3:] for merge in sorted(merges)], pre, TIKTOKEN_SPECIAL)


def from_sentencepiece(path):
    from sentencepiece import sentencepiece_model_pb2
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(path.read_bytes())
    pieces, kinds = [(piece.piece, piece.score) for piece in model.pieces], [piece.type for piece in model.pieces]
    if model.trainer_spec.model_type == model.trainer_spec.UNIGRAM:
        return unigram(pieces, kinds, model.normalizer_spec.precompiled_charsmap, model.trainer_spec.unk_id, None,
                       False)
    return sentencepiece_bpe(pieces, kinds, model.normalizer_spec.add_dummy_prefix, None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("out")
    parser.add_argument("--pre", help="pre-tokenizer of a tiktoken file: " + ", ".join(SPLITS))
    args = parser.parse_args()
    if args.source.suffix == ".gguf":
        tokenizer = from_gguf(args.source)
    elif args.source.suffix == ".tiktoken":
        tokenizer = from_tiktoken(args.source, args.pre)
    else:
        tokenizer = from_sentencepiece(args.source)
    tokenizer.save(args.out, pretty=False)
    print(args.out, tokenizer.get_vocab_size(), tokenizer.encode("Hello, world! 12345 你好 🙂").ids)


if __name__ == "__main__":
    main()
