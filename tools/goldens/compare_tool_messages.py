#!/usr/bin/env python3
"""Checks how conversations with tools are made ready for chat templates (src/text/answer_messages.h).

    python compare_tool_messages.py BUILD/src/text/quire_prepare_messages TEMPLATE.jinja…
Sends conversations in the form of OpenAI's clients through the program, and looks at each prompt: jinja2 renders the same from what the
template was given; and tools, calls, results and thoughts are in it. Prints what is not, and the traits with --traits. Needs jinja2.
"""
import argparse
import json
import pathlib
import subprocess

import jinja_oracle

TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather.", "strict": None, "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "description": "Where"}}, "required": ["place"]}}},
    {"type": "function", "function": {"name": "now"}}]


def calls(content, *ids, **more):
    return {"role": "assistant", "content": content, "refusal": None, "audio": None, **more, "tool_calls": [
        {"id": i, "type": "function", "function": {"name": "get_weather", "arguments": '{"place": "K\\u00f6ln%d"}' % n}} for n, i in enumerate(ids)]}


def result(call_id, text):
    return {"role": "tool", "tool_call_id": call_id, "content": text}


ASK = {"role": "user", "content": "How is the weather?"}
ID, OTHER = "call_0123456789abcdefghijABCD", "call_zyxwv0123456789fghijABCD"
CASES = {  # name: (messages, tools, texts that the prompt must have)
    "tools": ([ASK], TOOLS, ["get_weather"]),
    "call and result": ([ASK, calls(None, ID), result(ID, "SUNNY")], TOOLS, ["get_weather", "Köln0", "SUNNY"]),
    "system, text with the call": ([{"role": "system", "content": "Be brief."}, ASK, calls("I look.", ID), result(ID, "SUNNY")], TOOLS,
                                   ["Be brief.", "get_weather", "Köln0", "SUNNY"]),
    "answered, next question": ([ASK, calls(None, ID), result(ID, "SUNNY"), {"role": "assistant", "content": "It is sunny.", "tool_calls": None},
                                 {"role": "user", "content": "And tomorrow?"}], TOOLS, ["Köln0", "SUNNY", "It is sunny.", "And tomorrow?"]),
    "two calls": ([ASK, calls(None, ID, OTHER), result(ID, "SUNNY"), result(OTHER, "RAINY")], TOOLS, ["Köln0", "SUNNY"]),
    "thoughts": ([ASK, calls(None, ID, reasoning_content="I must look."), result(ID, "SUNNY")], TOOLS, ["Köln0", "SUNNY"]),
    "no tools": ([{"role": "developer", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Hi there."}]}], None,
                 ["Be kind.", "Hi there."]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("templates", type=pathlib.Path, nargs="+")
    parser.add_argument("--traits", action="store_true")
    args = parser.parse_args()
    env, num_checked, num_different, num_failed, num_missing = jinja_oracle.environment(), 0, 0, 0, 0
    for path in args.templates:
        template = path.read_text(encoding="utf-8")
        run = subprocess.run([args.program, str(path)], capture_output=True, text=True, encoding="utf-8",
                             input="".join(json.dumps({"messages": m, "tools": t}) + "\n" for m, t, _ in CASES.values()))
        lines = [json.loads(line) for line in run.stdout.split("\n") if line]
        if len(lines) != len(CASES):
            print(f"{path.name}: {run.stderr[-300:]}")
            continue
        if args.traits:
            print(path.name, json.dumps({k: v for k, v in lines[0]["traits"].items() if v}))
        for (name, (_, _, texts)), line in zip(CASES.items(), lines):
            num_checked += 1
            if "prompt" not in line:
                num_failed += 1
                print(f"{path.name}: {name}: {line.get('render_error', line.get('error'))[:160]}")
                continue
            want = jinja_oracle.render(env, template, {
                "messages": line["messages"], "tools": line["tools"], "documents": None, "add_generation_prompt": True,
                "bos_token": "<s>", "eos_token": "</s>"})
            if want != line["prompt"]:
                num_different += 1
                print(f"{path.name}: {name}: jinja2 renders otherwise: {str(want)[-200:]!r}")
            missing = [t for t in texts if t not in line["prompt"] and t not in line["prompt"].encode().decode("unicode_escape", "replace")]
            if missing:
                num_missing += 1
                print(f"{path.name}: {name}: not in the prompt: {missing}")
    print(f"{num_checked} conversations, {num_different} differ from jinja2, {num_failed} cannot be rendered, {num_missing} lack something")


if __name__ == "__main__":
    main()
