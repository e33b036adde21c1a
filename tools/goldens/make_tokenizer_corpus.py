#!/usr/bin/env python3
"""Writes a fuzz corpus for tokenizers: N strings, one JSON string a line, the same for the same arguments.

    python make_tokenizer_corpus.py 100000 > corpus.jsonl
    python make_tokenizer_corpus.py 100000 --seed 2 --special '<|im_start|>' --special '<s>' > corpus.jsonl
Most strings join a few short pieces of different kinds: words of many scripts, digits, whitespace runs, punctuation,
code, emoji sequences, combining marks, control characters, texts of special tokens and parts of them; one in 500 is a
very long run. Only code points that Unicode 14 assigns appear, unless --unassigned is given: regex engines with
different Unicode tables rightly disagree on the others. Needs only Python.
"""
import argparse
import json
import random
import sys
import unicodedata

WORDS = """the of and to in is that it was for on are with as his they at be this from have or by one had not but what
all were when we there can an your which their said if do will each about how up out them then she many some so these
would other into has more her two like him see time could no make than first been its who now people my made over did
down only way find use may water long little very after words called just where most know don't it's we'll I'm they've
he'd you're DON'T It'S internationalization antidisestablishmentarianism e-mail co-operate naïve façade Ångström Straße
ﬁne İstanbul O'Brien 'tis rock'n'roll U.S.A. Ph.D. 3rd 2nd x86_64 utf8 fooBar snake_case SCREAMING_CASE kebab-case
HTTPServer""".split()
SCRIPTS = {
    "latin": (0x41, 0x24F), "greek": (0x370, 0x3FF), "cyrillic": (0x400, 0x52F), "armenian": (0x531, 0x58F),
    "hebrew": (0x591, 0x5F4), "arabic": (0x600, 0x6FF), "devanagari": (0x900, 0x97F), "bengali": (0x980, 0x9FE),
    "tamil": (0xB82, 0xBFA), "thai": (0xE01, 0xE5B), "tibetan": (0xF00, 0xFDA), "georgian": (0x10A0, 0x10FF),
    "hangul": (0xAC00, 0xD7A3), "jamo": (0x1100, 0x11FF), "hiragana": (0x3041, 0x309F), "katakana": (0x30A0, 0x30FF),
    "han": (0x4E00, 0x9FFC), "han_extension": (0x20000, 0x2A6DD), "ethiopic": (0x1200, 0x1399),
    "khmer": (0x1780, 0x17F9), "cherokee": (0x13A0, 0x13FD), "fullwidth": (0xFF01, 0xFFEE),
    "mathematical": (0x1D400, 0x1D7FF),
}
CODE = ["def f(x):\n    return x**2\n", "for (int i = 0; i < n; ++i) {\n\ta[i] += b[i];\n}", "#include <vector>\r\n",
        "SELECT * FROM t WHERE a>=1 AND b<>'x';", "std::vector<std::pair<int, T&>> v{};", "{\"k\": [1, 2.5e-3, null]}",
        "<div class=\"a b\">&nbsp;</div>", "```python\nprint('hi')\n```",
        "\\frac{a_1}{b^2} \\leq \\sum_{i=0}^\\infty x_i", "if (a && !b || c != d) { ... }",
        "https://example.org/a/b?c=d&e=%20f#g", "user.name+tag@example.org", "C:\\Users\\me\\file.txt",
        "\t\tif x:\n\t\t\tpass\n\n\n", "0xDEADBEEF 0b1010 1_000_000 1e-10 3.14159", "//////", "-----",
        "=> -> :: <= >= != === ... ?? ?. ++ -- && || << >>", "/* comment */ // other\n",
        "@decorator\nclass A(B):\n    '''doc'''"]
SPACES = [" ", "  ", "   ", "        ", "\n", "\n\n", "\r\n", "\r", "\t", "\t\t", " \n", "\n ", " \n \n", "\u00a0",
          "\u3000", "\u2003", "\u2028", "\u2029", "\u200a", "\u205f", "\u1680", "\x0b", "\x0c", "\x1c", "\x1f", "\x85",
          "\u180e", "\u200b", "\ufeff", " \u00a0 ", "\n\n\n\n", "    \n    "]
EMOJI = ["🙂", "👍🏽", "👩‍👩‍👧‍👦", "🇩🇪", "🇺🇸🇨🇳", "❤️", "❤️‍🔥", "1️⃣", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "👨🏿‍🚀", "🫠", "☺", "☺️", "🤷‍♀️", "🚀🚀🚀",
         "👁️‍🗨️", "♂️", "🧑🏻‍❤️‍💋‍🧑🏿"]
