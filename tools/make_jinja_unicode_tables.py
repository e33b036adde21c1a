#!/usr/bin/env python3
"""Writes src/text/jinja_unicode_tables.inc: the character properties and case mappings that Python's str methods use,
taken from the Python that runs this script. Run it from the root of the tree; the output is committed."""
import sys
import unicodedata

LIMIT = 0x110000


def ranges(predicate):
    result, start = [], None
    for code in range(LIMIT + 1):
        inside = code < LIMIT and predicate(chr(code))
        if inside and start is None:
            start = code
        if not inside and start is not None:
            result.append((start, code - 1))
            start = None
    return result


def single_mappings(function):
    """Runs {first, last, stride, delta} of characters that map to one character."""
    runs = []
    for code in range(LIMIT):
        mapped = function(chr(code))
        if len(mapped) != 1 or ord(mapped) == code:
            continue
        delta = ord(mapped) - code
        if runs and runs[-1][3] == delta:
            first, last, stride, _ = runs[-1]
            if last == first and code - last <= 2:
                runs[-1] = (first, code, code - last, delta)
                continue
            if code - last == stride:
                runs[-1] = (first, code, stride, delta)
                continue
        runs.append((code, code, 1, delta))
    return runs


def special_mappings(function):
    return [(c, function(chr(c))) for c in range(LIMIT) if len(function(chr(c))) > 1]


def cased_ignorable(ch):
    # What Python's final-sigma rule skips: it is not available directly, so it is read off the rule's behaviour.
    return ("a" + ch + "\u03a3").lower().endswith("\u03c2") and not ("a" == ch) and ("1" + ch + "\u03a3").lower().endswith("\u03c3")


def cased(ch):
    return ("1" + ch + "\u03a3").lower().endswith("\u03c2")


def main():
    out = []
    out.append(f"// Written by tools/make_jinja_unicode_tables.py (Unicode {unicodedata.unidata_version}). Do not edit.")
    for name, predicate in [
        ("kPrintable", str.isprintable), ("kAlpha", str.isalpha), ("kDecimal", str.isdecimal), ("kDigit", str.isdigit),
        ("kNumeric", str.isnumeric), ("kLower", lambda c: c.islower()), ("kUpper", lambda c: c.isupper()),
        ("kTitle", lambda c: unicodedata.category(c) == "Lt"), ("kCased", cased), ("kCaseIgnorable", cased_ignorable),
    ]:
        out.append(f"constexpr Range {name}[] = {{")
        row = ""
        for first, last in ranges(predicate):
            item = f"{{0x{first:X}, 0x{last:X}}}, "
            if len(row) + len(item) > 115:
                out.append("    " + row.rstrip())
                row = ""
            row += item
        out.append("    " + row.rstrip())
        out.append("};")
    for name, function in [("Lower", str.lower), ("Upper", str.upper), ("Title", str.title), ("Fold", str.casefold)]:
        out.append(f"constexpr CaseRun k{name}Runs[] = {{")
        row = ""
        for first, last, stride, delta in single_mappings(function):
            item = f"{{0x{first:X}, 0x{last:X}, {stride}, {delta}}}, "
            if len(row) + len(item) > 115:
                out.append("    " + row.rstrip())
                row = ""
            row += item
        out.append("    " + row.rstrip())
        out.append("};")
        out.append(f"constexpr SpecialCase k{name}Special[] = {{")
        row = ""
        for code, mapped in special_mappings(function):
            points = [ord(c) for c in mapped] + [0] * (3 - len(mapped))
            item = "{0x%X, {0x%X, 0x%X, 0x%X}}, " % (code, *points)
            if len(row) + len(item) > 115:
                out.append("    " + row.rstrip())
                row = ""
            row += item
        out.append("    " + row.rstrip())
        out.append("};")
    with open("src/text/jinja_unicode_tables.inc", "w") as f:
        f.write("\n".join(out) + "\n")


if __name__ == "__main__":
    sys.exit(main())
