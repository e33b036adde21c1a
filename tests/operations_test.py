#!/usr/bin/env python3
"""`quire serve` as those who run it see it: start, keys, browsers, hostile clients, metrics, logs, signals.

Usage: operations_test.py PATH/TO/quire PACKAGES_FOLDER [unittest arguments]. The default model is taken from
$QUIRE_TEST_MODEL; exits with 77 without. The parser of Prometheus' own client is installed into PACKAGES_FOLDER the first
time; the test that needs it is skipped without.
"""
import fcntl
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import commands_test

QUIRE = ""
MODEL = os.environ.get("QUIRE_TEST_MODEL", "")
PACKAGES = pathlib.Path()
HERE = pathlib.Path(__file__).resolve().parent
KEY = {"Authorization": "Bearer sk-first"}


def install_parser():
    requirements = HERE / "operations_requirements.txt"
    if not (PACKAGES / "prometheus_client").exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(PACKAGES), "-r", str(requirements)],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    sys.path.insert(0, str(PACKAGES))


class Server:
    def __init__(self, *flags, waits=True, model=None, context="2048"):
        self.folder = tempfile.TemporaryDirectory()
        self.keys = pathlib.Path(self.folder.name) / "keys"
        self.keys.write_text("first sk-first\nsecond sk-second\n")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = open(pathlib.Path(self.folder.name) / "log", "w+b")
        self.process = subprocess.Popen([QUIRE, "serve", model or MODEL, "--port", str(self.port), "--max-model-len", context, "--api-key-file",
                                         str(self.keys), *flags], stdout=self.log, stderr=subprocess.STDOUT)
        self.states = []  # of /ready, until it was ready
        deadline = time.monotonic() + 120
        while waits:
            try:
                status, body, _ = self.request("GET", "/ready")
                self.states.append((status, body))
                if status == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError("the server does not start:\n" + self.text_of_log())
            time.sleep(0.02)

    def text_of_log(self):
        with open(self.log.name, "rb") as file:
            return file.read().decode(errors="replace")

    def wait_for_log(self, pattern):
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            found = re.search(pattern, self.text_of_log())
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in the log:\n{self.text_of_log()[-3000:]}")

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            if isinstance(body, dict):
                body = json.dumps(body).encode()
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    def post(self, path, body, headers=KEY):
        return self.request("POST", path, body, headers)

    def stream(self, **fields):
        """An open stream of events; read lines from it, or close it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = {"prompt": "Once upon a time", "stream": True, "max_tokens": 64, "ignore_eos": True, **fields}
        connection.request("POST", "/v1/completions", json.dumps(body), KEY)
        answer = connection.getresponse()
        return connection, answer

    def raw(self, data):
        """All that the server sends until it closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            try:
                connection.sendall(data)
            except OSError:
                pass  # closed while we still sent
            received = b""
            try:
                while True:
                    piece = connection.recv(65536)
                    if not piece:
                        break
                    received += piece
            except ConnectionResetError:
                pass
            return received

    def metrics(self):
        status, body, headers = self.request("GET", "/metrics")
        assert status == 200 and headers["Content-Type"].startswith("text/plain"), (status, headers)
        values = {}
        for line in body.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values, body.decode()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(timeout=60)
        assert code == 0, f"the server ended with {code}:\n{self.text_of_log()[-3000:]}"


SERVER = None


def setUpModule():
    global SERVER
    SERVER = Server("--swap-space", "64MiB")


def tearDownModule():
    SERVER.stop()


