#!/usr/bin/env python3
"""Makes tests/goldens/jinja_snippets.jsonl: small templates and what jinja2, as transformers sets it up, makes of them.

    python make_jinja_goldens.py
The first line is {"variables"}, which all get; a further line is {"template", "result"} or {"template", "error"}:
whitespace control, operators, filters, tests, string and dict methods, loops, macros, namespaces, Python's way to print
values, and errors, whose wording is jinja2's and no golden. strftime_now takes 2026-11-29T12:00:00 for now.
Needs jinja2 3.1.6.
"""
import json
import pathlib
import re

import jinja_oracle

ROOT = pathlib.Path(__file__).resolve().parents[2]
VARIABLES = {
    "name": "Ada", "text": "  some Text, with\n two lines  ", "n": 7, "x": 2.5, "yes": True, "no": False, "none": None,
    "empty": "", "items": [3, 1, 2], "words": ["pear", "Apple", "fig"], "d": {"b": 1, "a": [1, 2], "é": None},
    "people": [{"name": "Bo", "age": 30, "city": "Ulm"}, {"name": "Al", "age": 25, "city": "Rom"},
               {"name": "Cy", "age": 30, "city": "Ulm", "boss": True}],
    "html": "<a href=\"x\">'&'</a>", "uni": "ÄöÜ ß 你好 🙂", "messages": [{"role": "user", "content": "Hi"}],
}

