#!/usr/bin/env python3
"""Runs the quire commands that README.md shows, so that none of them goes stale, and checks that the files it names exist.

Usage: readme_test.py PATH/TO/quire. Needs the default model in the cache folder ($QUIRE_TEST_MODEL names it); skipped without (77).
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Flags that make a command of the README short; they change nothing about how it is parsed.
SHORT = {"generate": ["--max-tokens", "4"], "chat": ["--max-tokens", "4"], "bench": ["--repeats", "1"]}


def commands(text):
    for block in re.findall(r"```sh\n(.*?)```", text, re.S):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0].endswith("/quire"):
                yield words[1:]


def main():
    model = os.environ.get("QUIRE_TEST_MODEL")
    if not model:
        print("skipped: QUIRE_TEST_MODEL names no model")
        sys.exit(77)
    text = (ROOT / "README.md").read_text() + (ROOT / "ARCHITECTURE.md").read_text()
    failures = [f"README or ARCHITECTURE links to {link}, which does not exist"
                for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (ROOT / link).exists()]
    environment = dict(os.environ, QUIRE_CACHE=str(pathlib.Path(model).parent))
    found = list(commands(text))
    for words in found:
        command = [sys.argv[1], *words, *SHORT.get(words[0], [])]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        print(f"{result.returncode} {' '.join(words)}")
        if result.returncode != 0:
            failures.append(f"{' '.join(words)} exited with {result.returncode}: {result.stdout.decode()[-500:]}")
    if len(found) < 4:
        failures.append(f"only {len(found)} commands found in the README")
    print("\n".join(failures))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