def metric(values, name, **labels):
    """The sum of the series of that name that have the labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(value for series, value in values.items()
               if (series == name or series.startswith(name + "{")) and all(label in series for label in wanted))


class StartTest(unittest.TestCase):
    def test_listens_while_it_loads(self):
        not_yet = [body for status, body in SERVER.states if status == 503]
        self.assertEqual({status for status, _ in SERVER.states} - {200, 503}, set())
        for body in not_yet:
            self.assertIn(b"being loaded", body)

    def test_what_is_wrong_is_said(self):
        for flags, code, word in [(["--port", str(SERVER.port)], 1, "in use"),
                                  (["--tls-cert", MODEL, "--tls-key", MODEL, "--port", "0"], 1, "certificate"),
                                  (["--tls-cert", MODEL, "--port", "0"], 2, "--tls-key"),
                                  (["--allowed-origins", "example", "--port", "0"], 2, "origin"),
                                  (["--host", "no.such.host.invalid", "--port", "0"], 1, "--host")]:
            result = subprocess.run([QUIRE, "serve", MODEL, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
            self.assertEqual(result.returncode, code, result.stdout)
            self.assertIn(word, result.stdout.decode())

    def test_models(self):
        status, body, _ = SERVER.request("GET", "/v1/models", headers=KEY)
        self.assertEqual(status, 200)
        name = json.loads(body)["data"][0]["id"]
        self.assertEqual(SERVER.request("GET", "/v1/models/" + name, headers=KEY)[0], 200)
        status, body, _ = SERVER.request("GET", "/v1/models/other", headers=KEY)
        self.assertEqual((status, json.loads(body)["error"]["code"]), (404, "model_not_found"))

    def test_every_documented_route_is_there_and_the_other_way_round(self):
        document = json.loads(SERVER.request("GET", "/openapi.json")[1])
        self.assertEqual(document["openapi"], "3.1.0")
        version = json.loads(SERVER.request("GET", "/version")[1])["version"]
        self.assertEqual(document["info"]["version"], version)
        for path, operations in document["paths"].items():
            status, _, headers = SERVER.request("DELETE", path.replace("{model}", "x"), headers=KEY)
            self.assertEqual(status, 405, path)
            methods = {name.upper() for name in operations}
            self.assertEqual(set(headers["Allow"].split(", ")) - {"OPTIONS", "HEAD"}, methods, path)
        known = set(document["paths"])
        counted = {re.search(r'handler="([^"]*)"', name).group(1) for name in SERVER.metrics()[0] if name.startswith("http_requests_total")}
        self.assertEqual(counted - known, {"none"})


class KeysTest(unittest.TestCase):
    def test_keys_are_asked_for_and_read_again(self):
        body = {"prompt": "x", "max_tokens": 1}
        for headers in [{}, {"Authorization": "Bearer nobody"}, {"Authorization": "Basic sk-first"}]:
            status, answer, _ = SERVER.post("/v1/completions", body, headers)
            self.assertEqual((status, json.loads(answer)["error"]["code"]), (401, "invalid_api_key"))
        self.assertEqual(SERVER.post("/v1/completions", body)[0], 200)
        third = {"Authorization": "Bearer sk-third"}
        self.assertEqual(SERVER.post("/v1/completions", body, third)[0], 401)
        with open(SERVER.keys, "a") as file:
            file.write("third sk-third\n")
        SERVER.process.send_signal(signal.SIGHUP)
        SERVER.wait_for_log("3 API keys read again")
        self.assertEqual(SERVER.post("/v1/completions", body, third)[0], 200)
        SERVER.wait_for_log("key=third")
        self.assertNotIn("sk-third", SERVER.text_of_log())

    # F082.
    def test_browsers(self):
        asks = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization, content-type"}
        before = metric(SERVER.metrics()[0], "vllm:request_success_total")
        status, _, headers = SERVER.request("OPTIONS", "/v1/completions", headers=asks)
        self.assertEqual(status, 204)
        self.assertIn(headers["Access-Control-Allow-Origin"], ("*", "https://page.example"))
        self.assertIn("POST", headers["Access-Control-Allow-Methods"])
        for name in ("authorization", "content-type"):
            self.assertIn(name, headers["Access-Control-Allow-Headers"].lower())
        self.assertNotIn("Access-Control-Allow-Credentials", headers)
        self.assertEqual(SERVER.post("/v1/completions", {"prompt": "x"}, {"Origin": "https://page.example"})[0], 401)
        self.assertEqual(metric(SERVER.metrics()[0], "vllm:request_success_total"), before)


class HostileTest(unittest.TestCase):
    def resident(self):
        return metric(SERVER.metrics()[0], "process_resident_memory_bytes")

    # F076.
    def test_floods_of_headers(self):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\n"
        floods = [head + b"X: " + b"a" * (100 << 20), head + b"".join(b"A%d: b\r\n" % i for i in range(1000000)), b"GET /" + b"a" * (1 << 20)]
        for flood in floods:
            answer = SERVER.raw(flood)
            self.assertTrue(answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), answer[:100])
        before = self.resident()
        for i in range(1000):
            with socket.create_connection(("127.0.0.1", SERVER.port), timeout=60) as connection:
                try:
                    connection.sendall(floods[i % 3][:100000])
                except OSError:
                    pass
        deadline = time.monotonic() + 10
        while metric(SERVER.metrics()[0], "quire_http_connections") > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        # This one, and those of the scrapes before, which may not be quite closed yet.
        self.assertLessEqual(metric(SERVER.metrics()[0], "quire_http_connections"), 3)
        self.assertLess(self.resident() - before, 32 << 20)

    # F078.
    def test_bodies(self):
        for body in [b"", b"{", b"[]", b"null", b"\"x\"", "{\"prompt\": \"你\"}".encode("gbk"), b"{\"prompt\": \"\\ud800\"}",
                     b"{\"prompt\": \"x\", \"temperature\": 1e999}", b"{\"prompt\": \"x\", \"temperature\": NaN}", b"\xff\xfe", b"[" * 100000,
                     b"{\"prompt\": \"x\", \"n\": 0}"]:
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
                if path.endswith("tokenize") and b"x" in body:
                    continue  # a prompt, and fields that these two do not have
                status, answer, _ = SERVER.post(path, body)
                self.assertEqual(status, 400, (path, body[:40], answer[:300]))
                error = json.loads(answer.decode("utf-8"))["error"]
                self.assertTrue(error["message"])
        status, answer, _ = SERVER.post("/tokenize", b'{"prompt": "a\\u0000b"}')
        self.assertEqual(status, 200)
        status, text, _ = SERVER.post("/detokenize", {"tokens": json.loads(answer)["tokens"]})
        self.assertEqual(json.loads(text)["prompt"], "a\0b")

    # F080.
    def test_streams_that_cannot_begin_have_a_real_status(self):
        status, answer, headers = SERVER.post("/v1/completions", {"prompt": "x", "n": 0, "stream": True})
        self.assertEqual((status, headers["Content-Type"]), (400, "application/json"))
        self.assertEqual(json.loads(answer)["error"]["param"], "n")

    def test_large_bodies(self):
        status = SERVER.raw(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer sk-first\r\nContent-Length: 1000000000000\r\n\r\n")
        self.assertTrue(status.startswith(b"HTTP/1.1 413"), status)


class MetricsTest(unittest.TestCase):
    def wait_until_idle(self):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            values, _ = SERVER.metrics()
            if metric(values, "vllm:num_requests_running") == 0 and metric(values, "vllm:num_requests_waiting") == 0:
                return values
            time.sleep(0.05)
        self.fail("requests still run")

    # F088.
    def test_aborted_streams_are_counted(self):
        before = self.wait_until_idle()
        prompt = "It was the best of times, it was the worst of times. " * 50
        for i in range(5):
            connection, answer = SERVER.stream(prompt=prompt if i % 2 else f"{i} " + prompt, max_tokens=500)
            self.assertEqual(answer.status, 200)
            answer.read(64)
            connection.sock.close()
            answer.close()
            connection.close()
        self.assertEqual(SERVER.post("/v1/completions", {"prompt": "x", "max_tokens": 3, "ignore_eos": True})[0], 200)
        after = self.wait_until_idle()
        deadline = time.monotonic() + 10
        while metric(after, "vllm:request_success_total", finished_reason="abort") < metric(
                before, "vllm:request_success_total", finished_reason="abort") + 5 and time.monotonic() < deadline:
            after = self.wait_until_idle()
        self.assertEqual(metric(after, "vllm:request_success_total", finished_reason="abort"),
                         metric(before, "vllm:request_success_total", finished_reason="abort") + 5)
        for name, value in before.items():
            if "_total" in name or "_bucket" in name or name.endswith("_count"):
                self.assertGreaterEqual(after[name], value, name)
        self.assertEqual(metric(after, "vllm:generation_tokens_total"), metric(after, "vllm:request_generation_tokens_sum"))
        self.assertEqual(metric(after, "vllm:prompt_tokens_total"), metric(after, "vllm:request_prompt_tokens_sum"))
        self.assertEqual(metric(after, "vllm:request_success_total"), metric(after, "vllm:e2e_request_latency_seconds_count"))
        self.assertEqual(metric(after, "vllm:kv_cache_usage_perc"), 0)
        self.assertGreater(metric(after, "vllm:prefix_cache_hits_total"), 0)

    # F040, over sockets: 300 requests, each closed during prefill or decode, streamed and not.
    def test_clients_that_leave_take_nothing_with_them(self):
        before = self.wait_until_idle()
        long = "It was the best of times, it was the worst of times. " * 60
        body = {"max_tokens": 1000, "ignore_eos": True}
        for i in range(300):
            stream = i % 2 == 0
            is_long = i % 4 >= 2
            raw = json.dumps({**body, "stream": stream, "prompt": f"{i} {long}" if is_long else f"{i}"}).encode()
            with socket.create_connection(("127.0.0.1", SERVER.port), timeout=60) as client:
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer sk-first\r\n"
                               b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw)
                if stream and not is_long:
                    self.assertTrue(client.recv(10).startswith(b"HTTP/1.1 2"))
                elif i % 8 < 4:
                    time.sleep(0.01)
        deadline = time.monotonic() + 20
        while True:
            after = self.wait_until_idle()
            count = metric(after, "vllm:request_success_total") - metric(before, "vllm:request_success_total")
            if metric(after, "quire_http_connections") <= 1 or time.monotonic() > deadline:
                break
        self.assertEqual(metric(after, "quire_kv_pages_used"), 0)
        # Some had gone before they were read; none was served to its end.
        self.assertGreaterEqual(count, 75)
        self.assertEqual(metric(after, "vllm:request_success_total", finished_reason="abort") -
                         metric(before, "vllm:request_success_total", finished_reason="abort"), count)
        self.assertLess(metric(after, "vllm:generation_tokens_total") - metric(before, "vllm:generation_tokens_total"), 300 * 100)
        self.assertEqual(SERVER.post("/v1/completions", {"prompt": "x", "max_tokens": 3, "ignore_eos": True})[0], 200)

    def test_prometheus_reads_them(self):
        try:
            from prometheus_client.parser import text_string_to_metric_families
        except ImportError:
            self.skipTest("prometheus_client cannot be installed")
        SERVER.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
        families = {family.name: family for family in text_string_to_metric_families(SERVER.metrics()[1])}
        for name in ["vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:time_to_first_token_seconds", "vllm:iteration_tokens_total",
                     "vllm:request_success", "vllm:cache_config_info", "http_requests", "process_resident_memory_bytes"]:
            self.assertIn(name, families)
        for family in families.values():
            self.assertTrue(family.documentation, family.name)
            self.assertIn(family.type, ("counter", "gauge", "histogram"))
            if family.type == "histogram":
                by_labels = {}
                for sample in family.samples:
                    key = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
                    by_labels.setdefault(key, []).append(sample)
                for samples in by_labels.values():
                    buckets = [sample.value for sample in samples if sample.name.endswith("_bucket")]
                    count = [sample.value for sample in samples if sample.name.endswith("_count")]
                    self.assertEqual(buckets, sorted(buckets))
                    self.assertEqual([buckets[-1]], count)
        self.assertGreater(sum(sample.value for sample in families["vllm:iteration_tokens_total"].samples if sample.name.endswith("_count")), 0)

    def test_a_line_a_request(self):
        headers = {**KEY, "X-Request-Id": "look-for-me", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
        status, _, answer = SERVER.post("/v1/completions", {"prompt": "a secret prompt", "max_tokens": 3, "ignore_eos": True}, headers)
        self.assertEqual(status, 200)
        self.assertEqual(answer["X-Request-Id"], "look-for-me")
        self.assertEqual(answer["traceparent"], headers["traceparent"])
        line = SERVER.wait_for_log("level=info event=request id=look-for-me .*").group(0)
        for part in ["key=first", "path=/v1/completions", "status=200", "tokens=3", "finish=length", "trace=4bf92f3577b34da6a3ce929d0e0e4736"]:
            self.assertIn(part, line)
        SERVER.post("/v1/completions", {"prompt": ["x", {"a secret": 1}]}, {**KEY, "X-Request-Id": "wrong-body"})
        SERVER.wait_for_log("level=info event=request id=wrong-body .*status=400")
        self.assertNotIn("secret", SERVER.text_of_log())


class DefaultsTest(unittest.TestCase):
    def test_sampling_is_what_the_model_recommends(self):
        folder = tempfile.TemporaryDirectory()
        model = pathlib.Path(folder.name) / "tiny"
        shutil.copytree(HERE / "goldens" / "models" / "llama", model, ignore=shutil.ignore_patterns("*.gguf", "*.txt"))
        config = json.loads((model / "generation_config.json").read_text())
        (model / "generation_config.json").write_text(json.dumps({**config, "temperature": 1.5, "top_k": 1, "top_p": 7}))
        texts = {}
        for flag in ("auto", "none"):
            server = Server("--generation-config", flag, "--log-level", "debug", model=model, context="128")
            texts[flag] = {server.post("/v1/completions", {"prompt": "a", "max_tokens": 12, "ignore_eos": True})[1].decode().split('"text":')[1][:20]
                           for _ in range(4)}
            log = server.text_of_log()
            self.assertEqual("temperature 1.5, top_k 1" in log, flag == "auto", log)
            self.assertEqual("top_p" in log, flag == "auto", log)
            self.assertIn("level=debug event=request", log)  # probes: /ready
            server.stop()
        self.assertEqual(len(texts["auto"]), 1)  # the best token each time
        self.assertGreater(len(texts["none"]), 1)

    def test_time_limits_are_flags(self):
        server = Server("--header-timeout", "0.3", "--body-timeout", "0.3", "--keep-alive-timeout", "0.3")
        self.assertTrue(server.raw(b"POST /v1/completions HTTP/1.1\r\n").startswith(b"HTTP/1.1 408"))
        self.assertTrue(server.raw(b"POST /tokenize HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer sk-first\r\nContent-Length: 50\r\n\r\n{")
                        .startswith(b"HTTP/1.1 408"))
        # Closed although the client keeps its side open.
        self.assertTrue(server.raw(b"GET /version HTTP/1.1\r\nHost: h\r\n\r\n").startswith(b"HTTP/1.1 200"))
        server.stop()


def json_log(text):
    """The lines of a log of JSON, each of which must be an object with a time, a level and a message."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]), line
        assert line["level"] in ("debug", "info", "warning", "error"), line
        assert line["message"], line
    return lines


