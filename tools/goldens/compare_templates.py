#!/usr/bin/env python3
"""Compares `quire render` with jinja2, as transformers sets it up, over chat templates and a set of conversations.

    python compare_templates.py 'quire' TEMPLATE.jinja…          for instance models/templates/*.jinja of llama.cpp
    python compare_templates.py --dump conversations.jsonl       writes the conversations, to look at
    python compare_templates.py --expected - TEMPLATE.jinja…     prints what jinja2 renders
Runs `quire render TEMPLATE --now …` with a conversation a line. Equal means: the same text, or an error on both sides.
Prints each mismatch and a summary; exit code 1 if anything differs. Needs jinja2.
"""
import argparse
import json
import pathlib
import shlex
import subprocess
import sys

import jinja_oracle

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Current weather of a place.\nSays \"unknown\" if there is none.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "City and country, e.g. Köln, Germany"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "array", "items": {"type": "integer"}, "minItems": 1}}, "required": ["place"]}}}
PLAIN = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {
    "type": "object", "properties": {}}}}
BARE = {"name": "add", "description": "Adds <b> & 'c'", "parameters": {"type": "object", "properties": {
    "x": {"type": "number", "minimum": -1e-7, "maximum": 1e22}, "y": {"type": ["number", "null"], "default": None},
    "z": {"type": "object", "properties": {"deep": {"type": "boolean", "default": True}}}}, "required": ["x", "y"]}}


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, call_id="call12345"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = message("system", "You are a careful assistant.")
HELLO, HI = message("user", "Hello!"), message("assistant", "Hi. What can I do?")
ASK = message("user", "How is the weather in Köln and in Paris?")
ODD = message("user", "  {{ 7 * 7 }} {% if x %} <|im_end|> </s> [INST] \"quoted\" 'single' \\n \t\n\n  你好 🙂 ﷺ  \n")
DICT_CALL = message("assistant", "", tool_calls=[
    call("get_weather", {"place": "Köln", "days": [1, 2], "deep": {"a": None}})])
TEXT_CALL = message("assistant", None, tool_calls=[call("get_weather", '{"place": "Köln", "unit": "celsius"}')])
TWO_CALLS = message("assistant", "Let me look.", tool_calls=[
    call("get_weather", {"place": "Köln"}, "callaaaaa"),
    call("get_weather", {"place": "Paris", "x": 1.5}, "callbbbbb")])
RESULT = message("tool", '{"temperature": 21.5, "sky": "clear"}', name="get_weather", tool_call_id="call12345")
RESULT_A = message("tool", "21 °C", name="get_weather", tool_call_id="callaaaaa")
RESULT_B = message("tool", {"temperature": 19, "wind": [1, 2.0, -0.5]}, name="get_weather", tool_call_id="callbbbbb")
THOUGHT = message("assistant", "It is 4.",
                  reasoning_content="Two and two\nmake four.", thinking="Two and two\nmake four.")
INLINE = message("assistant", "<think>\nHm, 2 + 2.\n</think>\n\nIt is 4.")
PARTS = message("user", [{"type": "text", "text": "First part. "}, {"type": "text", "text": "Second part."}])

