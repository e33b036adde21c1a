#!/usr/bin/env python3
"""Writes src/text/unicode_updates.inc: where the Unicode data that Hugging Face `tokenizers` works with differs from the
libraries' own (PCRE2 10.42: Unicode 14; utf8proc 2.8: Unicode 15).

Run with Python 3.11 (whose unicodedata is Unicode 14) and PyPI `tokenizers`; it asks `tokenizers` about every code point.
"""
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

assert unicodedata.unidata_version == "14.0.0", "needs Python 3.11"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
BLOCK = 2048


def removed_by(splitter):
    """Code points that a Removed-behavior pre-tokenizer drops."""
    found = set()
    for begin in range(0, 0x110000, BLOCK):
        block = [c for c in range(begin, begin + BLOCK) if not 0xD800 <= c < 0xE000]
        if not block:
            continue
        kept = set()
        for text, _ in splitter.pre_tokenize_str("".join(map(chr, block))):
            kept.update(map(ord, text))
        found.update(c for c in block if c not in kept)
    return found


def matching(pattern):
    return removed_by(pre_tokenizers.Split(Regex(pattern), "removed"))


def ranges(items):
    """[(code point, tag)] -> [(first, last, tag)]"""
    out = []
    for code_point, tag in sorted(items):
        if out and out[-1][1] == code_point - 1 and out[-1][2] == tag:
            out[-1][1] = code_point
        else:
            out.append([code_point, code_point, tag])
    return out


def newer_characters():
    categories = {}
    for name in ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cf Cc Co").split():
        for code_point in matching(r"\p{%s}" % name):
            categories[code_point] = name
    han = matching(r"\p{Han}")
    below = {"Lu": 0x1E00, "Ll": 0x1E01, "Lt": 0x1F88, "Lm": 0x1D2C, "Lo": 0x0904, "Mn": 0x0900, "Mc": 0x0903, "Me": 0x1ABE,
             "Nd": 0x0966, "Nl": 0x2160, "No": 0x09F4, "Pc": 0x203F, "Pd": 0x2010, "Ps": 0x2045, "Pe": 0x2046, "Pi": 0x2018,
             "Pf": 0x2019, "Po": 0x0964, "Sm": 0x2200, "Sc": 0x20A0, "Sk": 0x1FBD, "So": 0x2300, "Cf": 0x200B}
    above = {"Lu": 0xA790, "Ll": 0xA791, "Lm": 0xA717, "Lo": 0xA4D0}
    astral = {"Lu": 0x10400, "Ll": 0x10428, "Lm": 0x10780, "Lo": 0x10000, "Mn": 0x101FD, "Mc": 0x11000, "Nd": 0x104A0,
              "Nl": 0x10140, "No": 0x10107, "Po": 0x10100, "Pd": 0x10EAD, "Sm": 0x1D6C1, "Sc": 0x11FDD, "So": 0x10137,
              "Sk": 0x1F3FB, "Cf": 0x110BD}
    items = []
    for code_point in CODE_POINTS:
        category = categories.get(code_point, "Cn")
        if category == unicodedata.category(chr(code_point)):
            continue
        if category == "Cn":
            sys.exit("lost a character: %X" % code_point)
        if code_point < 0x800:
            sys.exit("a two-byte character: %X" % code_point)
        if code_point in han:
            stand_in = 0x20000 if code_point >= 0x10000 else 0x4E00
        elif code_point >= 0x10000:
            stand_in = astral[category]
        elif code_point >= 0xA000 and category in above:
            stand_in = above[category]
        else:
            stand_in = below[category]
        assert unicodedata.category(chr(stand_in)) == category, (hex(stand_in), category)
        items.append((code_point, stand_in))
    return ranges(items)


def not_normalized():
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    items = set()
    # Code points of every Unicode version that a library may know: order against marks of known classes tells their class.
    import unicodedata2
    for code_point in CODE_POINTS:
        text = chr(code_point)
        combining_class = unicodedata2.combining(text)
        if combining_class:
            probe = "a\u0345" + text if combining_class < 240 else "a" + text + "\u0334"
            if nfd.normalize_str(probe) == probe != unicodedata2.normalize("NFD", probe):
                items.add(code_point)
        if nfd.normalize_str(text) != unicodedata2.normalize("NFD", text) or \
                nfkd.normalize_str(text) != unicodedata2.normalize("NFKD", text):
            items.add(code_point)
    items.add(0x11930)  # the second half of a newer composition
    return ranges((c, None) for c in items)


def main():
    # Digits isolates; what stands alone next to letters is a digit.
    digits = set()
    splitter = pre_tokenizers.Digits(individual_digits=True)
    for begin in range(0, 0x110000, BLOCK):
        block = [c for c in range(begin, begin + BLOCK) if not 0xD800 <= c < 0xE000]
        text = "".join("a" + chr(c) + "a" for c in block)
        for piece, _ in splitter.pre_tokenize_str(text) if text else []:
            if len(piece) == 1 and piece != "a":
                digits.add(ord(piece))
    punctuation = removed_by(pre_tokenizers.Punctuation("removed"))

    def is_n(c):
        return unicodedata.category(chr(c))[0] == "N"

    def is_p(c):
        return unicodedata.category(chr(c))[0] == "P"

    ascii_symbols = set(map(ord, "$+<=>^`|~"))
    more_digits = ranges((c, None) for c in digits if not is_n(c))
    assert not [c for c in CODE_POINTS if is_n(c) and c not in digits]
    more_punctuation = ranges((c, None) for c in punctuation if not is_p(c) and c not in ascii_symbols)
    less_punctuation = ranges((c, None) for c in CODE_POINTS if is_p(c) and c not in punctuation)
    with open(sys.argv[1], "w") as out:
        out.write("// Written by tools/goldens/make_unicode_updates.py; not to be edited.\n")

        def table(comment, name, kind, rows):
            out.write("\n// %s\nconstexpr %s %s[] = {\n" % (comment, kind, name))
            line = "   "
            for first, last, tag in rows:
                cell = " {0x%X, 0x%X%s}," % (first, last, "" if tag is None else ", 0x%X" % tag)
                if len(line) + len(cell) > 118:
                    out.write(line + "\n")
                    line = "   "
                line += cell
            out.write(line + "\n};\n")

        table("Characters newer than PCRE2's tables, and an older one of the same kind and encoded length.",
              "kNewerCharacters", "StandIn", newer_characters())
        table("Characters newer than the normal forms that tokenizers were trained with: they stay as they are.",
              "kNotNormalized", "CodePointRange", not_normalized())
        table("Numbers newer than Unicode 14.", "kMoreNumbers", "CodePointRange", more_digits)
        if more_punctuation:
            table("Punctuation newer than Unicode 14.", "kMorePunctuation", "CodePointRange", more_punctuation)
        table("Punctuation that the pre-tokenizer of that name does not know.", "kUnknownPunctuation", "CodePointRange",
              less_punctuation)


main()
