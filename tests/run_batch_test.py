#!/usr/bin/env python3
"""Runs `quire run-batch` over a tiny random model: OpenAI's batch format, errors in their lines, going on after a stop.

Usage: run_batch_test.py PATH/TO/quire. Uses the standard library only.
"""
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

QUIRE = ""
MODEL = pathlib.Path(__file__).resolve().parent / "goldens/models/llama"
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"


def completion(custom_id, prompt="hello", max_tokens=4, **fields):
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions",
            "body": {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **fields}}


class RunBatchTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.template = self.folder / "template.jinja"
        self.template.write_text(TEMPLATE)
        self.input = self.folder / "in.jsonl"
        self.output = self.folder / "out.jsonl"

    def command(self, *arguments):
        return [QUIRE, "run-batch", str(MODEL), "--threads", "1", "--chat-template", str(self.template), *map(str, arguments)]

    def run_batch(self, *arguments, code=0, stdin=None):
        arguments = arguments or ("-i", self.input, "-o", self.output)
        result = subprocess.run(self.command(*arguments), input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def write(self, lines):
        self.input.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))

    def answers(self, text=None):
        """By custom_id; every line must be whole."""
        lines = [json.loads(line) for line in (self.output.read_text() if text is None else text).splitlines()]
        for line in lines:
            self.assertEqual(list(line), ["id", "custom_id", "response", "error"])
            self.assertNotEqual(line["response"] is None, line["error"] is None)
        found = {line["custom_id"]: line for line in lines}
        self.assertEqual(len(found), len(lines), "a custom_id is answered twice")
        return found

    def test_the_three_kinds_of_requests(self):
        self.write([completion("c", n=2),
                    {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions",
                     "body": {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": True}},
                    {"custom_id": "e", "method": "POST", "url": "/v1/embeddings", "body": {"input": ["a", "b"]}}])
        self.run_batch()
        answers = self.answers()
        self.assertEqual(sorted(answers), ["c", "chat", "e"])
        for answer in answers.values():
            self.assertEqual(answer["response"]["status_code"], 200, answer)
            self.assertTrue(answer["response"]["request_id"])
        body = answers["c"]["response"]["body"]
        self.assertEqual(body["object"], "text_completion")
        self.assertEqual(len(body["choices"]), 2)
        self.assertEqual(body["usage"]["completion_tokens"], 8)
        self.assertEqual(answers["chat"]["response"]["body"]["choices"][0]["message"]["role"], "assistant")
        self.assertEqual(len(answers["e"]["response"]["body"]["data"]), 2)

    def test_wrong_lines_get_error_lines_and_the_others_answers(self):
        good = completion("good")
        self.write(["not json", '["a"]', {**completion("x"), "custom_id": 7}, {**completion("get"), "method": "GET"},
                    {**completion("url"), "url": "/v1/files"}, {**completion("body"), "body": 1}, completion("stream", stream=True),
                    good, "", good, completion("refused", max_tokens=-1), completion("model", model="gpt-4o")])
        result = self.run_batch(code=1)
        self.assertIn("10 of 11", result.stderr)
        lines = [json.loads(line) for line in self.output.read_text().splitlines()]
        errors = {line["error"]["line"]: (line["custom_id"], line["error"]["code"]) for line in lines if line["error"]}
        self.assertEqual(errors, {1: (None, "invalid_json_line"), 2: (None, "invalid_json_line"), 3: (None, "missing_custom_id"),
                                  4: ("get", "invalid_method"), 5: ("url", "invalid_url"), 6: ("body", "missing_body"),
                                  7: ("stream", "streaming_unsupported"), 10: ("good", "duplicate_custom_id")})
        responses = {line["custom_id"]: line["response"] for line in lines if line["response"]}
        self.assertEqual({key: value["status_code"] for key, value in responses.items()}, {"good": 200, "refused": 400, "model": 404})
        self.assertIn("max_tokens", responses["refused"]["body"]["error"]["message"])
        # Once more: nothing is asked or written again, and nothing has become good by that.
        before = self.output.read_text()
        result = self.run_batch(code=1)
        self.assertIn("0 answered, 0 failed, 11 were there already", result.stderr)
        self.assertIn("10 of 11 requests failed (10 of them in an earlier run", result.stderr)
        self.assertEqual(self.output.read_text(), before)

    def test_refused_prompts_count_no_tokens(self):
        self.write([completion("good", prompt="hello", max_tokens=4), completion("long", prompt="hello " * 3000)])
        result = self.run_batch(code=1)
        self.assertEqual(self.answers()["long"]["response"]["status_code"], 400)
        num_prompt_tokens = self.answers()["good"]["response"]["body"]["usage"]["prompt_tokens"]
        self.assertIn(f"1 answered, 1 failed, 0 were there already: {num_prompt_tokens} prompt tokens, 4 tokens made", result.stderr)
        # What failed before makes the command fail again, until it is asked again.
        self.assertIn("1 of 2 requests failed (1 of them in an earlier run", self.run_batch(code=1).stderr)
        self.write([completion("good")])
        self.run_batch()

    def test_it_goes_on_where_it_stopped(self):
        requests = [completion(f"r{i}", prompt=f"number {i}") for i in range(20)]
        self.write(requests)
        self.run_batch()
        whole = self.answers()
        lines = self.output.read_text().splitlines(keepends=True)
        for cut in (1, len(lines[7]) // 2, len(lines[7]) - 1):
            # Seven whole answers, and an eighth that was cut off.
            self.output.write_text("".join(lines[:7]) + lines[7][:cut])
            result = self.run_batch()
            self.assertIn("cut off", result.stderr)
            self.assertIn("13 answered, 0 failed, 7 were there", result.stderr)
            self.assertEqual(self.output.read_text().splitlines(keepends=True)[:7], lines[:7])
            again = self.answers()
            self.assertEqual(sorted(again), sorted(whole))
            for key, answer in again.items():
                self.assertEqual(answer["response"]["body"]["choices"], whole[key]["response"]["body"]["choices"])

    def test_a_run_that_is_killed_goes_on(self):
        self.write([completion(f"r{i}", max_tokens=100) for i in range(60)])
        process = subprocess.Popen(self.command("-i", self.input, "-o", self.output, "--concurrency", 4), stderr=subprocess.DEVNULL)
        while process.poll() is None and (not self.output.exists() or self.output.read_bytes().count(b"\n") < 5):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        num_before = self.output.read_bytes().count(b"\n")
        self.assertGreaterEqual(num_before, 5)
        self.assertLess(num_before, 60)
        self.assertIn(f"{60 - num_before} answered, 0 failed, {num_before} were there", self.run_batch().stderr)
        self.assertEqual(len(self.answers()), 60)

    def test_other_files_are_not_taken_for_answers(self):
        self.write([completion("a")])
        self.output.write_text("precious notes\n")
        self.assertIn("no answer of a batch", self.run_batch(code=1).stderr)
        self.assertEqual(self.output.read_text(), "precious notes\n")
        self.run_batch("-i", self.input, "-o", self.output, "--overwrite")
        self.assertEqual(list(self.answers()), ["a"])
        self.assertIn("same file", self.run_batch("-i", self.input, "-o", self.input, code=1).stderr)
        self.assertIn("nothing.jsonl", self.run_batch("-i", self.folder / "nothing.jsonl", code=1).stderr)

    def test_standard_streams(self):
        text = "".join(json.dumps(completion(f"s{i}")) + "\n" for i in range(3))
        result = self.run_batch("-i", "-", "-o", "-", stdin=text)
        self.assertEqual(sorted(self.answers(result.stdout)), ["s0", "s1", "s2"])

    def test_neighbours_do_not_change_answers(self):
        self.write([completion(f"r{i}", prompt=f"{i} " * (i + 1), max_tokens=3 + i) for i in range(12)])
        bodies = []
        for concurrency in (1, 12):
            self.run_batch("-i", self.input, "-o", self.output, "--overwrite", "--concurrency", concurrency)
            bodies.append({key: answer["response"]["body"]["choices"] for key, answer in self.answers().items()})
        self.assertEqual(len(bodies[0]), 12)
        self.assertEqual(bodies[0], bodies[1])

    def test_many_requests_in_bounded_memory(self):
        with self.input.open("w") as file:
            for i in range(3000):
                file.write(json.dumps(completion(f"r{i}", max_tokens=40, user="x" * 4000)) + " " * 4000 + "\n")
        script = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stderr=subprocess.DEVNULL); "
                  "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        few = self.folder / "few.jsonl"
        few.write_text("".join(self.input.read_text().splitlines(keepends=True)[:100]))
        peaks = [int(subprocess.run([sys.executable, "-c", script, *self.command("-i", path, "-o", self.folder / f"{path.stem}.out",
                                                                                 "--concurrency", 16, "--kv-cache-memory", "8MiB")],
                                    stdout=subprocess.PIPE, check=True).stdout) for path in (few, self.input)]
        self.assertLess(peaks[1] - peaks[0], 12_000, "KiB more for thirty times the requests: 24 MB of input")


if __name__ == "__main__":
    QUIRE = sys.argv.pop(1)
    unittest.main()