class JsonLogTest(unittest.TestCase):
    def test_every_line_of_a_run_is_an_object(self):
        server = Server("--log-format", "json", "--log-level", "debug", "--quantization", "int8")
        server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("read again")
        server.stop()
        lines = json_log(server.text_of_log())
        told = [(line["level"], line["message"]) for line in lines]
        for level, start in (("info", "listening on"), ("warning", "--quantization int8"), ("info", "memory "), ("info", "serving "),
                             ("debug", "GET /ready 200"), ("info", "POST /v1/completions 200"), ("info", "2 API keys read again"), ("info", "stopping")):
            self.assertTrue(any(of_line == level and message.startswith(start) for of_line, message in told), (start, told))
        self.assertEqual({line["event"] for line in lines if "status" in line}, {"request"})

    def test_so_is_what_ends_one_that_fails(self):
        for flags, code, word in [(["--port", str(SERVER.port)], 1, "in use"),
                                  (["--preemption", "swap"], 1, "--swap-space"),
                                  (["--port", "x"], 2, "--port"),
                                  (["--no-such-flag"], 2, "--no-such-flag")]:
            result = subprocess.run([QUIRE, "serve", MODEL, "--log-format", "json", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    text=True, timeout=60)
            self.assertEqual(result.returncode, code, result.stderr)
            last = json_log(result.stderr)[-1]
            self.assertEqual(last["level"], "error")
            self.assertIn(word, last["message"])

    def test_a_path_that_is_not_utf8_makes_no_line_that_is_not(self):
        with tempfile.TemporaryDirectory() as folder:
            link = os.fsencode(folder) + b"/a\xff.gguf"
            os.symlink(MODEL, link)
            server = Server("--log-format", "json", model=link)
            names = [model["id"] for model in json.loads(server.request("GET", "/v1/models", headers=KEY)[1].decode())["data"]]
            self.assertEqual(names, ["a\ufffd", folder + "/a\ufffd.gguf"])
            self.assertEqual(server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0], 200)
            server.stop()
            lines = json_log(pathlib.Path(server.log.name).read_bytes().decode())
            self.assertEqual([line["model"] for line in lines if "model" in line], ["a\ufffd"])

    def test_so_is_what_a_signal_has_to_tell(self):
        with tempfile.TemporaryDirectory() as folder:
            weights = commands_test.BadModelFileTest.write_model_that_loads_slowly(pathlib.Path(folder))
            server = Server("--log-format", "json", model=folder, waits=False)
            maps = pathlib.Path(f"/proc/{server.process.pid}/maps")
            while server.process.poll() is None and str(weights) not in maps.read_text():
                time.sleep(0.001)
            os.truncate(weights, 100_000)
            self.assertEqual(server.process.wait(timeout=60), 1)
            self.assertIn(f"{weights} cannot be read any more", json_log(server.text_of_log())[-1]["message"])


