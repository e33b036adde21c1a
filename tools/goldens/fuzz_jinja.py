#!/usr/bin/env python3
"""Random templates through jinja2, as transformers sets it up, and through quire: equal texts, or an error on both sides.

    python fuzz_jinja.py [--binary build/release/src/text/quire_render_template] [--count 20000] [--seed 1] [--verbose]
Expressions, filters, tests, methods, slices, loops, macros, sets and whitespace control are drawn from a grammar. What is
known to differ is left out: integers beyond 64 bits, addresses of objects, features that quire refuses by name, and
slices of constants that have none, where jinja2's optimizer forgets the error.
"""
import argparse
import copy
import json
import random
import re
import subprocess
import sys
import warnings

import jinja_oracle

VARIABLES = {
    "s": "Hello, World", "t": "  pad\t\n", "u": "Größe ǆ İß 😀 ΑΣ", "e": "", "html": "<b>&'\"</b>", "num": "42", "fl": "3.5e2", "lines": "a\r\nb\n\n c\n",
    "i": 7, "z": 0, "neg": -3, "f": 2.5, "g": -0.125, "big": 1e21, "yes": True, "no": False, "nil": None,
    "l": [3, 1, 2], "w": ["pear", "Apple", "fig", "apple"], "m": [1, "a", None, 2.5, True, [1]], "el": [], "ed": {},
    "d": {"b": 1, "a": [1, 2], "C": None, "items": "shadow", "é": "x"},
    "p": [{"n": "Bo", "a": 30, "c": {"x": 1}}, {"n": "al", "a": 25, "c": {"x": 0}}, {"n": "Cy", "a": 30}],
}
NAMES = list(VARIABLES) + ["missing"]
STRINGS = ["''", "'a'", "\"it's\"", "'l'", "','", "' '", "'\\n'", "'o, W'", "'é😀'", "'%s'", "'{}'", "'%d-%s'", "'{0}{1!r:>5}'", "'n'", "'c.x'", "'a,n'", "'<|im_end|>'", "'\\x41\\u00e9\\q'"]
NUMBERS = ["0", "1", "2", "-1", "3", "10", "1.0", "0.5", "-2.5", "1e3", "100", "1_0", "0x1f"]
FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "count", "first", "last", "list", "string", "int", "float", "abs", "round",
           "reverse|list", "sort", "unique|list", "join", "join(', ')", "join(', ', attribute='n')", "tojson", "tojson(indent=2)", "tojson(sort_keys=true)",
           "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'))", "default('D')", "d('D', true)", "replace('l', 'L')", "replace('a', '', 1)", "indent", "indent(2, true)", "indent('> ', blank=true)",
           "dictsort", "dictsort(by='value')", "dictsort(true, reverse=true)", "items|list", "map('upper')|list", "map(attribute='n')|list", "map(attribute='c.x', default=9)|list",
           "select|list", "reject|list", "select('odd')|list", "select('string')|list", "selectattr('a', 'gt', 26)|list", "selectattr('c')|list", "rejectattr('c', 'defined')|list",
           "selectattr('n', 'equalto', 'Bo')|list", "sum", "sum(attribute='a')", "sum(start=2)", "min", "max", "min(attribute='a')", "batch(2)|list", "batch(2, 'x')|list", "slice(2)|list", "slice(3, 'f')|list",
           "groupby('a')", "groupby('c.x', default=5)", "wordcount", "center(15)", "truncate(5)", "truncate(5, true)", "truncate(8, false, '>', 0)", "escape", "e", "safe", "forceescape", "urlencode", "format(1, 'x')", "format('a')",
           "attr('n')", "int(default=5)", "int(base=16)", "float(1.5)", "round(1)", "round(2, 'floor')", "round(0, 'ceil')", "round(-1)", "sort(reverse=true)", "sort(attribute='a')", "sort(attribute='a,n')", "sort(case_sensitive=true)",
           "map('int')|list", "map('length')|list", "map('default', 'q')|list", "max(attribute='n')", "first|upper", "last|string", "trim('H')", "trim(' d')", "items", "string|length", "tojson|length", "unique(attribute='a')|list"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "true", "false", "odd", "even", "divisibleby 2", "divisibleby(3)",
         "upper", "lower", "callable", "in [1, 'a']", "eq 1", "ne 'a'", "gt 2", "lt 3", "ge 1", "le 2", "== 1", "sameas none", "sameas true", "escaped", "filter", "test", "equalto('a')"]
