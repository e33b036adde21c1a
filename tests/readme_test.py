#!/usr/bin/env python3
"""Runs the quire commands that README.md shows, so that none of them goes stale, and checks that the files it names exist.

Usage: readme_test.py PATH/TO/quire. Needs the default model in the cache folder ($QUIRE_TEST_MODEL names it); skipped without (77).
"""
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Flags that make a command of the README short; they change nothing about how it is parsed.
SHORT = {"generate": ["--max-tokens", "4"], "chat": ["--max-tokens", "4"], "bench": ["--repeats", "1"]}


def commands(text):
    """The words of each command that is quire or curl, and what is echoed into it."""
    for block in re.findall(r"```sh\n(.*?)```", text, re.S):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            piped = ""
            if words[:1] == ["echo"] and words[2:3] == ["|"]:
                piped, words = words[1] + "\n", words[3:]
            if words and words[0].endswith("/quire"):
                yield words[1:], piped
            elif words and words[0] == "curl":
                yield words, piped


def serve(quire, words, requests, environment):
    """Runs `quire serve` on a free port, and what the README asks of it; gives what went wrong."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([quire, *words, "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    failures = []
    try:
        for _ in range(600):
            ready = subprocess.run(["curl", "-sf", f"http://127.0.0.1:{port}/ready"], stdout=subprocess.DEVNULL)
            if ready.returncode == 0 or server.poll() is not None:
                break
            time.sleep(0.1)
        for request in requests:
            command = ["curl", "-sSf", *(word.replace(":8000", f":{port}") for word in request[1:])]
            result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            print(f"{result.returncode} {' '.join(request)}")
            if result.returncode != 0 or not result.stdout:
                failures.append(f"{' '.join(request)} gave {result.stdout.decode()[-500:]}")
    finally:
        server.terminate()
        told = server.communicate(timeout=60)[0]
    if server.returncode != 0:
        failures.append(f"{' '.join(words)} exited with {server.returncode}: {told.decode()[-500:]}")
    return failures


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
    requests = [words for words, _ in found if words[0] == "curl"]
    for words, piped in found:
        if words[0] == "curl":
            continue
        if words[0] == "serve":
            failures += serve(sys.argv[1], words, requests, environment)
            continue
        command = [sys.argv[1], *words, *SHORT.get(words[0], [])]
        result = subprocess.run(command, input=piped.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        print(f"{result.returncode} {' '.join(words)}")
        if piped and not result.stdout:
            failures.append(f"{' '.join(words)} gave nothing")
        if result.returncode != 0:
            failures.append(f"{' '.join(words)} exited with {result.returncode}: {result.stdout.decode()[-500:]}")
    if len(found) < 4:
        failures.append(f"only {len(found)} commands found in the README")
    named = {words[0] for words, _ in found}
    failures += [f"no example of quire {name} found in the README" for name in ("generate", "serve", "tokenize", "render") if name not in named]
    print("\n".join(failures))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