MARKS = ["e\u0301", "a\u030a\u0323", "o\u0308\u0304", "n\u0303", "i\u0307", "\u0301", "\u0300\u0301\u0302\u0303",
         "q\u0323\u0307", "q\u0307\u0323", "가", "\u1100\u1161\u11a8", "ﬁ", "ǆ", "ß", "ſ", "K", "Å", "Ⅷ", "²", "½", "①",
         "٣", "१२३", "𝟘𝟙", "ﷺ", "क्षि", "ก็", "𝓗𝓮𝓵𝓵𝓸", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘"]
ODD = ["\x00", "\x01", "\x7f", "\x80", "\x9f", "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "\ue000", "\u202e", "\u2066",
       "\u200d", "\u200c", "\u00ad", "\ufe0f", "\u034f", "\U000e0001", "▁", "▁▁", "Ġ", "Ċ", "<0x0A>", "<0xFF>", "##ing",
       "</w>"]
SPECIAL = ["<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<|endoftext|>", "<|im_start|>", "<|im_end|>",
           "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "[INST]", "[/INST]", "<start_of_turn>",
           "<end_of_turn>", "<|user|>", "<|end|>", "<think>", "</think>", "<tool_call>", "<|fim_prefix|>", "<mask>",
           "[CLS]", "<|assistant|>", "<｜User｜>"]
LONG = ["a", "A", " ", "\n", "\t", "0", "!", "é", "字", "🙂", "ab", " a", "a ", "\r\n", "▁", "'s", "\u0301", "aA", "a1",
        "1a", ".a", " \n", "=", "---", "👩‍👩‍👧‍👦", "\x00", "的", "กา", "\u3000"]
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¡§«»¿–—‘’“”„…‰€£¥©®™°±×÷∑√∞≈≠≤≥→←↔★☆、。「」『』【】〜！？，：；（）"


def assigned(code):
    return unicodedata.category(chr(code)) not in ("Cs", "Cn")


class Corpus:
    def __init__(self, seed, special, unassigned):
        self.random = random.Random(seed)
        self.special = SPECIAL + special
        self.unassigned = unassigned
        self.alphabets = {name: [chr(c) for c in range(low, high + 1) if assigned(c)]
                          for name, (low, high) in SCRIPTS.items()}
        self.kinds = [
            (self.word, 30), (self.script_word, 15), (self.digits, 8), (self.space, 16), (self.punctuation, 10),
            (self.code, 5), (self.emoji, 4), (self.marks, 5), (self.odd, 3), (self.special_text, 4), (self.any_char, 5)]

    def word(self):
        word = self.random.choice(WORDS)
        case = self.random.random()
        word = word.upper() if case < 0.08 else word.capitalize() if case < 0.2 else word
        return (" " if self.random.random() < 0.7 else "") + word

    def script_word(self):
        letters = self.alphabets[self.random.choice(list(SCRIPTS))]
        space = " " if self.random.random() < 0.4 else ""
        return space + "".join(self.random.choices(letters, k=self.random.randint(1, 8)))

    def digits(self):
        digits = "".join(self.random.choices("0123456789", k=self.random.choice((1, 2, 3, 3, 4, 5, 7, 12, 30))))
        return self.random.choice(("", "", " ", "-", "$", ".")) + digits

    def space(self):
        return self.random.choice(SPACES[:16] if self.random.random() < 0.8 else SPACES)

    def punctuation(self):
        return "".join(self.random.choices(PUNCTUATION, k=self.random.choice((1, 1, 1, 2, 3, 6))))

    def code(self):
        return self.random.choice(CODE)

    def emoji(self):
        return self.random.choice(EMOJI)

    def marks(self):
        return self.random.choice(MARKS)

    def odd(self):
        return self.random.choice(ODD)

    def special_text(self):
        text = self.random.choice(self.special)
        cut = self.random.random()
        if cut < 0.25:  # a text that only looks like a special token at first
            at = self.random.randrange(len(text))
            return text[:at] if cut < 0.15 else text[at:]
        return self.random.choice(("", "", " ", "\n")) + text + self.random.choice(("", "", " "))

    def any_char(self):
        chars = []
        while len(chars) < self.random.randint(1, 4):
            code = self.random.choice((self.random.randrange(0x3000), self.random.randrange(0x110000)))
            if assigned(code) or (self.unassigned and not 0xD800 <= code <= 0xDFFF):
                chars.append(chr(code))
        return "".join(chars)

    def long_run(self):
        piece = self.random.choice(LONG)
        return piece * self.random.choice((50, 129, 257, 1000, 3001)) + self.random.choice(("", "a", " ", "\n", "1"))

    def string(self, index):
        if index % 500 == 499:
            return self.long_run()
        makers, weights = zip(*self.kinds)
        count = self.random.choice((0, 1, 1, 2, 3, 4, 6, 8, 12, 20)) if index % 50 else 60
        return "".join(make() for make in self.random.choices(makers, weights, k=count))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--special", action="append", default=[], help="a further special token's text")
    parser.add_argument("--unassigned", action="store_true", help="code points that Unicode 14 does not assign, too")
    args = parser.parse_args()
    corpus = Corpus(args.seed, args.special, args.unassigned)
    for index in range(args.count):
        sys.stdout.write(json.dumps(corpus.string(index)) + "\n")


if __name__ == "__main__":
    main()
