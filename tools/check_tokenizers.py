#!/usr/bin/env python3
"""Compares `quire tokenize` with test vectors and with Hugging Face `tokenizers` (PyPI), on a machine that has them. Not a CI test.

    tools/check_tokenizers.py --quire build/release/quire --vectors FOLDER
        FOLDER holds NAME.gguf with NAME.gguf.inp and NAME.gguf.out, as llama.cpp's models/ does.
    tools/check_tokenizers.py --quire build/release/quire --compare MODEL=tokenizer.json ... [--count 100000] [--seed 1]
        MODEL is what `quire tokenize` takes; both tokenize the same random texts.

Prints a line a vocabulary; exit code 1 where anything differs.
"""
import argparse
import glob
import json
import os
import random
import subprocess
import sys
import unicodedata

PROSE = """The paper was folded twice, and the reader couldn't find the end: 1024 pages, 3.14 inches. DON'T ask, we'll see; it's hard
to say what they've done. I'm sure you'd agree, HE'S right.\n\nDer Fuchs läuft über die Straße. Où est le café? ¿Dónde está el niño?
Привет мир, как дела? Ελληνικά κείμενο. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया। สวัสดีชาวโลก Xin chào thế giới, tiếng Việt.
你好世界，今天天气怎么样？日本語のテキスト、カタカナとひらがな。한국어 텍스트입니다. 🦙🎉👨‍👩‍👧‍👦🇩🇪👍🏽 … — “quotes” ’s ½ ² ٣ ⅷ ﬁ Å ǅ
def encode(self, text: str, *, add=True) -> list[int]:\n    '''Doc.'''\n    return [x for x in f"{text!r}"]  # 0xFF 1e-5\n
for (size_t i = 0; i + 1 < n; ++i) {\n\tmerges[i] = look_up(i);\r\n\t}\t// TODO(x): a->b && c != d\n"""


def corpus(count, seed, specials):
    rng = random.Random(seed)
    code_points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) not in ("Cn", "Co")]
    low = [c for c in code_points if c < 0x3000]
    marks = [c for c in code_points if unicodedata.category(chr(c))[0] == "M"]
    spaces = [" ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2003", "\u200b", "\u0085", "\u2028", "\u180e", "\x0b", "\x0c",
              "\x1c", "\ufeff", "▁", "▁▁"]
    sources = [PROSE * 4]
    for path in sorted(glob.glob(os.path.join(os.path.dirname(json.__file__), "*.py"))):
        with open(path, encoding="utf-8") as file:
            sources.append(file.read())
    specials = specials or ["<s>"]
    makers = [
        (0.35, lambda: (lambda t, a: t[a:a + rng.choice([5, 20, 60, 200])])(t := rng.choice(sources), rng.randrange(len(t)))),
        (0.15, lambda: "".join(chr(rng.choice(code_points)) for _ in range(rng.randrange(1, 20)))),
        (0.10, lambda: "".join(chr(rng.choice(low)) for _ in range(rng.randrange(1, 40)))),
        (0.10, lambda: "".join(rng.choice(spaces) if rng.random() < .6 else rng.choice("aZ9.'é中") for _ in range(rng.randrange(1, 30)))),
        (0.08, lambda: "".join(rng.choice("abcXYZ 0123456789'’.,;!?/\\-_=+<>|[]{}()\n\t") for _ in range(rng.randrange(1, 60)))),
        (0.06, lambda: "".join(rng.choice("aeiouké") + "".join(chr(rng.choice(marks)) for _ in range(rng.randrange(4)))
                               for _ in range(rng.randrange(1, 12)))),
        (0.06, lambda: rng.choice(["Z", "A", "中", " ", "\n", "é", "1", "!", "ab", "🦙", "\u0301", "가"]) * rng.randrange(1, 200)),
        (0.06, lambda: "".join(rng.choice([rng.choice(specials), rng.choice(specials)[:-1], rng.choice(spaces), "Hello", "世界"])
                               for _ in range(rng.randrange(1, 6)))),
        (0.04, lambda: rng.choice(["", "\0", "a\0b", " "]) + rng.choice(["'S", "'ſ", "'LL", "K", "İ", "'Re"])),
    ]
    weights = [weight for weight, _ in makers]
    return [rng.choices(makers, weights)[0][1]() for _ in range(count)]


def quire(binary, model, lines, *flags):
    result = subprocess.run([binary, "tokenize", model, *flags], input="".join(json.dumps(line) + "\n" for line in lines),
                            capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return None, result.stderr.strip()
    return [json.loads(line) for line in result.stdout.splitlines()], ""


def report(name, texts, ours, expected, error):
    if ours is None:
        print(f"{name}: {error}")
        return False
    wrong = [(t, a, b) for t, a, b in zip(texts, ours, expected) if a != b]
    print(f"{name}: {len(texts)} texts, {len(wrong)} differ", flush=True)
    for text, a, b in wrong[:3]:
        print(f"    {text[:80]!r}: {str(a)[:120]} instead of {str(b)[:120]}")
    return not wrong and len(ours) == len(texts)


def check_vectors(binary, folder):
    good = True
    for path in sorted(glob.glob(os.path.join(folder, "*.gguf.inp"))):
        model = path[:-len(".inp")]
        with open(path, encoding="utf-8", newline="") as file:
            texts = file.read().split("\n__ggml_vocab_test__\n")
        with open(model + ".out", encoding="utf-8") as file:
            expected = [[int(x) for x in line.split()] for line in file.read().split("\n")]
        ours, error = quire(binary, model, texts, "--no-bos")
        good &= report(os.path.basename(model), texts, ours, expected, error)
    return good


def compare(binary, pairs, count, seed):
    from tokenizers import Tokenizer
    good = True
    for pair in pairs:
        model, _, path = pair.partition("=")
        reference = Tokenizer.from_file(path)
        reference.no_padding()
        reference.no_truncation()
        texts = corpus(count, seed, [t.content for t in reference.get_added_tokens_decoder().values()])
        expected = [e.ids for e in reference.encode_batch(texts, add_special_tokens=False)]
        ours, error = quire(binary, model, texts, "--no-bos")
        good &= report(model, texts, ours, expected, error)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", required=True)
    parser.add_argument("--vectors")
    parser.add_argument("--compare", nargs="*", default=[])
    parser.add_argument("--count", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    good = True
    if args.vectors:
        good &= check_vectors(args.quire, args.vectors)
    good &= compare(args.quire, args.compare, args.count, args.seed)
    sys.exit(0 if good else 1)


main()