class EndTest(unittest.TestCase):
    def test_a_log_that_nobody_reads_holds_nobody_up(self):
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process = subprocess.Popen([QUIRE, "serve", MODEL, "--port", str(port), "--max-model-len", "256"], stdout=subprocess.DEVNULL,
                                   stderr=writing)
        try:
            told = b""
            while b"serving " not in told:
                told += os.read(reading, 65536)
            os.set_blocking(writing, False)  # full, by whoever else writes there
            with self.assertRaises(BlockingIOError):
                while True:
                    os.write(writing, b"x")
            os.set_blocking(writing, True)
            for _ in range(3):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                connection.request("GET", "/v1/models")
                self.assertEqual(connection.getresponse().status, 200)
                connection.close()
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=30), 0)
        finally:
            process.kill()
            process.wait()
            os.close(reading)
            os.close(writing)

    def test_requests_end_first(self):
        server = Server("--log-format", "json")
        connection, answer = server.stream(max_tokens=400)
        answer.readline()
        server.process.terminate()
        server.wait_for_log("stopping")
        status, body, _ = server.request("GET", "/ready")
        self.assertEqual(status, 503)
        self.assertEqual(server.request("GET", "/health")[0], 200)
        self.assertEqual(server.post("/v1/completions", {"prompt": "x"})[0], 503)
        text = answer.read().decode()
        self.assertTrue(text.endswith("data: [DONE]\n\n"), text[-200:])
        self.assertEqual(server.process.wait(timeout=30), 0)
        lines = json_log(server.text_of_log())
        self.assertTrue(any(line.get("path") == "/v1/completions" and line.get("tokens") == 400 for line in lines), lines)

    def test_a_second_signal_ends_at_once(self):
        server = Server("--drain-timeout", "1000")
        connection, answer = server.stream(max_tokens=1900)
        answer.readline()
        server.process.terminate()
        server.wait_for_log("stopping")
        begin = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        answer_ended = threading.Event()
        threading.Thread(target=lambda: (self.read_to_the_end(answer), answer_ended.set()), daemon=True).start()
        self.assertEqual(server.process.wait(timeout=30), 0)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertTrue(answer_ended.wait(10))

    def test_the_drain_is_limited(self):
        server = Server("--drain-timeout", "0.2")
        connection, answer = server.stream(max_tokens=1900)
        answer.readline()
        whole = []
        body = {"prompt": "x", "max_tokens": 1900, "ignore_eos": True}
        waiting = threading.Thread(target=lambda: whole.append(server.post("/v1/completions", body)))
        waiting.start()
        time.sleep(0.5)
        server.process.terminate()
        self.assertEqual(server.process.wait(timeout=30), 0)
        # Those that were cut off are told so: a stream by an error event, others by a status.
        events = [line for line in answer.read().decode().splitlines() if line.startswith("data: ")]
        self.assertIn("error", json.loads(events[-1].removeprefix("data: ")), events[-1])
        waiting.join(10)
        self.assertEqual(whole[0][0], 503, whole)

    def test_a_prefix_file_that_cannot_be_written_is_refused_at_start(self):
        command = [QUIRE, "serve", MODEL, "--prefix-cache-file", "/nonexistent/folder/prefixes"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("--prefix-cache-file /nonexistent/folder/prefixes could not be written", ended.stderr)

    def test_what_is_no_prefix_file_is_never_replaced(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        notes = pathlib.Path(folder) / "notes.txt"
        notes.write_text("notes")
        pipe = folder + "/pipe"  # not a device of this machine's: what is tested here might replace it
        os.mkfifo(pipe)
        for name, more, wanted in ((notes, [], "no file of cached prefixes"),
                                   (folder, [], "is a folder"),
                                   (folder + "/", [], "the name of a folder"),
                                   (pipe, [], "not a regular file"),
                                   (folder + "/p", ["--prefix-cache-file-limit", "0"], "--prefix-cache-file-limit 0"),
                                   (folder + "/p", ["--load-format", "dummy"], "--load-format dummy")):
            command = [QUIRE, "serve", MODEL, "--prefix-cache-file", str(name), *more]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
            self.assertEqual(ended.returncode, 1, name)
            self.assertIn(wanted, ended.stderr)
        self.assertEqual(notes.read_text(), "notes")
        # Nor one that came there while the server ran.
        late = pathlib.Path(folder) / "late"
        server = Server("--prefix-cache-file", str(late))
        server.post("/v1/completions", {"prompt": list(range(1, 60)), "max_tokens": 2})
        late.write_text("notes")
        server.process.terminate()
        self.assertEqual(server.process.wait(timeout=30), 1)
        self.assertEqual(late.read_text(), "notes")

    @staticmethod
    def read_to_the_end(answer):
        try:
            answer.read()
        except (OSError, http.client.HTTPException):
            pass

    def test_an_idle_server_ends_and_uses_no_processor(self):
        server = Server()
        server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
        time.sleep(0.5)
        before = metric(server.metrics()[0], "process_cpu_seconds_total")
        time.sleep(2)
        used = metric(server.metrics()[0], "process_cpu_seconds_total") - before
        self.assertLess(used, 0.2)
        server.stop()

    def test_ending_while_it_loads(self):
        server = Server(waits=False)
        server.wait_for_log("listening")
        server.process.terminate()
        self.assertEqual(server.process.wait(timeout=30), 0)


if __name__ == "__main__":
    QUIRE, PACKAGES = sys.argv[1], pathlib.Path(sys.argv[2])
    if not MODEL:
        print("skipped: QUIRE_TEST_MODEL names no model")
        sys.exit(77)
    install_parser()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], warnings="ignore")
