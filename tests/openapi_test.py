#!/usr/bin/env python3
"""The document at /openapi.json against the server that serves it: schemathesis makes requests that the document allows and requests that
it forbids, and looks at each answer.

Usage: openapi_test.py PATH/TO/quire PACKAGES_FOLDER [--seed N] [--max-examples N]. Serves a tiny model of the goldens, so it needs no download
but schemathesis itself (tests/openapi_requirements.txt), which is installed into PACKAGES_FOLDER the first time; exits with 77 without it.

What must hold: no answer is a 5xx; every status, content type and body is one that the document tells of; what the document forbids is refused.
Not asked: that all the document allows is accepted. Ids, lengths and counts depend on the model, which no schema knows.
"""
import argparse
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,negative_data_rejection"


def install(folder):
    requirements = HERE / "openapi_requirements.txt"
    mark = folder / "installed.txt"
    if mark.exists() and mark.read_text() == requirements.read_text():
        return
    folder.mkdir(parents=True, exist_ok=True)
    result = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder), "-r",
                             str(requirements)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        print("skipped: schemathesis cannot be installed:", result.stdout.decode()[-2000:])
        sys.exit(77)
    mark.write_text(requirements.read_text())


def wait_until_ready(process, url):
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url + "/ready", timeout=10):
                return
        except OSError:
            time.sleep(0.05)
    sys.exit("the server does not start")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("quire")
    parser.add_argument("packages", type=pathlib.Path)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--max-examples", default="10")
    options = parser.parse_args()
    install(options.packages)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    model = HERE / "goldens" / "models" / "llama"
    server = subprocess.Popen([options.quire, "serve", str(model), "--port", str(port), "--threads", "1", "--log-level", "error"])
    try:
        wait_until_ready(server, url)
        with tempfile.TemporaryDirectory() as folder:  # it keeps notes where it runs
            result = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run", url + "/openapi.json", "--checks", CHECKS, "--phases",
                                     "examples,coverage,fuzzing", "--max-examples", options.max_examples, "--seed", options.seed,
                                     "--generation-database", "none", "--no-shrink", "--suppress-health-check", "all", "--request-timeout",
                                     "60", "--no-color"],
                                    cwd=folder, env={**os.environ, "PYTHONPATH": str(options.packages.resolve())})
        server.terminate()
        code = server.wait(timeout=60)
        if code != 0:
            sys.exit(f"the server ended with {code}")
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()
