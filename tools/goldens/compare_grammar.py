"""Compares masks of benchmarks/grammar_bench with those of xgrammar, and times xgrammar on the same walks.

usage: compare_grammar.py TOKENIZER_JSON CASES_JSONL MASKS_FILE   (MASKS_FILE: what grammar_bench wrote for both)
Needs PyPI xgrammar and transformers. Prints for each case how many masks are equal, and the first tokens that only one
of the two allows.
"""
import json
import sys
import time

import numpy as np
import torch
import transformers
import xgrammar


def compile_case(compiler, case):
    if case["kind"] == "schema":
        compact = bool(case.get("compact"))
        separators = (",", ":") if compact else None
        return compiler.compile_json_schema(case["source"], any_whitespace=not compact, separators=separators)
    if case["kind"] == "regex":
        return compiler.compile_regex(case["source"])
    if case["kind"] == "ebnf":
        return compiler.compile_grammar(case["source"])
    return compiler.compile_builtin_json_grammar()


def main():
    tokenizer_path, cases_path, masks_path = sys.argv[1:4]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=tokenizer_path)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
    cases = {c["name"]: c for c in map(json.loads, open(cases_path))}
    data = open(masks_path, "rb").read()
    position = 0
    every = []
    while position < len(data):
        end = data.index(b"\n", position)
        header = json.loads(data[position:end])
        position = end + 1
        tokens, words = header["tokens"], header["words"]
        ours = []
        for _ in range(len(tokens) + 1):
            ours.append(np.frombuffer(data, dtype=np.uint32, count=words, offset=position))
            position += 4 * words
            if data[position : position + 2] == b'{"' and len(ours) <= len(tokens):
                break
        case = cases[header["name"]]
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        begin = time.perf_counter()
        try:
            grammar = compile_case(compiler, case)
        except Exception as error:
            print(f"{case['name']:<20} xgrammar refuses: {str(error)[:100]}")
            continue
        compile_ms = (time.perf_counter() - begin) * 1e3
        times, equal, notes = [], 0, []
        for repeat in range(6):
            matcher = xgrammar.GrammarMatcher(grammar)
            mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)
            for i, our in enumerate(ours):
                begin = time.perf_counter()
                matcher.fill_next_token_bitmask(mask)
                if repeat > 0:
                    times.append((time.perf_counter() - begin) * 1e6)
                if repeat == 0:
                    theirs = mask.numpy().view(np.uint32)[0][:words]
                    difference = np.unpackbits((our[: len(theirs)] ^ theirs).view(np.uint8), bitorder="little")
                    ids = [t for t in np.nonzero(difference)[0].tolist() if t not in tokenizer.added_tokens_decoder]
                    equal += not ids
                    if ids and len(notes) < 3:
                        sides = [
                            ("ours" if our[t // 32] >> (t % 32) & 1 else "theirs") + ":" + repr(tokenizer.decode([t]))
                            for t in ids[:6]
                        ]
                        notes.append(f"    after {tokenizer.decode(tokens[:i])!r}: {len(ids)} differ, {' '.join(sides)}")
                if i < len(tokens) and not matcher.accept_token(tokens[i]):
                    notes.append(f"    xgrammar stops at {tokenizer.decode(tokens[: i + 1])!r}")
                    break
        every += times
        print(
            f"{case['name']:<20} equal {equal}/{len(ours)}  compile {compile_ms:.1f} ms  mask median"
            f" {np.median(times):.1f} p99 {np.percentile(times, 99):.1f} max {max(times):.1f} us"
        )
        print("\n".join(notes), end="\n" if notes else "")
    print(f"xgrammar, all: median {np.median(every):.1f} p99 {np.percentile(every, 99):.1f} max {max(every):.1f} us")


if __name__ == "__main__":
    main()
