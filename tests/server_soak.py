#!/usr/bin/env python3
"""Random traffic against `quire serve`: aborts, disconnects, slow readers, malformed bodies, overload, misused keys.

    server_soak.py QUIRE MODEL [--seconds 20] [--seed 1] [--kv-cache-memory 21MiB] [-- FLAG...]      flags of quire serve

Afterwards nothing may be lost: every request that was read to its end got an answer of a kind that it may get, answers
with a known text kept it throughout, running and waiting are 0 again, no page is in use, memory stopped growing after
warm-up (a GPU's too, where the server runs on one), threads and file descriptors are as many as before, an idle server
uses no processor time, and SIGTERM ends the server with 0. Standard library only; prints what it counted; exit 0 or 1 (77: no model).
"""

import argparse
import asyncio
import collections
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

KEYS = ["key-of-the-first", "key-of-the-second"]
MAX_NUM_SEQS = 8
MAX_QUEUED = 16
WORDS = "the page of a book holds many words and each of them was chosen by someone who had time to think".split()


def rss_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def gpu_mib(flags):
    """Memory in use on the server's GPU by all processes, as a container need not see its own; 0 where there is none."""
    if shutil.which("nvidia-smi") is None:
        return 0
    index = next((flag[len("cuda:"):] for flag in flags if flag.startswith("cuda:")), "0")
    query = subprocess.run(["nvidia-smi", "-i", index, "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                           stdout=subprocess.PIPE, text=True)
    return int(query.stdout.split()[0]) if query.returncode == 0 else 0


def num_descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def num_threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Client:
    """Raw HTTP over asyncio, so that it can break off, dawdle and send nonsense."""

    def __init__(self, port):
        self.port = port

    async def open(self):
        return await asyncio.open_connection("127.0.0.1", self.port)

    def head(self, method, path, length, key=KEYS[0], extra=""):
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
        if key is not None:
            lines.append(f"Authorization: Bearer {key}")
        if length is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        return ("\r\n".join(lines) + "\r\n" + extra + "\r\n").encode()

    async def read_answer(self, reader):
        """(status, headers, body) of a connection that the server closes."""
        raw = await reader.read()
        head, _, body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        if not lines[0].startswith("HTTP/1.1 "):
            raise AssertionError(f"no answer: {raw[:100]!r}")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if headers.get("transfer-encoding") == "chunked":
            body = unchunk(body)
        return int(lines[0].split()[1]), headers, body

    async def request(self, method, path, body=None, key=KEYS[0], extra=""):
        reader, writer = await self.open()
        try:
            data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            writer.write(self.head(method, path, None if body is None else len(data), key, extra) + data)
            await writer.drain()
            return await self.read_answer(reader)
        finally:
            writer.close()


def unchunk(body):
    out = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        count = int(size.split(b";")[0], 16)
        if count == 0:
            return out
        out += body[:count]
        body = body[count + 2:]
    raise AssertionError("the chunked body has no end")


def prompt(rng, most_words):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most_words)))


def completion(rng, **fields):
    body = {"model": "soak", "prompt": prompt(rng, 120), "max_tokens": rng.randint(1, 48), "temperature": rng.choice([0, 1])}
    if rng.random() < 0.2:
        body |= {"n": rng.randint(2, 3), "temperature": 1}
    if rng.random() < 0.15:
        body |= {"max_tokens": 150, "ignore_eos": True}
    if rng.random() < 0.2:
        body["logprobs"] = rng.randint(0, 3)
    if rng.random() < 0.2:
        body["stop"] = [" the", "zzz"]
    if rng.random() < 0.2:
        body |= {"presence_penalty": 0.5, "frequency_penalty": 0.1, "seed": rng.randint(0, 99)}
    return body | fields


def chat(rng, **fields):
    body = {"model": "soak", "messages": [{"role": "user", "content": prompt(rng, 60)}], "max_tokens": rng.randint(1, 48)}
    return body | fields