# name: the line that `quire render` gets; bos_token and eos_token are added to each
CASES = {
    "user": dict(messages=[HELLO]),
    "user, no generation prompt": dict(messages=[HELLO], add_generation_prompt=False),
    "system": dict(messages=[SYSTEM, HELLO]),
    "turns": dict(messages=[HELLO, HI, ASK]),
    "system and turns": dict(messages=[SYSTEM, HELLO, HI, ASK, HI, HELLO]),
    "ends with the assistant": dict(messages=[SYSTEM, HELLO, HI], add_generation_prompt=False),
    "odd text": dict(messages=[message("system", " \n spaced \n "), ODD, message("assistant", "  ok \n"), ODD]),
    "empty contents": dict(messages=[message("system", ""), message("user", ""), message("assistant", ""), HELLO]),
    "content parts": dict(messages=[SYSTEM, PARTS]),
    "parts everywhere": dict(messages=[message("system", [{"type": "text", "text": "Be brief."}]), PARTS,
                                       message("assistant", [{"type": "text", "text": "Fine."}]), PARTS]),
    "developer": dict(messages=[message("developer", "Answer in verse."), HELLO]),
    "tools": dict(messages=[ASK], tools=[WEATHER]),
    "tools and system": dict(messages=[SYSTEM, ASK], tools=[WEATHER, PLAIN]),
    "bare tool": dict(messages=[SYSTEM, ASK], tools=[BARE]),
    "no tools": dict(messages=[SYSTEM, ASK], tools=[]),
    "call with dict": dict(messages=[ASK, DICT_CALL, RESULT], tools=[WEATHER]),
    "call with text": dict(messages=[SYSTEM, ASK, TEXT_CALL, RESULT], tools=[WEATHER]),
    "call without tools": dict(messages=[SYSTEM, ASK, DICT_CALL, RESULT, HI, HELLO]),
    "two calls": dict(messages=[SYSTEM, ASK, TWO_CALLS, RESULT_A, RESULT_B], tools=[WEATHER, PLAIN]),
    "two calls, answered": dict(messages=[ASK, TWO_CALLS, RESULT_A, RESULT_A, HI, HELLO], tools=[WEATHER]),
    "pending call": dict(messages=[ASK, DICT_CALL], tools=[WEATHER], add_generation_prompt=False),
    "no call list": dict(messages=[ASK, message("assistant", "No.", tool_calls=[]), HELLO], tools=[WEATHER]),
    "reasoning": dict(messages=[HELLO, THOUGHT, ASK, THOUGHT, HELLO]),
    "reasoning last": dict(messages=[HELLO, THOUGHT], add_generation_prompt=False),
    "inline thoughts": dict(messages=[SYSTEM, HELLO, INLINE, ASK]),
    "reasoning with calls": dict(messages=[ASK, {**TWO_CALLS, "reasoning_content": "I need both."}, RESULT_A, RESULT_A],
                                 tools=[WEATHER]),
    "thinking off": dict(messages=[SYSTEM, HELLO], enable_thinking=False, thinking=False),
    "thinking on": dict(messages=[SYSTEM, HELLO, INLINE, ASK], enable_thinking=True, thinking=True),
    "effort": dict(messages=[SYSTEM, HELLO], reasoning_effort="high", tools=[WEATHER],
                   builtin_tools=["browser", "python"]),
    "dates": dict(messages=[HELLO], date_string="01 Jan 2025", current_date="2025-01-01"),
    "documents": dict(messages=[ASK], documents=[
        {"title": "Rain", "text": "It rains."}, {"title": "Sun", "text": "No."}]),
    "assistant first": dict(messages=[HI, HELLO]),
    "two users": dict(messages=[HELLO, ASK]),
    "two systems": dict(messages=[SYSTEM, SYSTEM, HELLO]),
    "system late": dict(messages=[HELLO, SYSTEM, ASK]),
    "tool first": dict(messages=[RESULT, HELLO]),
    "unknown role": dict(messages=[message("narrator", "Night fell."), HELLO]),
    "no content": dict(messages=[{"role": "user"}]),
    "null content": dict(messages=[message("user", None)]),
    "number as content": dict(messages=[message("user", 3)]),
    "no messages": dict(messages=[]),
    "only a system": dict(messages=[SYSTEM]),
    "nothing": dict(),
}


def lines():
    for name, case in CASES.items():
        yield name, {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", **case}


def expected(env, template, line):
    return jinja_oracle.render(env, template, {"tools": None, "documents": None, **line})


def actual(command, path):
    run = subprocess.run([*command, "render", str(path), "--now", jinja_oracle.NOW], capture_output=True, text=True,
                         input="".join(json.dumps(line) + "\n" for _, line in lines()), encoding="utf-8")
    results = [json.loads(line) for line in run.stdout.split("\n") if line]
    if len(results) != len(CASES):
        print(f"{path.name}: exit code {run.returncode}, {len(results)} lines for {len(CASES)}: {run.stderr[-500:]}")
        results += [None] * (len(CASES) - len(results))
    return results


def show(path, name, want, got):
    print(f"{path.name}: {name}")
    if isinstance(want, str) and isinstance(got, str):
        at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
        want, got = want[max(at - 40, 0):at + 60], got[max(at - 40, 0):at + 60]
        print(f"    at character {at}")
    print(f"    jinja2 {want!r}\n    quire  {got!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?")
    parser.add_argument("templates", type=pathlib.Path, nargs="*")
    parser.add_argument("--dump", type=pathlib.Path)
    parser.add_argument("--expected", action="store_true", help="print what jinja2 renders, run nothing")
    parser.add_argument("--show", type=int, default=3, help="mismatches to print for each template")
    args = parser.parse_args()
    if args.dump:
        args.dump.write_text("".join(json.dumps({"name": n, **line}, ensure_ascii=False) + "\n" for n, line in lines()))
        return
    env, num_wrong, num_errors = jinja_oracle.environment(), 0, 0
    for path in args.templates:
        template = path.read_text(encoding="utf-8")
        results = [None] * len(CASES) if args.expected else actual(shlex.split(args.command), path)
        shown = 0
        for (name, line), got in zip(lines(), results):
            want = expected(env, template, line)
            num_errors += isinstance(want, dict)
            if args.expected:
                print(f"=== {path.name}: {name}\n{want}")
            elif (want != got) if isinstance(want, str) else not (isinstance(got, dict) and "error" in got):
                num_wrong += 1
                shown += 1
                if shown <= args.show:
                    show(path, name, want, got)
    total = len(args.templates) * len(CASES)
    print(f"{len(args.templates)} templates, {total} texts ({num_errors} errors in jinja2), {num_wrong} mismatches")
    sys.exit(num_wrong != 0)


if __name__ == "__main__":
    main()
