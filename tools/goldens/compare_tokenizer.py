#!/usr/bin/env python3
"""Compares `quire tokenize` with another tokenizer over a corpus (make_tokenizer_corpus.py) and reports each mismatch.

    python compare_tokenizer.py 'quire tokenize MODEL' tokenizer.json corpus.jsonl
    python compare_tokenizer.py 'quire tokenize MODEL' spiece.model corpus.jsonl
    python compare_tokenizer.py 'quire tokenize MODEL' ggml-vocab-NAME.gguf.out ggml-vocab-NAME.gguf.inp     vectors
The second takes SentencePiece itself as oracle, which adds no BOS and knows no special tokens in texts (texts that
contain some are left out). With --no-bos both leave out what the model asks for around a text. With
--detokenize the oracle's ids go through `quire tokenize --detokenize` and the texts are compared. Exit code 1 if
anything differs.
Needs: tokenizers or sentencepiece.
"""
import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import time


def read_corpus(path):
    if path.suffix == ".inp":  # texts with a marker line between them
        return path.read_bytes().decode().split("\n__ggml_vocab_test__\n")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def is_sentencepiece(path):
    return ".model" in path.suffixes  # also NAME.model.v1


def load_sentencepiece(path):
    import sentencepiece
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def without_special(texts, path):
    processor = load_sentencepiece(path)
    special = [processor.id_to_piece(i) for i in range(processor.get_piece_size())
               if processor.is_control(i) or processor.is_unknown(i)]
    return [text for text in texts if not any(token in text for token in special)]


def oracle(path, texts, no_bos):
    """(ids of each text, a function from ids to text or None)"""
    if path.suffix == ".out":
        lines = path.read_text().split("\n")[:len(texts)]
        return [[int(word) for word in line.split()] for line in lines], None
    if is_sentencepiece(path):
        processor = load_sentencepiece(path)
        return processor.encode(texts), processor.decode
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=not no_bos)]
    return ids, lambda one: tokenizer.decode(one, skip_special_tokens=False)


def run(command, lines):
    """The JSON values that the command prints, one for each line of input."""
    started = time.time()
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, encoding="utf-8")
    print(f"{' '.join(command)}: {time.time() - started:.1f} s, exit code {done.returncode}")
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    values = [json.loads(line) for line in done.stdout.split("\n") if line]
    if len(values) != len(lines):
        sys.exit(f"{len(lines)} lines in, {len(values)} lines out")
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("oracle", type=pathlib.Path)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--no-bos", action="store_true")
    parser.add_argument("--detokenize", action="store_true")
    parser.add_argument("--show", type=int, default=10, help="mismatches to print")
    args = parser.parse_args()
    texts = read_corpus(args.corpus)
    if is_sentencepiece(args.oracle):
        texts = without_special(texts, args.oracle)
    no_bos = args.no_bos or args.oracle.suffix == ".out" or is_sentencepiece(args.oracle)
    expected, decode = oracle(args.oracle, texts, no_bos)
    command = shlex.split(args.command) + (["--no-bos"] if no_bos else [])
    if args.detokenize:
        texts, expected = expected, [decode(ids) for ids in expected]
        command.append("--detokenize")
    actual = run(command, [json.dumps(text) for text in texts])
    wrong = [i for i in range(len(texts)) if actual[i] != expected[i]]
    for i in wrong[:args.show]:
        pairs = enumerate(zip(actual[i], expected[i]))
        at = next((k for k, (a, b) in pairs if a != b), min(len(actual[i]), len(expected[i])))
        window = slice(max(at - 3, 0), at + 5)
        print(f"line {i + 1}: {json.dumps(texts[i], ensure_ascii=True)[:200]}\n    at {at}: "
              f"got {actual[i][window]!r} of {len(actual[i])}, expected {expected[i][window]!r} of {len(expected[i])}")
    print(f"{len(texts)} texts, {len(wrong)} mismatches")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