# Templates, one a line; ¶ stands for a newline, → for a tab, ␍ for a carriage return.
WHITESPACE = r"""
a {%- if yes -%} b {%- endif -%} c
a{% if yes %}¶b{% endif %}¶c
{% for i in items %}¶{{ i }}¶{% endfor %}¶end
   {% set z = 1 %}   ¶{{ z }}
  {%- set z = 1 %}¶  {{ z }}
x¶   {% if yes %}y{% endif %}¶   {# comment #}¶  z
x¶   {%+ if yes %}y{% endif %}
a {#- comment -#} b
{{- name -}} ¶ {{ name }}¶
{{ name }}¶
{{ name }}¶¶
{% raw %}{{ not }} {% rendered %}{% endraw %}
{%- raw -%} {{ x }} {%- endraw -%} |
→{% if yes %}tab{% endif %}→|
{% if yes +%}¶keep{% endif %}
{{ "a" }}{{ "b" }} {{- "c" }}
{% for i in items -%}¶  {{ i }}{{ "," if not loop.last }}¶{%- endfor %}.
{{ '{{' }} }} {{ '%}' }}
␍¶a␍¶{{ name }}␍¶
"""
EXPRESSIONS = r"""
{{ 1 + 2 * 3 - 4 / 2 }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }}
{{ 7 / 2 }} {{ 6 / 2 }} {{ 7.0 // 2 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 1e16 }} {{ 1e22 }} {{ 123456789012345678901234567890 }}
{{ 0.1 + 0.2 }} {{ 1.0 }} {{ 100000000000000000.0 }} {{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }}
{{ 'a' ~ 1 ~ none ~ true }} {{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ [0] * 3 }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ 1 < 2 <= 2 < 3 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ true == 1 }} {{ 1 != 2 }} {{ none == false }}
{{ 1 < 'a' }}
{{ 'x' in 'xyz' }} {{ 4 not in items }} {{ 'b' in d }} {{ 'zz' in d }} {{ '' in 'a' }}
{{ yes and no }} {{ yes or no }} {{ not yes }} {{ 0 or 'left' }} {{ '' and 'x' }}| {{ name and n }}
{{ 'yes' if yes else 'no' }} {{ 'only' if no }}|
{{ ('a', 1) }} {{ (1,) }} {{ () }} {{ [1, 'a', none, true, 1.5] }} {{ {'a': 1, 'b': [none]} }} {{ {} }} {{ [] }}
{{ "it's" }} {{ ["it's", 'say "x"', 'both \' "'] }}
{{ ['tab\t', 'nl\n', 'é', '🙂', '\x00', '\u200b', '\\'] }}
{{ 'tab\tnl\n\u00e9\x41' }} {{ "\'" }} {{ 'a' 'b' }}
{{ true }} {{ True }} {{ false }} {{ none }} {{ None }} {{ yes }} {{ none is none }}
{{ items[0] }} {{ items[-1] }} {{ items[1:] }} {{ items[:-1] }} {{ items[::-1] }} {{ items[::2] }} {{ items[5:] }}
{{ name[0] }} {{ name[-1] }} {{ name[1:] }} {{ name[::-1] }} {{ uni[4:8] }} {{ uni[-1] }} {{ uni | length }}
{{ d.b }} {{ d['b'] }} {{ d.a[0] }} {{ d['é'] }} {{ people[1].name }} {{ people[0]['age'] }}
{{ d.missing }}| {{ missing }}| {{ d['missing'] }}| {{ items[10] }}|
{{ missing.attribute }}
{{ d.missing.more }}
{{ missing + 1 }}
{{ missing is defined }} {{ d.b is defined }} {{ missing | default('x') }} {{ missing ~ 'x' }} {{ 'a' in missing }}
{{ missing == none }} {{ missing == missing }} {{ not missing }} {{ missing or 'other' }}
{% for i in missing %}{{ i }}{% else %}empty{% endfor %}
{{ (1, 2)[0] }} {{ (1 if no else 2) }} {{ -n }} {{ +n }} {{ - -n }}
{{ n.real }}
{{ items.0 }} {{ items.1 }}
{{ 1 if no else 2 if no else 3 }} {{ (yes or no) and no }} {{ yes or no and no }} {{ not no and no }}
{{ 'a' if missing else 'b' }} {{ 'é' == 'é' }} {{ 'a' == "a" }}
{{ n is divisibleby 7 and x > 2 }} {{ 5 is odd }} {{ 1 in [1, 2] and 3 not in [1, 2] }}
{{ 10 ** 20 }} {{ 10 ** 20 // 3 }} {{ 5 // 0 }}
{{ 5 / 0 }}
{{ 5 % 0 }}
{{ 9007199254740993 }} {{ 1e308 * 10 }} {{ -1e308 * 10 }} {{ 3.0e-5 }} {{ 0.0001 }} {{ 123456.789 }} {{ 1e15 }}
{{ 5e-324 }}
{{ items == [3, 1, 2] }} {{ {'a': 1} == {'a': 1.0} }} {{ [1, 2] < [1, 3] }} {{ (1, 2) == [1, 2] }}
{{ '%s is %d years, %.2f' % ('Bo', 30, 1.005) }} {{ '%5s|%-5s|%05d|%x' % ('a', 'b', 42, 255) }} {{ '100%%' % () }}
{{ "a¶b" }}
"""
FILTERS = r"""
{{ name | upper }} {{ name | lower }} {{ 'hello wORLD it\'s' | title }} {{ 'hELLO' | capitalize }} {{ uni | upper }}
{{ text | trim }}| {{ 'xxaxx' | trim('x') }} {{ text | length }} {{ text | wordcount }} {{ items | count }}
{{ items | join(', ') }} {{ items | join }} {{ people | join(', ', attribute='name') }} {{ [1, none, 'a'] | join('-') }}
{{ items | sort }} {{ items | sort(reverse=true) }} {{ words | sort }} {{ words | sort(case_sensitive=true) }}
{{ people | sort(attribute='age') | map(attribute='name') | join(' ') }}
{{ people | sort(attribute='age,name') | first }}
{{ items | first }} {{ items | last }} {{ items | min }} {{ items | max }} {{ items | sum }} {{ [] | first }}|
{{ people | sum(attribute='age') }} {{ people | map(attribute='age') | max }} {{ [] | sum }} {{ [] | max }}|
{{ items | reverse | list }} {{ name | reverse }} {{ 'abc' | list }} {{ d | list }} {{ (1, 2) | list }}
{{ [1, 1, 2, 1] | unique | list }} {{ ['a', 'A', 'b'] | unique | list }}
{{ people | map(attribute='city') | unique | list }}
{{ people | selectattr('boss') | map(attribute='name') | list }}
{{ people | selectattr('boss', 'defined') | list | length }}
{{ people | selectattr('age', 'equalto', 30) | map(attribute='name') | list }}
{{ people | rejectattr('age', '==', 30) | list | length }}
{{ people | selectattr('age', 'gt', 26) | list | length }}
{{ people | selectattr('city', 'in', ['Rom']) | list | length }}
{{ [0, 1, '', 'a', none] | select | list }} {{ [1, 2, 3, 4] | select('odd') | list }}
{{ [1, 2, 3] | reject('odd') | list }}
{{ [1, 2, 3] | map('string') | join('+') }} {{ words | map('upper') | list }} {{ words | map('length') | list }}
{{ people | map(attribute='boss', default='?') | list }} {{ ['1', '2'] | map('int') | sum }}
{{ people | groupby('city') | length }}
{% for city, group in people | groupby('city') %}{{ city }}: {{ group | map(attribute='name') | join(',') }}; {% endfor %}
{% for g in people | groupby('age') %}{{ g.grouper }}={{ g.list | length }} {% endfor %}
{{ d | dictsort }} {{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }}
{{ d | items | list }} {% for k, v in d | items %}{{ k }}={{ v }} {% endfor %}
{{ missing | items | list }}
{{ none | default('x') }} {{ none | default('x', true) }} {{ '' | default('x', boolean=true) }}
{{ no | default('x', true) }}
{{ '3' | int + 1 }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ '2.9' | int }} {{ 2.9 | int }} {{ '0x1f' | int(0, 16) }}
{{ '1.5' | float }} {{ 'a' | float }}
{{ 3 | string + '!' }} {{ 1.0 | string }} {{ none | string }} {{ [1] | string }} {{ true | string }}
{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.567 | round(2) }} {{ 2.1 | round(0, 'ceil') }}
{{ 2.9 | round(method='floor') | int }} {{ 1234.5 | round(-2) }}
{{ -3 | abs }} {{ (-3) | abs }} {{ 5 | abs }} {{ -2.5 | abs }}
{{ 'a-b-c' | replace('-', '+') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 'aXbX' | replace('X', '') }}
{{ html | escape }} {{ html | e }} {{ html | safe }} {{ html | forceescape }} {{ html }}
{{ '<b>' | escape | string | length }}
{{ 'a b&c/ü' | urlencode }} {{ {'a': 'b c', 'd': 1} | urlencode }}
{{ 'one two three four' | truncate(10) }} {{ 'one two three four' | truncate(10, true) }} {{ 'one' | truncate(10) }}
{{ 'a¶b¶¶c' | indent }}| {{ 'a¶b' | indent(2, true) }}| {{ 'a¶¶b' | indent(2, blank=true) }}| {{ 'a¶b' | indent('> ') }}
{{ 'x' | center(7) }}| {{ '%s-%s' | format('a', 1) }} {{ 'abc' | batch(2) | list }} {{ [1, 2, 3] | batch(2, 0) | list }}
{{ [1, 2, 3, 4, 5] | slice(2) | list }}
{{ d | attr('b') }}|
{{ 'a,b' | striptags }} {{ '<p>a <b>c</b></p>' | striptags }} {{ 1000000 | filesizeformat }}
{{ 'some long line to wrap' | wordwrap(10) }}
{{ d | tojson }} {{ items | tojson }} {{ 'é"<>&\'¶🙂' | tojson }} {{ none | tojson }} {{ true | tojson }}
{{ 1.0 | tojson }} {{ 1e22 | tojson }} {{ 1e-7 | tojson }}
{{ d | tojson(indent=2) }} {{ {} | tojson(indent=2) }} {{ [] | tojson(indent=4) }} {{ {'a': []} | tojson(indent=1) }}
{{ 'é🙂' | tojson(ensure_ascii=true) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}
{{ d | tojson(separators=(',', ':')) }}
{{ {1: 2, true: 3, none: 4} | tojson }} {{ (1, 2) | tojson }} {{ '\x00\x1f\x7f\u2028' | tojson }}
{{ missing | tojson }}
{{ items | map('upper') | list }}
{{ items | nosuchfilter }}
{{ name | upper | lower | title | replace('A', 'O') ~ '!' }}
{{ (name ~ '-x') | upper }} {{ name ~ '-x' | upper }} {{ -1 | abs }} {{ not items | length == 3 }}
{{ [[1, 2], [3]] | sum(start=[]) }} {{ ['a', 'b'] | join(' ') | trim | length }} {{ range(5) | list }}
{{ range(1, 10, 3) | list }}
{{ [{'a': {'b': 1}}, {'a': {'b': 2}}] | map(attribute='a.b') | list }} {{ [[1, 2], [3, 4]] | map('first') | list }}
{{ words | xmlattr }}
{{ {'a': 1, 'b': none, 'c': 'x"y'} | xmlattr }} {{ 'abc' | first }} {{ 'abc' | last }} {{ {'a': 1} | first }}
{{ 5 | pprint }}
"""
TESTS = r"""
{{ 1 is odd }} {{ 2 is even }} {{ 6 is divisibleby(3) }} {{ 6 is divisibleby 4 }} {{ none is none }}
{{ name is string }} {{ n is number }} {{ x is float }} {{ n is integer }}
{{ yes is boolean }} {{ yes is true }} {{ no is false }} {{ 1 is true }} {{ yes is number }} {{ yes is integer }}
{{ d is mapping }} {{ items is sequence }} {{ items is iterable }} {{ name is iterable }} {{ name is sequence }}
{{ n is iterable }}
{{ name is defined }} {{ missing is undefined }} {{ missing is not defined }} {{ name is not string }}
{{ items is not mapping }} {{ d is sequence }}
{{ 1 is eq 1 }} {{ 1 is ne(2) }} {{ 1 is lt 2 }} {{ 2 is ge 2 }} {{ 1 is in [1, 2] }} {{ 'a' is in 'abc' }}
{{ 3 is not in items }} {{ 1 is sameas 1 }} {{ 'ab' is lower }} {{ 'AB' is upper }}
{{ range is callable }} {{ name is callable }} {{ 'tojson' is filter }} {{ 'odd' is test }} {{ 'zzz' is filter }}
{{ name is escaped }} {{ 1 is nosuchtest }}
{{ 5 is greaterthan 3 }} {{ 5 is lessthan 3 }} {{ 5 is equalto 5 }} {{ 'x' is == 'x' }} {{ n is > 3 }}
"""
METHODS = r"""
{{ name.upper() }} {{ name.lower() }} {{ 'a b'.title() }} {{ 'aB'.swapcase() }} {{ 'ab'.capitalize() }}
{{ 'Straße'.upper() }} {{ 'ẞ'.lower() }} {{ 'ß'.casefold() }}
{{ text.strip() }}| {{ text.lstrip() }}| {{ text.rstrip() }}| {{ 'xxaxx'.strip('x') }} {{ 'abcx'.rstrip('xc') }}
{{ '¶ a'.lstrip('¶') }}|
{{ 'a,b,c'.split(',') }} {{ 'a b  c'.split() }} {{ 'a b  c'.split(' ') }} {{ 'a,b,c'.split(',', 1) }}
{{ 'a,b,c'.rsplit(',', 1) }} {{ 'a¶b␍¶c'.splitlines() }} {{ ''.split(',') }} {{ ''.split() }} {{ ' a '.split(none, 1) }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.find('c') }}
{{ 'abc'.find('z') }} {{ 'abcabc'.rfind('b') }} {{ 'abcabc'.count('b') }} {{ 'abc'.index('b') }}
{{ 'abc'.startswith('b', 1) }}
{{ 'abc'.index('z') }}
{{ 'a-b'.replace('-', '+') }} {{ 'aaa'.replace('a', 'b', 1) }} {{ '-'.join(['a', 'b']) }} {{ 'abc'.partition('b') }}
{{ 'abcb'.rpartition('b') }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }}
{{ '{} is {}'.format('a', 1) }} {{ '{0}{1}{0}'.format('a', 'b') }}
{{ '{x:>5}|{y:<4}|{z:^5}|{w:05.1f}'.format(x='a', y='b', z='c', w=2.25) }} {{ '{:,}'.format(1234567) }}
{{ '{{}}'.format() }}
{{ 'abc'.isalpha() }} {{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'ab'.islower() }}
{{ 'AB'.isupper() }} {{ 'Ab'.istitle() }} {{ '١٢'.isdigit() }} {{ '½'.isnumeric() }} {{ ''.isalpha() }}
{{ 'a'.zfill(3) }} {{ 'a'.ljust(3, '.') }} {{ 'a'.rjust(3, '.') }} {{ 'a'.center(4, '.') }} {{ 'a→b'.expandtabs(4) }}
{{ 'abc'.encode() }}
{{ d.items() | list }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.get('b') }} {{ d.get('zz') }}
{{ d.get('zz', 5) }} {{ d.keys() }} {{ d.items() }}
{% for k, v in d.items() %}{{ k }}:{{ v }};{% endfor %} {% for k in d %}{{ k }} {% endfor %}
{{ items.append(4) }}
{{ d.update({'x': 1}) }}
{{ d.pop('b') }}
{{ items.index(1) }} {{ items.count(1) }} {{ items.copy() }} {{ 'abc'.nosuch() }}
{{ name.__class__ }}
{{ ''.__class__.__mro__ }}
{{ name.upper.__func__ }}|
{{ (1).bit_length() }} {{ 2.0.is_integer() }} {{ (5).real }}
{{ d.setdefault('b', 2) }}
{{ namespace(a=1).a }} {{ dict(a=1, b=2) }} {{ dict([('a', 1)]).a }} {{ dict({'z': 1}, y=2) | tojson }}
{{ range(3) }} {{ range(3) | list }} {{ range(100001) | list | length }}
{{ lipsum is defined }} {{ cycler('a', 'b').next() }} {% set j = joiner(',') %}{% for i in items %}{{ j() }}{{ i }}{% endfor %}
{{ strftime_now('%Y-%m-%d %H:%M:%S') }} {{ strftime_now('%d %b %Y') }} {{ strftime_now('%A, %B %d, %j %y %I %p %%') }}
{{ raise_exception('stop ' ~ name) }}
"""
STATEMENTS = r"""
{% for i in items %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}
{% for i in items %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}
{% for i in items %}{{ loop.previtem is defined }} {{ loop.cycle('a', 'b') }} {{ loop.changed(i > 1) }} {{ loop.depth }};{% endfor %}
{% for i in items if i > 1 %}{{ loop.index }}:{{ i }} {% else %}none{% endfor %}
{% for i in items if i > 9 %}{{ i }}{% else %}none{% endfor %}
{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}
{% for i in items %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endfor %}
{% for i in range(3) %}{% for j in range(2) %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ loop.index }};{% endfor %}
{% for p in people recursive %}{{ p.name }}{% if p.kids %}({{ loop(p.kids) }}){% endif %}{% endfor %}
{% set v = 1 %}{% for i in items %}{% set v = i %}{{ v }}{% endfor %}{{ v }}
{% set ns = namespace(v=1, found=false) %}{% for i in items %}{% set ns.v = ns.v + i %}{% endfor %}{{ ns.v }} {{ ns.found }} {{ ns.zz }}|
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}
{% set block %}x{{ name }}y{% endset %}{{ block }}|{{ block | length }}{% set up | upper %}abc{% endset %}{{ up }}
{% if no %}a{% elif n == 7 %}b{% else %}c{% endif %}{% if items %}t{% endif %}{% if empty %}t{% else %}f{% endif %}
{% if not missing %}u{% endif %}{% if d.b == 1 and 'a' in d %}ok{% endif %}{% if {} or [] or 0 or '' %}x{% else %}falsy{% endif %}
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c='z') }} {{ m(a='q') }} {{ m() }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }} {{ m.name }} {{ m.arguments }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, z=2) }}
{% macro rec(k) %}{{ k }}{% if k > 0 %}{{ rec(k - 1) }}{% endif %}{% endmacro %}{{ rec(5) }}
{% macro box() %}[{{ caller() }}]{% endmacro %}{% call box() %}in{{ name }}{% endcall %}
{% macro each(l) %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(i) each(items) %}<{{ i }}>{% endcall %}
{% macro m() %}  x  {% endmacro %}{{ m() | trim }}|{{ (m() ~ 'y') | length }}{% set r = m() %}{{ r }}{{ 'x' in r }}
{% set outer = 1 %}{% macro m() %}{{ outer }}{{ name }}{% endmacro %}{{ m() }}
{% if yes %}{% set inner = 5 %}{% endif %}{{ inner }}{% if no %}{% set never = 5 %}{% endif %}{{ never }}|
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}|
{% filter upper %}abc {{ name }}{% endfilter %}
{% generation %}by the assistant{% endgeneration %}{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}
{% do items.append(1) %}
{% nosuchtag %}
{% if yes %}unclosed
{{ unclosed
{% for i in 5 %}{{ i }}{% endfor %}
{% for a, b in [1, 2] %}{{ a }}{% endfor %}
{% for k in none %}{% endfor %}
{% for c in 'aé🙂' %}{{ c }}.{% endfor %}{% for k in {'z': 1, 'y': 2} %}{{ k }}{% endfor %}
{% set x = missing %}{{ x is defined }}{% set d2 = dict(d, c=3) %}{{ d2.c }}{{ d.c }}|
{% set l = [] %}{% set l = l + [1] %}{% set l = l + [{'a': l}] %}{{ l }}{{ l[1].a[0] }}
{% set s = messages[0]['content'] if messages[0]['role'] == 'system' else 'default' %}{{ s }}{% set loop_messages = messages[1:] %}{{ loop_messages }}
{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{{ '[INST] ' + m['content'] | trim + ' [/INST]' }}{% endfor %}
{% set content = messages[0].content %}{% if '</think>' in content %}{{ content.split('</think>')[-1].lstrip('¶') }}{% else %}{{ content }}{% endif %}
{{ messages[-1].role }} {{ messages | length }} {{ messages[0].tool_calls is defined }} {{ messages[0].get('content', '') }} {{ (messages | last).role }}
{%- for m in messages[::-1] %}{% set index = (messages | length - 1) - loop.index0 %}{{ index }}{{ m.role }}{% endfor %}
{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{{ ns.last }}
{% import 'x' as y %}
{% include 'x' %}
{% extends 'x' %}
{% block b %}inside{% endblock %}
{% autoescape true %}{{ html }}{% endautoescape %}
{{ self }}
{{ loop }}|
{{ caller }}|
{{ varargs }}|
{{ items | map('nosuch') | list }}
"""


def templates():
    for group in (WHITESPACE, STATEMENTS):
        yield from group.strip("\n").split("\n")
    for group in (EXPRESSIONS, FILTERS, TESTS, METHODS):  # many of one kind on a line: each becomes a template
        for line in group.strip("\n").split("\n"):
            yield from [line] if "{%" in line else re.split(r"(?:(?<=\}\})|(?<=\}\}\|)) (?=\{\{)", line)


def plain(template):
    return template.replace("¶", "\n").replace("→", "\t").replace("␍", "\r")


def main():
    env, lines, num_errors = jinja_oracle.environment(), [], 0
    for template in map(plain, templates()):
        result = jinja_oracle.render(env, template, VARIABLES)
        line = {"template": template, **({"result": result} if isinstance(result, str) else result)}
        num_errors += "error" in line
        lines.append(json.dumps(line, ensure_ascii=False))
    path = ROOT / "tests/goldens/jinja_snippets.jsonl"
    first = json.dumps({"variables": VARIABLES}, ensure_ascii=False)
    path.write_text("\n".join([first, *lines]) + "\n", encoding="utf-8")
    print(f"{len(lines)} templates, {num_errors} errors")


if __name__ == "__main__":
    main()