# Each must be refused with a 4xx and an error object.
BAD_BODIES = [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt": "\\ud800"}', b'{"prompt": "a", "max_tokens": 1e999}',
    b'{"prompt": "\xc4\xe3\xba\xc3"}', b"[" * 5000, b'{"a":' * 5000, b'{"prompt": {"x": 1}}',
    b'{"prompt": []}', b'{"prompt": [-1]}', b'{"prompt": [99999999]}', b'{"prompt": "a", "max_tokens": -1}',
    b'{"prompt": "a", "n": 1000000}', b'{"prompt": "a", "n": 0}', b'{"prompt": "a", "best_of": 1000000}',
    b'{"prompt": "a", "logit_bias": {"99999999": 1}}', b'{"prompt": "a", "logit_bias": {"-1": 1}}',
    b'{"prompt": "a", "temperature": "hot"}', b'{"prompt": "a", "top_p": 7}', b'{"prompt": "a", "suffix": "b"}',
    b'{"prompt": "a", "stream": "yes"}', b'{"prompt": "a", "max_tokens": 2147483648000}',
]


class Soak:
    def __init__(self, port, rng, known):
        self.client = Client(port)
        self.rng = rng
        self.known = known
        self.counts = collections.Counter()
        self.failures = []

    def check(self, is_right, text):
        if not is_right:
            self.failures.append(text)

    def check_error(self, status, body, what):
        self.check(400 <= status < 600, f"{what}: status {status}")
        try:
            error = json.loads(body.decode())["error"]
            self.check(bool(error["message"]) and "type" in error, f"{what}: {body[:200]!r}")
        except (ValueError, KeyError, TypeError):
            self.check(False, f"{what}: no error object: {status} {body[:200]!r}")

    def check_refusal_under_load(self, status, headers, body, what):
        """True where the server was too busy, as it may be."""
        if status == 429:
            self.check("retry-after" in headers, f"{what}: 429 without Retry-After")
            self.check_error(status, body, what)
            self.counts["429"] += 1
        return status == 429

    async def plain(self):
        rng = self.rng
        path, body = ("/v1/completions", completion(rng)) if rng.random() < 0.5 else ("/v1/chat/completions", chat(rng))
        status, headers, text = await self.client.request("POST", path, body, rng.choice(KEYS))
        if self.check_refusal_under_load(status, headers, text, "plain"):
            return
        self.check(status == 200, f"plain: {status} {text[:300]!r} for {body}")
        if status == 200:
            answer = json.loads(text)
            self.check(len(answer["choices"]) == body.get("n", 1), f"plain: {len(answer['choices'])} choices for {body}")
            for choice in answer["choices"]:
                self.check(choice["finish_reason"] in ("stop", "length"), f"plain: {choice}")
            usage = answer["usage"]
            self.check(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], f"plain: {usage}")

    async def streamed(self):
        rng = self.rng
        make, path = rng.choice([(completion, "/v1/completions"), (chat, "/v1/chat/completions")])
        body = make(rng, stream=True, stream_options={"include_usage": True})
        status, headers, text = await self.client.request("POST", path, body, rng.choice(KEYS))
        if self.check_refusal_under_load(status, headers, text, "streamed"):
            return
        self.check(status == 200, f"streamed: {status} {text[:300]!r}")
        if status == 200:
            events = [line[6:] for line in text.decode().split("\n") if line.startswith("data: ")]
            self.check(bool(events) and events[-1] == "[DONE]", f"streamed: ends with {events[-1:]}")
            chunks = [json.loads(event) for event in events[:-1]]
            ends = [c for chunk in chunks for c in chunk["choices"] if c.get("finish_reason")]
            self.check(len(ends) == body.get("n", 1), f"streamed: {len(ends)} ends for {body}")
            self.check(chunks[-1].get("usage") is not None, "streamed: no usage")

    async def known_answer(self):
        index = self.rng.randrange(len(self.known))
        body, expected = self.known[index]
        status, headers, text = await self.client.request("POST", "/v1/completions", body)
        if self.check_refusal_under_load(status, headers, text, "known"):
            return
        self.check(status == 200, f"known: {status} {text[:300]!r}")
        if status == 200:
            got = [choice["text"] for choice in json.loads(text)["choices"]]
            self.check(got == expected, f"known {index}: {got} instead of {expected}")

    async def broken_off(self):
        """Leaves before, during or after the first bytes of the answer."""
        rng = self.rng
        body = json.dumps(completion(rng, prompt=prompt(rng, 400), max_tokens=400, ignore_eos=True, stream=rng.random() < 0.6))
        data = body.encode()
        reader, writer = await self.client.open()
        whole = self.client.head("POST", "/v1/completions", len(data), rng.choice(KEYS)) + data
        writer.write(whole if rng.random() < 0.8 else whole[: rng.randrange(len(whole))])
        await writer.drain()
        if rng.random() < 0.5:
            try:
                await asyncio.wait_for(reader.read(rng.choice([1, 64, 2000])), rng.random())
            except asyncio.TimeoutError:
                pass
        if rng.random() < 0.5:
            writer.transport.abort()
        else:
            writer.close()

    async def slow_reader(self):
        reader, writer = await self.client.open()
        data = json.dumps(completion(self.rng, max_tokens=64, stream=True)).encode()
        writer.write(self.client.head("POST", "/v1/completions", len(data)) + data)
        await writer.drain()
        for _ in range(20):
            if not await reader.read(7):
                break
            await asyncio.sleep(0.05 * self.rng.random())
        else:
            await reader.read()
        writer.close()

    async def malformed(self):
        index = self.rng.randrange(len(BAD_BODIES))
        path = self.rng.choice(["/v1/completions", "/v1/chat/completions"])
        status, _, text = await self.client.request("POST", path, BAD_BODIES[index])
        self.check(400 <= status < 500 and status != 429, f"malformed {index} on {path}: {status} {text[:200]!r}")
        self.check_error(status, text, f"malformed {index} on {path}")

    async def no_http(self):
        reader, writer = await self.client.open()
        writer.write(self.rng.choice([b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"x" * 300_000, b"\0" * 100,
                                      b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]))
        try:
            await writer.drain()
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 20)
        except (ConnectionError, BrokenPipeError):
            pass
        writer.close()

    async def wrong_key(self):
        key = self.rng.choice([None, "", "key-of-nobody", KEYS[0] + "x", KEYS[0][:-1]])
        status, _, text = await self.client.request("POST", "/v1/completions", completion(self.rng), key)
        self.check(status == 401, f"wrong key {key!r}: {status}")
        self.check_error(status, text, "wrong key")

    async def wrong_route(self):
        method, path, expected = self.rng.choice([("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405), ("DELETE", "/health", 405)])
        status, _, text = await self.client.request(method, path)
        self.check(status == expected, f"{method} {path}: {status}")
        self.check_error(status, text, f"{method} {path}")

    async def overload(self):
        """Ten times as many as fit, at once."""
        self.counts["overload requests"] += 10 * MAX_NUM_SEQS
        await asyncio.gather(*(self.guarded(self.plain) for _ in range(10 * MAX_NUM_SEQS)))

    async def guarded(self, action):
        try:
            await asyncio.wait_for(action(), 300)
        except asyncio.TimeoutError:
            self.failures.append(f"{action.__name__}: no answer within 300 s")
        except (AssertionError, ConnectionError, asyncio.IncompleteReadError) as error:
            self.failures.append(f"{action.__name__}: {type(error).__name__}: {error}")
        self.counts[action.__name__] += 1

    async def worker(self, end):
        actions = [(self.plain, 20), (self.streamed, 20), (self.known_answer, 15), (self.broken_off, 20), (self.slow_reader, 5),
                   (self.malformed, 10), (self.no_http, 3), (self.wrong_key, 4), (self.wrong_route, 2), (self.overload, 0.3)]
        while time.monotonic() < end:
            await self.guarded(self.rng.choices([a for a, _ in actions], [w for _, w in actions])[0])


def metrics(port):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {KEYS[0]}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    values = collections.Counter()
    for line in lines:
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[name.partition("{")[0]] += float(value)
    return values


async def make_known(client, rng):
    """Requests whose answers are fixed: greedy ones, and ones with a seed."""
    known = []
    for index in range(8):
        body = completion(rng, temperature=index % 2, seed=index, max_tokens=24)
        status, _, text = await client.request("POST", "/v1/completions", body)
        if status != 200:
            raise AssertionError(f"a plain request to an idle server: {status} {text[:300]!r}")
        known.append((body, [choice["text"] for choice in json.loads(text)["choices"]]))
    return known


async def wait_idle(port, seconds):
    end = time.monotonic() + seconds
    while True:
        values = metrics(port)
        busy = {name: values[name] for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")}
        if not any(busy.values()):
            return busy
        if time.monotonic() > end:
            return busy
        await asyncio.sleep(0.2)


async def run(process, port, options):
    rng = random.Random(options.seed)
    client = Client(port)
    known = await make_known(client, rng)
    await asyncio.sleep(0.5)  # those connections are closed
    descriptors, threads = num_descriptors(process.pid), num_threads(process.pid)
    soak = Soak(port, rng, known)
    gpu_before = gpu_mib(options.flags)
    begin = time.monotonic()
    rss = []

    async def watch():
        while True:
            await asyncio.sleep(max(options.seconds / 50, 0.5))
            rss.append(rss_bytes(process.pid))
            status, _, _ = await client.request("GET", "/health")
            soak.check(status == 200, f"/health: {status}")

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(soak.worker(begin + options.seconds) for _ in range(options.clients)))
    watcher.cancel()

    busy = await wait_idle(port, 30)
    soak.check(not any(busy.values()), f"not idle 30 s after the last request: {busy}")
    for index, (body, expected) in enumerate(known):
        _, _, text = await client.request("POST", "/v1/completions", body)
        got = [choice["text"] for choice in json.loads(text)["choices"]]
        soak.check(got == expected, f"known {index}, afterwards: {got} instead of {expected}")

    end = time.monotonic() + 5  # the last connections may linger
    while num_descriptors(process.pid) > descriptors and time.monotonic() < end:
        await asyncio.sleep(0.1)
    soak.check(num_descriptors(process.pid) <= descriptors, f"{num_descriptors(process.pid)} descriptors, at first {descriptors}")
    soak.check(num_threads(process.pid) == threads, f"{num_threads(process.pid)} threads, at first {threads}")
    used = cpu_seconds(process.pid)
    await asyncio.sleep(3)
    used = cpu_seconds(process.pid) - used
    soak.check(used <= 0.03, f"{used:.2f} s of processor time in 3 s without requests")
    print(f"idle: {num_descriptors(process.pid)} descriptors (first {descriptors}), {threads} threads, {used:.2f} s of processor time in 3 s")

    # Warm-up is the first fifth; what came later may not have grown by more than noise.
    if len(rss) >= 10:
        warm = max(rss[: len(rss) // 5])
        soak.check(rss[-1] <= warm * 1.02 + (16 << 20), f"memory grew from {warm >> 20} MiB after warm-up to {rss[-1] >> 20} MiB")
        print(f"resident: {warm >> 20} MiB after warm-up, {rss[-1] >> 20} MiB at the end, at most {max(rss) >> 20} MiB")
    gpu_after = gpu_mib(options.flags)
    if gpu_after > 0:
        # The first requests capture graphs, some MiB each.
        soak.check(gpu_after <= gpu_before + 512, f"GPU memory grew from {gpu_before} to {gpu_after} MiB")
        print(f"GPU memory in use: {gpu_before} MiB at first, {gpu_after} MiB at the end")
    values = metrics(port)
    for name in ("vllm:num_preemptions_total", "vllm:prefix_cache_hits_total", "vllm:generation_tokens_total", "vllm:request_success_total"):
        print(f"{name} {values[name]:.0f}")
    print(", ".join(f"{count} {name}" for name, count in sorted(soak.counts.items())))
    return soak.failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("quire")
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kv-cache-memory", default="21MiB", help="for about 930 tokens: so few that sequences give way")
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:split])
    options.flags = arguments[split + 1:]
    model = options.model or os.environ.get("QUIRE_TEST_MODEL", "")
    if not os.path.exists(model):
        print("no model: set QUIRE_TEST_MODEL to the default model (`make model` prints its path)")
        return 77
    port = free_port()
    return asyncio.run(serve_and_run(options, model, port))


async def serve_and_run(options, model, port):
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys")
        with open(keys, "w") as file:
            file.write("\n".join(KEYS) + "\n")
        command = [options.quire, "serve", model, "--port", str(port), "--api-key-file", keys, "--max-num-seqs", str(MAX_NUM_SEQS),
                   "--max-queued-requests", str(MAX_QUEUED), "--kv-cache-memory", options.kv_cache_memory, "--swap-space", "16MiB", "--max-model-len", "900",
                   "--served-model-name", "soak", "--log-level", "error", *options.flags]
        process = await asyncio.create_subprocess_exec(*command)
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5)
                    break
                except OSError:
                    if process.returncode is not None:
                        print(f"the server ended with {process.returncode} before it was ready")
                        return 1
                    await asyncio.sleep(0.1)
            failures = await run(process, port, options)
            process.send_signal(signal.SIGTERM)
            status = await asyncio.wait_for(process.wait(), 60)
            if status != 0:
                failures.append(f"SIGTERM: the server ended with {status}")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    for failure in failures[:40]:
        print("FAILED", failure)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
