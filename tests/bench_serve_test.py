#!/usr/bin/env python3
"""Runs `quire bench-serve` against a small scripted server and checks counts, structure and arithmetic; times are compared with each
other, never with a clock.

Usage: bench_serve_test.py PATH/TO/quire. Uses the standard library only.
"""
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

QUIRE = ""


class Script:
    """What the server does with the n-th request (the warm-up comes first), and what it saw."""

    def __init__(self, behave=None, has_usage=True, delay=0.0):
        self.behave = behave or (lambda number, body: "answer")
        self.has_usage = has_usage
        self.delay = delay
        self.bodies = []
        self.headers = []
        self.running = 0
        self.peak = 0
        self.lock = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def reply(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.reply(200, {"object": "list", "data": [{"id": "stand-in", "object": "model"}]})

    def event(self, value):
        data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def do_POST(self):
        script = self.server.script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with script.lock:
            number = len(script.bodies)
            script.bodies.append((self.path, body))
            script.headers.append(dict(self.headers))
            script.running += 1
            script.peak = max(script.peak, script.running)
        try:
            self.answer(script, body, script.behave(number, body))
        finally:
            with script.lock:
                script.running -= 1

    def answer(self, script, body, behaviour):
        if behaviour == "overloaded":
            return self.reply(429, {"error": {"message": "too many requests wait", "type": "overloaded", "code": 429}})
        if behaviour == "close":
            self.close_connection = True
            return None
        if behaviour == "whole":
            return self.reply(200, {"choices": [{"text": "not a stream"}]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        is_chat = self.path.endswith("/chat/completions")
        if is_chat:
            self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for i in range(body["max_tokens"]):
            time.sleep(script.delay)
            if behaviour == "error" and i == 1:
                self.event({"error": {"message": "the model broke", "type": "server_error"}})
                break
            if behaviour == "cut" and i == 1:
                self.wfile.flush()
                self.close_connection = True
                return None
            if behaviour == "truncated" and i == 1:
                break
            delta = {"delta": {"content": "x"}} if is_chat else {"text": "x"}
            is_last = i + 1 == body["max_tokens"]
            self.event({"choices": [{"index": 0, **delta, "finish_reason": "length" if is_last and behaviour == "answer" else None}]})
        if behaviour == "answer":
            if script.has_usage:
                self.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2 * body["max_tokens"],
                                                     "prompt_tokens_details": {"cached_tokens": 3}}})
            self.event(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        return None


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


class BenchServeTest(unittest.TestCase):
    def setUp(self):
        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.script = self.server.script = Script()

    def tearDown(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def bench(self, *arguments, code=0):
        command = [QUIRE, "bench-serve", "--url", f"http://127.0.0.1:{self.server.server_port}", *map(str, arguments)]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, text=True)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result

    def json(self, *arguments, code=0):
        return json.loads(self.bench("--json", *arguments, code=code).stdout)

    def test_a_closed_loop_counts_everything_once(self):
        self.script = self.server.script = Script(delay=0.002)
        with tempfile.TemporaryDirectory() as folder:
            details = pathlib.Path(folder) / "details.jsonl"
            report = self.json("-n", 40, "-c", 8, "--output-len", 5, "--input-len", 11, "--shared-prefix-len", 4, "--warmup", 2,
                               "--ignore-eos", "--details", details)
            records = [json.loads(line) for line in details.read_text().splitlines()]
        self.assertEqual((report["num_ok"], report["num_failed"], report["errors"]), (40, 0, {}))
        self.assertEqual((report["prompt_tokens"], report["cached_tokens"], report["output_tokens"]), (280, 120, 400))
        self.assertEqual(report["tokens_counted_by"], "usage")
        self.assertEqual(report["settings"]["model"], "stand-in")
        self.assertLessEqual(self.script.peak, 8)
        self.assertLessEqual(report["peak_concurrency"], 8)
        self.assertGreater(report["peak_concurrency"], 1)
        self.assertEqual(len(self.script.bodies), 42)
        self.assertEqual(sorted(record["index"] for record in records), list(range(40)))
        prompts = [body["prompt"].split() for _, body in self.script.bodies]
        self.assertEqual({len(prompt) for prompt in prompts}, {15})
        self.assertEqual(len({tuple(prompt[:4]) for prompt in prompts[2:]}), 1)
        self.assertEqual(len({tuple(prompt) for prompt in prompts}), 42)
        for path, body in self.script.bodies:
            self.assertEqual(path, "/v1/completions")
            self.assertIs(body["ignore_eos"], True)
            self.assertIs(body["stream"], True)
            self.assertEqual(body["stream_options"], {"include_usage": True})
        # Five pieces, ten tokens as the server counts: four gaps each, and the time per token follows.
        self.assertEqual(report["itl_ms"]["count"], 160)
        self.assertEqual([report[key]["count"] for key in ("ttft_ms", "tpot_ms", "e2e_ms")], [40, 40, 40])
        for record in records:
            self.assertEqual(len(record["gaps_ms"]), 4)
            self.assertEqual(record["finish_reason"], "length")
        tpot = sorted(sum(record["gaps_ms"]) / 9 for record in records)
        self.assertAlmostEqual(report["tpot_ms"]["mean"], sum(tpot) / 40, places=3)
        self.assertAlmostEqual(report["tpot_ms"]["p50"], (tpot[19] + tpot[20]) / 2, places=3)
        ttft = sorted(record["ttft_ms"] for record in records)
        self.assertAlmostEqual(report["ttft_ms"]["p90"], ttft[35] + 0.1 * (ttft[36] - ttft[35]), places=3)
        self.assertAlmostEqual(report["ttft_ms"]["p99"], ttft[38] + 0.61 * (ttft[39] - ttft[38]), places=3)
        start = min(record["start_s"] for record in records)
        end = max(record["end_s"] for record in records)
        self.assertAlmostEqual(report["duration_s"], end - start, places=6)
        self.assertAlmostEqual(report["output_tok_s"], 400 / (end - start), places=3)
        self.assertAlmostEqual(report["total_tok_s"], 680 / (end - start), places=3)
        self.assertAlmostEqual(report["request_throughput"], 40 / (end - start), places=3)

    def test_errors_are_counted_by_kind_and_do_not_enter_latencies(self):
        kinds = ["answer", "overloaded", "close", "error", "cut", "truncated", "whole", "answer"]
        self.script.behave = lambda number, body: "answer" if number == 0 else kinds[(number - 1) % 8]
        report = self.json("-n", 16, "-c", 1, "--output-len", 3)
        self.assertEqual(report["num_ok"], 4)
        self.assertEqual(report["num_failed"], 12)
        self.assertEqual(report["errors"], {"http_429": 2, "closed": 4, "stream_error": 2, "truncated": 2, "no_stream": 2})
        self.assertEqual(report["error_samples"]["http_429"], "too many requests wait")
        self.assertEqual(report["error_samples"]["stream_error"], "the model broke")
        self.assertEqual(report["ttft_ms"]["count"], 4)
        self.assertEqual(report["output_tokens"], 24)

    def test_when_nothing_is_answered_it_fails_and_says_why(self):
        self.script.behave = lambda number, body: "overloaded"
        result = self.bench("-n", 3, "--warmup", 0, "--json", code=1)
        self.assertIn("http_429", result.stderr)
        self.assertEqual(json.loads(result.stdout)["num_failed"], 3)
        self.assertIn("warm-up", self.bench("-n", 3, code=1).stderr)
        self.server.server_close()
        self.assertIn("does not answer", self.bench("-n", 3, code=1).stderr)

    def test_chat_and_tokens_counted_by_pieces(self):
        self.script.has_usage = False
        report = self.json("-n", 4, "-c", 2, "--api", "chat", "--output-len", 6, "--api-key", "secret", "--header", "X-A: b",
                           "--extra-body", '{"top_k": 3}')
        self.assertEqual((report["num_ok"], report["output_tokens"], report["tokens_counted_by"]), (4, 24, "pieces"))
        for path, body in self.script.bodies:
            self.assertEqual(path, "/v1/chat/completions")
            self.assertEqual([message["role"] for message in body["messages"]], ["user"])
            self.assertEqual(body["top_k"], 3)
            self.assertNotIn("ignore_eos", body)
        self.assertEqual(self.script.headers[-1]["Authorization"], "Bearer secret")
        self.assertEqual(self.script.headers[-1]["X-A"], "b")

    def test_arrivals_and_lengths_repeat_with_the_seed(self):
        def run(seed):
            self.script = self.server.script = Script()
            with tempfile.TemporaryDirectory() as folder:
                details = pathlib.Path(folder) / "details.jsonl"
                report = self.json("-n", 50, "--request-rate", 400, "--prompts", "ids", "--id-range", "5,9", "--input-len", 3,
                                   "--output-len", 4, "--output-dist", "exponential", "--seed", seed, "--details", details)
                self.assertEqual(report["num_ok"], 50)
                records = sorted((json.loads(line) for line in details.read_text().splitlines()), key=lambda record: record["index"])
            for record in records:
                self.assertGreaterEqual(record["start_s"], record["due_s"])
            bodies = sorted(json.dumps([body["prompt"], body["max_tokens"]]) for _, body in self.script.bodies)
            return [record["due_s"] for record in records], bodies

        dues, bodies = run(1)
        self.assertEqual((dues, bodies), run(1))
        other_dues, other_bodies = run(2)
        self.assertNotEqual(dues, other_dues)
        self.assertNotEqual(bodies, other_bodies)
        self.assertEqual(dues, sorted(dues))
        lengths = [json.loads(body)[1] for body in bodies]
        self.assertGreater(len(set(lengths)), 3)
        self.assertEqual({token for body in bodies for token in json.loads(body)[0]}, {5, 6, 7, 8, 9})

    def test_goodput_counts_requests_within_all_limits(self):
        self.script.delay = 0.001
        all_good = self.json("-n", 6, "--output-len", 3, "--goodput", "ttft:60000", "tpot:60000")["goodput"]
        self.assertEqual((all_good["num_good"], all_good["limits_ms"]), (6, {"ttft": 60000, "tpot": 60000}))
        none_good = self.json("-n", 6, "--output-len", 3, "--goodput", "ttft:60000", "e2e:0.001")["goodput"]
        self.assertEqual((none_good["num_good"], none_good["request_throughput"]), (0, 0))
        self.assertNotIn("goodput", self.json("-n", 1, "--output-len", 1))
        for wrong in ("ttft", "ttft:", "ttft:-1", "ttft:x", "speed:1"):
            self.assertIn("--goodput", self.bench("-n", 1, "--goodput", wrong, code=2).stderr)

    def test_data_sets_of_three_forms(self):
        records = [{"prompt": "one", "output_len": 2}, {"conversations": [{"from": "human", "value": "two"}, {"from": "gpt", "value": "x"}]},
                   {"messages": [{"role": "user", "content": "three"}]}, {"conversations": [{"from": "gpt", "value": "no"}]}]
        with tempfile.TemporaryDirectory() as folder:
            array = pathlib.Path(folder) / "array.json"
            array.write_text(json.dumps(records))
            lines = pathlib.Path(folder) / "lines.jsonl"
            lines.write_text("\n".join(json.dumps(record) for record in records) + "\n")
            for path in (array, lines):
                self.script = self.server.script = Script()
                self.json("-n", 6, "--dataset", path, "--warmup", 0)
                sent = sorted((body["prompt"], body["max_tokens"]) for _, body in self.script.bodies)
                self.assertEqual(sent, [("one", 2), ("one", 2), ("three", 128), ("three", 128), ("two", 128), ("two", 128)])
            self.script = self.server.script = Script()
            self.json("-n", 3, "--dataset", lines, "--warmup", 0, "--api", "chat", "--output-len", 3)
            self.assertEqual({body["max_tokens"] for _, body in self.script.bodies}, {3})
            self.assertEqual(sorted(body["messages"][0]["content"] for _, body in self.script.bodies), ["one", "three", "two"])
            lines.write_text('{"prompt": "a"}\nnot json\n')
            self.assertIn("line 2", self.bench("-n", 1, "--dataset", lines, code=1).stderr)
            lines.write_text('{"x": 1}\n')
            self.assertIn("none of the 1 records", self.bench("-n", 1, "--dataset", lines, code=1).stderr)

    def test_the_table_names_every_figure(self):
        text = self.bench("-n", 2, "--output-len", 2, "--goodput", "ttft:1000").stdout
        for word in ("answered", "failed", "duration", "output tokens/s", "goodput", "p50", "p90", "p99", "first token", "output token",
                     "between pieces", "end to end"):
            self.assertIn(word, text)

    def test_duration_ends_the_run(self):
        self.script.delay = 0.01
        report = self.json("-n", 20000, "-c", 2, "--input-len", 4, "--output-len", 2, "--duration", 0.3)
        self.assertGreater(report["num_ok"], 0)
        self.assertLess(report["num_ok"], 20000)
        self.assertEqual(report["num_ok"] + 1, len(self.script.bodies))

    def test_hundreds_of_streams_at_once(self):
        self.script.delay = 0.02
        report = self.json("-n", 300, "-c", 150, "--output-len", 10, "--input-len", 8)
        self.assertEqual((report["num_ok"], report["output_tokens"]), (300, 6000))


if __name__ == "__main__":
    QUIRE = sys.argv.pop(1)
    unittest.main()