METHODS = [".upper()", ".lower()", ".title()", ".capitalize()", ".swapcase()", ".strip()", ".strip('H ')", ".lstrip()", ".rstrip('\\n')", ".split()", ".split(',')", ".split('l', 1)", ".rsplit(' ', 1)", ".rsplit(None, 1)", ".split(none, 1)",
           ".splitlines()", ".splitlines(true)", ".startswith('He')", ".endswith(('d', 'x'))", ".startswith('l', 2)", ".find('l')", ".find('o', 5)", ".rfind('l', 0, 4)", ".index('o')", ".count('l')", ".count('')", ".replace('l', 'LL')", ".replace('', '-')", ".replace('o', '0', 1)",
           ".join(w)", ".join(['a', 'b'])", ".format(1, s)", ".format(a=1)", ".items()", ".keys()", ".values()", ".get('a')", ".get('zz', 5)", ".items()|list", ".keys()|list", ".get('a')[0]",
           ".isdigit()", ".isalpha()", ".isalnum()", ".isspace()", ".isupper()", ".islower()", ".istitle()", ".isnumeric()", ".isidentifier()", ".isprintable()", ".isascii()", ".zfill(8)", ".ljust(14, '.')", ".rjust(14)", ".center(15, '*')",
           ".removeprefix('He')", ".removesuffix('ld')", ".partition(',')", ".rpartition('o')", ".expandtabs(4)", ".casefold()", ".a", ".items", ".b", ".n", ".append(1)", ".pop()", ".__class__", ".copy()", ".index(1)", ".count(1)", ".0", "[0]", "[-1]", "['a']", "['upper']", "[i]", "[9]", "[none]", "[1.0]",
           "[1:]", "[:-1]", "[::-1]", "[1:9:2]", "[-3:]", "[:0]", "[5:1:-2]", "[::0]", "[nil:2]", "['a':]", "[true]"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FORMATS = ["'%s %r'|format({0}, {1})", "'%5d|%-5s|%05.1f' % ({0}, {1}, f)", "'%x %X %o' % (i, i, i)", "'%(a)s' % d", "'%.2e %g' % (f, big)", "'%+d % d' % (i, i)", "'%5.1f%%' % f", "'%c' % s[0]", "'%s' % {0}", "'%d' % {0}", "'%.3s' % {0}", "'%*d' % (5, i)",
           "'{{}} {{}}'.format({0}, {1})", "'{{:>8}}|{{:<8}}|{{:^8}}'.format(s, i, f)", "'{{:05d}} {{:+.2f}} {{:,}}'.format(i, f, 1234567)", "'{{:x}} {{:#b}} {{:e}}'.format(i, i, f)", "'{{a}} {{b[0]}}'.format(a={0}, b={1})", "'{{:.3}}'.format({0})", "'{{:%}} {{:g}}'.format(f, big)", "'{{0[a]}} {{0.b}}'.format(d)", "'{{!r}} {{!s:>4}}'.format({0}, {1})", "'{{:*^{{}}}}'.format(s, 20)", "'{{:_}} {{:,.1f}}'.format(1234567, 1234567.891)"]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, items):
        return self.random.choice(items)

    def atom(self):
        kind = self.random.random()
        if kind < 0.6:
            return self.pick(NAMES)
        if kind < 0.75:
            return self.pick(STRINGS)
        if kind < 0.9:
            return self.pick(NUMBERS)
        return self.pick(["[]", "()", "(1,)", "{'k': 1}", "[1, 'x']", "range(4)", "range(5, 0, -2)", "true", "none", "dict(a=1)", "{1: 'i', none: 2, 'q': [1.0]}", "[[1, 2], [3]]"])

    def expression(self, depth=3):
        if depth == 0:
            return self.atom()
        kind = self.random.random()
        inner = lambda: self.expression(depth - 1)
        if kind < 0.30:
            return f"{self.wrap(inner())}|{self.pick(FILTERS)}"
        if kind < 0.55:
            return f"{self.wrap(inner())}{self.pick(METHODS)}"
        if kind < 0.72:
            return f"({inner()} {self.pick(OPERATORS)} {inner()})"
        if kind < 0.80:
            return f"({self.wrap(inner())} is {self.pick(['', 'not '])}{self.pick(TESTS)})"
        if kind < 0.84:
            return f"({inner()} if {inner()} else {inner()})"
        if kind < 0.87:
            return self.pick(["not ", "-", "+"]) + self.wrap(inner())
        if kind < 0.91:
            return self.pick(["[{}, {}]", "({}, {})", "{{'x': {}, 'y': {}}}"]).format(inner(), inner())
        if kind < 0.95:
            return "(" + self.pick(FORMATS).format(self.wrap(self.atom()), self.wrap(self.atom())) + ")"
        return self.atom()

    def wrap(self, text):
        return text if re.fullmatch(r"\w+|'[^']*'", text) and not text[0].isdigit() else f"({text})"

    def space(self):
        return self.pick(["", " ", "\n", "  ", "\n  ", " \n", "x", "\n\n"])

    def tag(self, text):
        return "{%" + self.pick(["", "", "-", "+"]) + f" {text} " + self.pick(["", "", "-", "+"]) + "%}"

    def print(self, text):
        return "{{" + self.pick(["", "", "-"]) + f" {text} " + self.pick(["", "", "-"]) + "}}"

    def body(self, depth):
        return "".join(self.space() + self.statement(depth) + self.space() for _ in range(self.random.randint(1, 3)))

    def statement(self, depth):
        kind = self.random.random()
        e = lambda: self.expression(self.random.randint(0, 2))
        if depth == 0 or kind < 0.3:
            return self.print(self.pick([e(), "v", "ns.a", "v|string", "loop.index", "loop.last", "loop.index0 ~ loop.revindex", "x", "loop.previtem", "loop.nextitem", "loop.length"]))
        inner = lambda: self.body(depth - 1)
        if kind < 0.42:
            return self.tag(f"if {e()}") + inner() + self.pick(["", self.tag("else") + inner(), self.tag(f"elif {e()}") + inner()]) + self.tag("endif")
        if kind < 0.60:
            target = self.pick(["x", "x", "v", "k, x"])
            source = self.pick(["l", "w", "p", "d", "m", "s", "el", "missing", "d.items()", "d|dictsort", e(), "range(3)", "l|map('string')", "p|selectattr('c')"])
            test = self.pick(["", "", f" if {self.pick(['x', 'not x', 'x is string', 'ns.a', 'loop is defined', e()])}"])
            middle = self.pick(["", "", self.tag("if loop.index > 2") + self.tag("break") + self.tag("endif"), self.tag("if x") + self.tag("continue") + self.tag("endif")])
            return self.tag(f"for {target} in {source}{test}") + inner() + middle + inner() + self.pick(["", self.tag("else") + inner()]) + self.tag("endfor")
        if kind < 0.75:
            return self.tag(self.pick([f"set v = {e()}", f"set x = {e()}", f"set ns.a = {e()}", f"set s = {e()}", f"set v, x = {e()}, {e()}", f"set i = i + 1"]))
        if kind < 0.80:
            return self.tag(self.pick(["set v", "set v | upper", "set x | trim | length"])) + inner() + self.tag("endset")
        if kind < 0.86:
            return self.tag(f"macro q({self.pick(['', 'a', 'a, b=2', 'a, b=v', 'a=x'])})") + inner() + self.pick(["", "{{ a }}", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}", "{{ b }}"]) + self.tag("endmacro") + self.print(self.pick(["q()", "q(1)", "q(1, b=3)", "q(1, 2, 3)", "q(c=1)"]))
        if kind < 0.90:
            return self.tag(f"with v = {e()}, z = {e()}") + inner() + self.tag("endwith")
        if kind < 0.93:
            return self.tag('filter ' + self.pick(['upper', 'trim', 'indent(2)', 'replace("a", v)', 'length'])) + inner() + self.tag("endfilter")
        if kind < 0.95:
            return self.tag("call q(1)") + inner() + self.tag("endcall")
        if kind < 0.97:
            return self.tag("generation") + inner() + self.tag("endgeneration")
        return self.pick(["{# note #}", "{#- note -#}", "{#+ note +#}", "{% raw %} {{ raw }} {% endraw %}", "{%- raw -%} {% if %} {%- endraw +%}", self.tag("print 1, 2")])

    def template(self):
        if self.random.random() < 0.5:
            return self.print(self.expression(self.random.randint(1, 4)))
        return self.tag("set ns = namespace(a=1, b='q')") + self.body(2)


# Texts that hold an address, and errors that come of integers without bound or of a clock: no verdict.
NO_VERDICT = re.compile(r" at 0x[0-9a-f]+|<built-in|<generator|<bound method|<function|<reversed|<list_reverse|<dict_reverse|<itertools|<class |LoopContext|<Macro|<jinja")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/src/text/quire_render_template")
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    maker = Maker(arguments.seed)
    env = jinja_oracle.environment()
    templates = [maker.template() for _ in range(arguments.count)]
    text = "".join(json.dumps({"template": t, "variables": VARIABLES}) + "\n" for t in templates).encode()
    answers = subprocess.run([arguments.binary, "--cases"], input=text, stdout=subprocess.PIPE).stdout.decode("utf-8", "surrogatepass").split("\n")[:-1]
    if len(answers) != len(templates):
        print(f"{len(answers)} answers to {len(templates)} templates; the next one was:\n{templates[len(answers)]}")
        return 1
    failures = texts = skipped = 0
    for template, answer in zip(templates, answers):
        expected = jinja_oracle.render(env, template, copy.deepcopy(VARIABLES))  # |indent changes lists in place
        actual = json.loads(answer)
        if isinstance(actual, dict) and re.search("64 bits|too large|not supported|complex", actual["error"]) or \
                isinstance(expected, str) and NO_VERDICT.search(expected):
            skipped += 1
            continue
        if isinstance(expected, str) and isinstance(actual, dict) and re.search("cannot be sliced|slice indices", actual["error"]):
            skipped += 1
            continue
        texts += isinstance(expected, str)
        same = actual == expected if isinstance(expected, str) else isinstance(actual, dict)
        if not same:
            failures += 1
            if failures <= 20 or arguments.verbose:
                print(f"template: {template!r}\n  jinja2: {json.dumps(expected)[:400]}\n  quire:  {answer[:400]}")
    print(f"{len(templates)} templates, {texts} gave texts, {skipped} without verdict: {failures} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
