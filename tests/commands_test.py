#!/usr/bin/env python3
"""Runs the quire program as a script would and checks what commands.md promises: exit codes, JSON shapes, clear errors.

Usage: commands_test.py PATH/TO/quire. The default model is taken from $QUIRE_TEST_MODEL; without it the tests that need a
model are skipped, visibly. Uses the standard library only.
"""
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

QUIRE = ""
MODEL = os.environ.get("QUIRE_TEST_MODEL", "")
GOLDENS = pathlib.Path(__file__).resolve().parent / "goldens"
needs_model = unittest.skipUnless(MODEL, "QUIRE_TEST_MODEL names no model")


def run(*arguments, stdin="", check_code=None):
    result = subprocess.run([QUIRE, *map(str, arguments)], input=stdin.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            timeout=600)
    result.out = result.stdout.decode()
    result.err = result.stderr.decode()
    if check_code is not None and result.returncode != check_code:
        raise AssertionError(f"{arguments} exited with {result.returncode}, not {check_code}:\n{result.err}\n{result.out[:2000]}")
    return result


def json_lines(text):
    return [json.loads(line) for line in text.splitlines()]


class UsageTest(unittest.TestCase):
    def test_help_lists_every_command(self):
        text = run("--help", check_code=0).out
        for command in ("serve", "generate", "chat", "tokenize", "render", "run-batch", "models", "pull", "inspect", "bench", "bench-serve", "doctor", "tune"):
            self.assertIn(command, text)
            self.assertIn("--", run(command, "--help", check_code=0).out)

    def test_help_tells_the_numbers_behind_a_default(self):
        for command in ("serve", "generate", "chat", "bench", "run-batch", "doctor", "tune"):
            text = " ".join(run(command, "--help", check_code=0).out.split())
            self.assertNotIn("engine's default", text)
            for numbers in ("0: 32 on the CPU, 256 on a GPU", "0: 512 on the CPU", "8192 on a GPU", "0.9 on a GPU, 0.3 on the CPU"):
                self.assertIn(numbers, text, command)

    def test_wrong_usage_exits_with_2_and_says_what_is_wrong(self):
        for arguments, word in [
            ([], "subcommand"),
            (["no-such-command"], "no command no-such-command"),
            (["--no-such-flag"], "subcommand"),
            (["generate"], "MODEL"),
            (["generate", "m", "--no-such-flag"], "--no-such-flag"),
            (["generate", "m", "--temperature", "hot"], "temperature"),
            (["generate", "m", "--top-p", "1.5"], "top_p"),
            (["generate", "m", "--page-size", "17"], "17"),
            (["generate", "m", "--kv-cache-memory", "2 bananas"], "bananas"),
            (["generate", "m", "--device", "cuda:x"], "cuda:x"),
            (["generate", "m", "--gpu-memory-utilization", "nan"], "nan"),
            (["tune", "m", "--seconds", "nan"], "nan"),
            (["serve", "m", "--host", ""], "127.0.0.1"),
            (["serve", "m", "--quantization", "nonsense"], "int8"),
            (["serve", "m", "--quantization", ""], "int8"),
            (["generate", "m", "--logit-bias", "x:1"], "x"),
            (["generate", "m", "--prompt", "a", "--prompts", __file__], "--prompts"),
        ]:
            result = run(*arguments, check_code=2)
            self.assertIn(word, result.err, arguments)
            self.assertEqual(result.out, "")

    def test_every_engine_flag_is_known_and_what_is_not_supported_yet_says_so(self):
        flags = ("--threads --device --backend --compute --dtype --kv-cache-dtype --page-size --kv-cache-memory --gpu-memory-utilization "
                 "--swap-space --preemption --max-num-seqs --max-num-batched-tokens --max-model-len --chat-template --load-format "
                 "--quantization --sameness --no-prefix-cache --kernel --log-level --json").split()
        for command in ("generate", "chat", "bench"):
            words = run(command, "--help", check_code=0).out.replace(",", " ").split()
            self.assertEqual([flag for flag in flags if flag not in words], [], command)
        for flag, value, advice in [("--quantization", "q8_0", "GGUF")]:
            error = run("generate", "m", "--prompt", "a", flag, value, check_code=1).err
            self.assertIn("not supported yet", error)
            self.assertIn(advice, error)
        self.assertIn("--swap-space", run("generate", "m", "--prompt", "a", "--preemption", "swap", check_code=1).err)
        accepted = ["--dtype", "f32", "--preemption", "swap", "--swap-space", "1MiB", "--load-format", "auto", "--quantization", "none",
                    "--sameness", "strict"]
        self.assertIn("no/such/model", run("generate", "no/such/model", "--prompt", "a", *accepted, check_code=1).err)

    def test_missing_model_exits_with_1(self):
        result = run("generate", "no/such/model.gguf", "--prompt", "a", check_code=1)
        self.assertIn("no/such/model.gguf", result.err)
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn("config.json", run("inspect", folder, check_code=1).err)


class OutputTest(unittest.TestCase):
    """Results that do not arrive are an error, and messages that do not arrive are none."""
    MODEL = GOLDENS / "models" / "llama" / "model.gguf"

    def shell(self, command, stdin=b""):
        return subprocess.run(["bash", "-c", command.replace("quire", f"'{QUIRE}'", 1)], input=stdin, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120)

    def test_results_that_cannot_be_written_exit_with_1(self):
        conversation = b'{"messages": [{"role": "user", "content": "a"}]}\n'
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{{ messages }}")
            template.flush()
            for command, stdin in [(f"generate {self.MODEL} --prompt ab --max-tokens 2", b""),
                                   (f"generate {self.MODEL} --prompt ab --max-tokens 2 --json", b""),
                                   (f"generate {self.MODEL} --prompt ab --max-tokens 2 --n 2", b""),
                                   (f"inspect {self.MODEL}", b""),
                                   (f"tokenize {self.MODEL}", b'"a"\n'),
                                   (f"render {template.name}", conversation),
                                   ("--help", b"")]:
                for place in (">/dev/full", ">&-"):
                    result = self.shell(f"quire {command} {place}", stdin)
                    self.assertEqual(result.returncode, 1, command + place)
                    self.assertIn(b"could not be written", result.stderr)

    def test_messages_that_cannot_be_written_harm_nothing(self):
        for place in ("2>/dev/full", "2>&-", "2>&- <&-"):
            result = self.shell(f"quire generate {self.MODEL} --prompt ab --max-tokens 2 {place}")
            self.assertEqual(result.returncode, 0, place)
            self.assertTrue(result.stdout)
            self.assertEqual(self.shell(f"quire generate no/such/model --prompt ab {place}").returncode, 1)

    def test_a_message_shows_whole_characters_of_what_is_wrong(self):
        for pad in ("", "x", "xx"):
            lines = [{"prompt": "ab", "temperature": pad + "\u20ac" * 50}, {"prompt": "ab", "logit_bias": {pad + "\u20ac" * 50: 1}}]
            with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
                file.write("\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
                file.flush()
                result = run("generate", self.MODEL, "--prompts", file.name, "--json", check_code=1)
            for line in json_lines(result.out)[:2]:
                self.assertIn("\u20ac", line["error"])

    def test_input_without_end_takes_bounded_memory(self):
        long_line = "head -c 70000000 /dev/zero | tr '\\\\0' a"
        result = self.shell(f"ulimit -v 4000000; ({long_line}; echo; echo '\"a\"') | quire tokenize {self.MODEL}")
        self.assertEqual(result.returncode, 1, result.stderr)
        lines = json_lines(result.stdout.decode())
        self.assertIn("64 MiB", lines[0]["error"])
        self.assertIsInstance(lines[1], list)
        result = self.shell(f"quire generate {self.MODEL} --prompt-file /dev/zero")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"64 MiB", result.stderr)

    def test_bench_measures_no_batch_that_does_not_run_whole(self):
        bench = ("bench", self.MODEL, "--repeats", 1, "--json", "--prompt-lens")
        self.assertIn("context", run(*bench, 100, "--gen-lens", 40, check_code=1).err)  # of 128 tokens
        self.assertIn("--kv-cache-memory", run(*bench, 60, "--gen-lens", 60, "--batch-sizes", 2, "--kv-cache-memory", "40KiB", check_code=1).err)

    def test_bench_names_what_keeps_a_batch_from_running_at_once(self):
        bench = ("bench", self.MODEL, "--device", "cpu", "--repeats", 1, "--json", "--prompt-lens", 32, "--gen-lens", 8, "--batch-sizes", 4)
        flags = {"--max-num-batched-tokens", "--max-num-seqs", "--kv-cache-memory"}
        for given, named in ((["--max-num-batched-tokens", 4], "--max-num-batched-tokens"), (["--max-num-seqs", 2], "--max-num-seqs")):
            error = run(*bench, *given, check_code=1).err
            self.assertEqual({flag for flag in flags if "raise " + flag in error}, {named}, error)
        for batched_tokens, is_named in ((4, True), (2048, False)):  # where some steps have all sequences, but not as many as asked for
            told = run("bench", self.MODEL, "--device", "cpu", "--repeats", 1, "--json", "--prompt-lens", 60, "--gen-lens", 67, "--batch-sizes", 2,
                       "--max-num-batched-tokens", batched_tokens, check_code=0).err
            self.assertIn("has no room for more", told)
            self.assertEqual("or --max-num-batched-tokens" in told, is_named, told)

    def test_bench_in_a_full_context(self):
        """Of 128 tokens; the first token of an answer comes of the prefill, the second is told of while the third is computed."""
        for prompt_len, gen_len, batch, num_steps in ((100, 28, 1, 26), (126, 1, 1, 0), (127, 1, 1, 0), (125, 1, 1, 1), (100, 26, 1, 26), (64, 64, 4, 62)):
            result = run("bench", self.MODEL, "--device", "cpu", "--repeats", 1, "--json", "--prompt-lens", prompt_len, "--gen-lens", gen_len,
                         "--batch-sizes", batch, check_code=0)
            line, = json_lines(result.out)
            self.assertGreater(line["prefill_tok_s"]["median"], 0)
            self.assertEqual(line["decode_tok_s"] is None, num_steps == 0, line)
            self.assertEqual("has no room for more" in result.err, num_steps < gen_len, result.err)
            self.assertEqual("not measured" in result.err, num_steps == 0, result.err)
            if 0 < num_steps < gen_len:
                self.assertIn(f"measured for {num_steps} steps, not {gen_len}", result.err)
        for prompt_len in (127, 128):
            error = run("bench", self.MODEL, "--repeats", 1, "--prompt-lens", prompt_len, "--gen-lens", 2, check_code=1).err
            self.assertIn(f"{prompt_len} prompt tokens and 2 generated ones are more than the context of 128 tokens", error)
        self.assertIn(" - ", run("bench", self.MODEL, "--repeats", 1, "--prompt-lens", 127, "--gen-lens", 1, check_code=0).out)

    def test_tokens_and_seats_of_a_step_follow_each_other(self):
        for flags in (["--max-num-seqs", 3000], ["--max-num-batched-tokens", 1]):  # one of the two, of which the other has another default
            run("generate", self.MODEL, "--device", "cpu", "--prompt", "x", "--max-tokens", 2, *flags, check_code=0)
        bench = ("bench", self.MODEL, "--device", "cpu", "--repeats", 1, "--json", "--prompt-lens", 8, "--gen-lens", 4)
        run(*bench, "--max-num-batched-tokens", 1, check_code=0)
        run(*bench, "--max-num-seqs", 3000, check_code=0)
        self.assertIn("--batch-sizes", run(*bench, "--max-num-batched-tokens", 1, "--batch-sizes", "1,2", check_code=1).err)
        self.assertIn("--max-num-batched-tokens", run(*bench, "--max-num-batched-tokens", 1, "--max-num-seqs", 2, check_code=1).err)

    def test_bench_reads_a_shared_prompt_once(self):
        line, = json_lines(run("bench", self.MODEL, "--repeats", 1, "--json", "--prompt-lens", 64, "--gen-lens", 4, "--batch-sizes", 5,
                               "--shared-prompt", "--kv-cache-memory", "64KiB", check_code=0).out)  # not enough for 5 x 64
        self.assertGreater(line["decode_tok_s"]["min"], 0)
        self.assertIn("--kv-cache-memory", run("bench", self.MODEL, "--repeats", 1, "--json", "--prompt-lens", 64, "--gen-lens", 4,
                                               "--batch-sizes", 5, "--kv-cache-memory", "64KiB", check_code=1).err)

    def test_bench_samples_as_it_is_told(self):
        bench = ("bench", self.MODEL, "--repeats", 1, "--json", "--prompt-lens", 8, "--gen-lens", 4, "--sampling")
        line, = json_lines(run(*bench, '{"repetition_penalty": 1.1, "logprobs": 5, "temperature": 0.7}', check_code=0).out)
        self.assertGreater(line["decode_tok_s"]["min"], 0)
        self.assertIn("repetition_penalty", run(*bench, '{"repetition_penalty": -1}', check_code=1).err)
        self.assertIn("JSON object", run(*bench, "[]", check_code=1).err)
        self.assertIn("tempature", run(*bench, '{"tempature": 0.7}', check_code=1).err)

    def test_bench_needs_no_weights(self):
        with tempfile.TemporaryDirectory() as folder:
            config = (pathlib.Path(self.MODEL).parent / "config.json").read_text()
            (pathlib.Path(folder) / "config.json").write_text(config)
            for quantization in ("none", "q8_0"):
                line, = json_lines(run("bench", folder, "--load-format", "dummy", "--quantization", quantization, "--prompt-lens", 8, "--gen-lens", 4,
                                       "--repeats", 1, "--json", check_code=0).out)
                self.assertGreater(line["decode_tok_s"]["min"], 0)
            self.assertIn("q4_k", run("bench", folder, "--load-format", "dummy", "--quantization", "q9", check_code=2).err)

    def test_random_weights_are_of_the_format_that_is_asked_for(self):
        def weights(model, *arguments):
            err = run("bench", model, "--device", "cpu", "--load-format", "dummy", "--prompt-lens", 8, "--gen-lens", 4, "--repeats", 1, *arguments, check_code=0).err
            return re.search(r"weights ([0-9.]+ \w+)", err)[1], err
        folder = pathlib.Path(self.MODEL).parent
        sizes = {quantization: weights(self.MODEL, "--quantization", quantization)[0] for quantization in ("none", "f32", "q8_0", "q4_0")}
        self.assertEqual(len(set(sizes.values())), 4, sizes)
        error = run("bench", self.MODEL, "--load-format", "dummy", "--quantization", "Q4_K_M", check_code=1).err  # 32 inputs, in blocks of 256
        self.assertIn("q4_k", error)
        config = json.loads((folder / "config.json").read_text())
        with tempfile.TemporaryDirectory() as changed:
            def weights_by(**quantization):
                (pathlib.Path(changed) / "config.json").write_text(json.dumps({**config, "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4,
                                                                                  "num_key_value_heads": 4, "head_dim": 32, "quantization_config": quantization}))
                return weights(changed)
            awq, told = weights_by(quant_method="awq", bits=4, group_size=128)
            self.assertIn("int4_g128", told)
            fp8, told = weights_by(quant_method="fp8")
            self.assertIn("16 bits", told)
            self.assertNotEqual(awq, fp8)

    def test_flags_that_exclude_each_other_are_refused(self):
        for device, backend in (("cuda", "cpu"), ("cuda:0", "reference"), ("cpu", "cuda")):
            for command in (["generate", "--prompt", "a"], ["serve"], ["tune"]):
                error = run(command[0], self.MODEL, *command[1:], "--device", device, "--backend", backend, check_code=1).err
                self.assertIn("exclude each other", error)
        for flags in (["--load-format", "dummy"], ["--kernel", "linear=avx2"], ["--backend", "reference"], ["--quantization", "int8"]):
            self.assertIn(flags[0], run("tune", self.MODEL, "--device", "cpu" if flags[0] != "--backend" else "auto", *flags, check_code=1).err)

    def test_quantization_is_no_claim_about_another_checkpoint(self):
        for quantization in ("awq", "gptq"):
            error = run("generate", self.MODEL, "--prompt", "a", "--quantization", quantization, check_code=1).err
            self.assertIn("leave --quantization out", error)

    def test_int8_while_loading(self):
        folder = pathlib.Path(self.MODEL).parent
        texts = []
        for backend in ("cpu", "reference"):
            texts.append(run("generate", folder, "--backend", backend, "--quantization", "int8", "--compute", "f32", "--prompt", "a", "--max-tokens", 8,
                             "--temperature", 0, check_code=0).out)
        self.assertEqual(texts[0], texts[1])
        self.assertNotIn("--quantization", run("generate", self.MODEL, "--quantization", "int8", "--prompt", "a", check_code=0).err)
        for model in (folder, self.MODEL):  # nothing else is said before
            error = run("generate", model, "--device", "cpu", "--quantization", "fp8", "--prompt", "a", check_code=1).err
            self.assertTrue(error.startswith("quire: --quantization fp8 is for NVIDIA GPUs only") and "take int8" in error, error)
        for dtype in ("fp8", "int8"):
            error = run("generate", folder, "--device", "cpu", "--kv-cache-dtype", dtype, "--prompt", "a", check_code=1).err
            self.assertIn(f"--kv-cache-dtype {dtype} is for a GPU", error)

    def test_doctor_measures_the_machine(self):
        report, = json_lines(run("doctor", "--json", "--threads", 1, check_code=0).out)
        self.assertEqual(report["machine"]["threads"], 1)
        self.assertGreater(report["machine"]["memory_bytes"], 1 << 20)
        self.assertEqual(report["measured"]["all_threads"], report["measured"]["one_thread"])
        self.assertTrue(all(row for row in report["kernels"].values()), report["kernels"])
        self.assertIn("linear q8_0", report["kernels"])
        self.assertIsNone(report["model"])
        self.assertIn("threads", [finding["id"] for finding in report["findings"]])
        forced = json_lines(run("doctor", "--json", "--threads", 1, "--kernel", "attention=scalar_bf16_emulated", check_code=0).out)[0]
        self.assertEqual(forced["kernels"]["attention"], "scalar_bf16_emulated")

    def test_doctor_measures_a_model(self):
        report, = json_lines(run("doctor", self.MODEL, "--json", "--repeats", 2, "--gen-len", 4, check_code=0).out)
        model = report["model"]
        self.assertEqual((model["prompt_len"], model["gen_len"]), (64, 4))  # of 128 tokens of context
        for figure in ("prefill_tok_s", "decode_tok_s"):
            self.assertGreater(model[figure]["min"], 0)
        if report["measured"]["all_threads"]["read_gb_s"] > 0:
            self.assertGreater(model["share_of_limit"]["decode"], 0)
            self.assertIn("decode", [finding["id"] for finding in report["findings"]])
        text = run("doctor", self.MODEL, "--repeats", 1, "--gen-len", 4, check_code=0).out
        for word in ("processor", "kernels", "prefill", "decode"):
            self.assertIn(word, text)
        self.assertIn("no/such/model", run("doctor", "no/such/model", check_code=1).err)

    def test_tuning_is_kept_and_changes_no_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            def quire(*arguments):
                return subprocess.run([QUIRE, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, text=True,
                                      env={**os.environ, "XDG_CACHE_HOME": folder})
            def answer():
                return quire("generate", self.MODEL, "--prompt", "ab" * 20, "--max-tokens", 8, "--temperature", 0, "--json", "--logprobs", 2)
            plain = answer()
            tuned = quire("tune", self.MODEL, "--seconds", 0, "--json")
            self.assertEqual(tuned.returncode, 0, tuned.stderr)
            choices = json_lines(tuned.stdout)
            self.assertEqual({choice["op"] for choice in choices}, {"linear"})
            self.assertTrue(all(choice["row"] in choice["median_us"] for choice in choices))
            # With so few and so short measurements it is up to the machine which way this goes.
            num_doubtful = sum(choice["spread"] > 0.25 for choice in choices)
            self.assertEqual(f"{num_doubtful} of {len(choices)} choices may be wrong" in tuned.stderr, num_doubtful > 0, tuned.stderr)
            path, = (pathlib.Path(folder) / "quire" / "tuning").iterdir()
            file = json.loads(path.read_text())
            # The slowest rows for everything: the file is obeyed, and answers stay.
            file["choices"] = [{"op": "linear", "format": choice["format"], "k": choice["k"], "min_tokens": choice["min_tokens"],
                                "max_tokens": choice["max_tokens"], "row": row} for choice in choices for row in ("scalar_int8", "scalar_f32")]
            path.write_text(json.dumps(file))
            slow = answer()
            self.assertIn("kernel choices", slow.stderr)
            self.assertEqual(json_lines(slow.stdout)[0]["choices"], json_lines(plain.stdout)[0]["choices"])
            for text in ("", "[]", "{", '{"key": 1}', json.dumps({**file, "key": {**file["key"], "version": "0"}}),
                         json.dumps({**file, "choices": [{"op": "linear"}]}), json.dumps({**file, "choices": 7})):
                path.write_text(text)
                broken = answer()
                self.assertEqual(broken.returncode, 0, text)
                self.assertIn("quire tune", broken.stderr, text)
            legend, *table = quire("tune", self.MODEL, "--device", "cpu", "--seconds", 0).stdout.splitlines()
            self.assertIn("* marks the one that is chosen", legend)
            self.assertTrue(table and all(line.startswith("linear ") and line.count("*") == 1 for line in table), table)
            on_gpu = quire("tune", "--device", "cuda")  # there is none, or there is no model
            self.assertEqual(on_gpu.returncode, 1)
            self.assertRegex(on_gpu.stderr, "GPU|CUDA")
            self.assertEqual(quire("tune", "--forget").returncode, 0)
            self.assertFalse(path.exists())
            self.assertNotIn("quire tune", answer().stderr)

    def test_any_file_name_is_listed_as_json(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(os.fsdecode(os.fsencode(folder) + b"/a\xff.gguf")).write_text("x")
            (pathlib.Path(folder) / "nowhere.gguf").symlink_to("no-such-file")
            lines = json_lines(subprocess.run([QUIRE, "models", "--json"], env={"QUIRE_CACHE": folder}, stdout=subprocess.PIPE,
                                              check=True, timeout=120).stdout.decode())
            self.assertEqual([(line["name"], line["bytes"]) for line in lines], [("a\ufffd", 1)])

    def test_what_is_not_utf8_is_refused(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{{ messages[0].content }}")
            template.flush()
            for arguments in (["--prompt", b"a\xff"], ["--prompt", b"\xc3", "--chat"], ["--prompt", "a", "--stop", b"\xff"]):
                result = subprocess.run([QUIRE, "generate", self.MODEL, "--max-tokens", "1", "--chat-template", template.name,
                                         *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
                self.assertIn(result.returncode, (1, 2), arguments)
                self.assertIn(b"UTF-8", result.stderr)

    def test_a_name_in_the_api_is_utf8(self):
        for command in (["serve", "m"], ["serve", "m", "--log-format", "json"], ["run-batch", "m"]):
            result = run(*command, "--served-model-name", os.fsdecode(b"a\xff"), check_code=2)
            self.assertIn("--served-model-name: the name is not UTF-8", result.err)
            self.assertIn("--served-model-name: the name is empty", run(*command, "--served-model-name", "", check_code=2).err)

    @needs_model
    def test_int8_of_what_is_quantized_already_is_told_to_change_nothing(self):
        told = run("generate", MODEL, "--quantization", "int8", "--prompt", "a", "--max-tokens", 1, check_code=0).err
        self.assertIn("warning: --quantization int8 changes nothing", told)
        refused = run("generate", MODEL, "--device", "cpu", "--quantization", "fp8", "--prompt", "a", check_code=1).err
        self.assertNotIn("changes nothing", refused)


class BadModelFileTest(unittest.TestCase):
    def check_refused(self, content, word):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.gguf"
            path.write_bytes(content)
            for command in (["generate", path, "--prompt", "a"], ["inspect", path], ["tokenize", path]):
                result = run(*command, check_code=1)
                self.assertIn(word, result.err)

    def test_files_that_are_no_models(self):
        self.check_refused(b"", "empty")
        self.check_refused(b"<!DOCTYPE html><html>Not found</html>", "web page")
        self.check_refused(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS")
        self.check_refused(b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, "damaged")

    @needs_model
    def test_truncated_model(self):
        with open(MODEL, "rb") as file:
            self.check_refused(file.read(8 << 20), "")

    @staticmethod
    def write_model_that_loads_slowly(folder):
        """The golden model with wide layers of zeros, 384 MB that take no disk; gives its file of weights."""
        golden = GOLDENS / "models" / "llama"
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(golden / name, folder)
        config = {**json.loads((golden / "config.json").read_text()), "intermediate_size": 1_000_000}
        (folder / "config.json").write_text(json.dumps(config))
        header, end = {}, 0
        for shard in sorted(golden.glob("*.safetensors")):
            data = shard.read_bytes()
            for name, tensor in json.loads(data[8:8 + int.from_bytes(data[:8], "little")]).items():
                if name != "__metadata__":
                    shape = [1_000_000 if size == 96 else size for size in tensor["shape"]]
                    begin, end = end, end + 2 * math.prod(shape)
                    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        path = folder / "model.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        os.truncate(path, 8 + len(text) + end)
        return path

    def test_a_model_that_is_cut_off_while_it_is_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            weights = self.write_model_that_loads_slowly(pathlib.Path(folder))
            process = subprocess.Popen(["nice", "-n", "19", QUIRE, "generate", folder, "--prompt", "a"], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True)
            maps = pathlib.Path(f"/proc/{process.pid}/maps")
            while process.poll() is None and str(weights) not in maps.read_text():
                time.sleep(0.001)
            os.truncate(weights, 100_000)
            error = process.communicate(timeout=120)[1]
            self.assertEqual(process.returncode, 1, error)
            self.assertIn(f"{weights} cannot be read any more", error)


@needs_model
class GenerateTest(unittest.TestCase):
    def generate(self, *arguments, stdin="", check_code=0):
        result = run("generate", MODEL, "--json", "--kv-cache-memory", "128MiB", *arguments, stdin=stdin, check_code=check_code)
        lines = json_lines(result.out)
        self.assertEqual(list(lines[-1]), ["summary"])
        self.assertLessEqual({"prefill_tok_s", "decode_tok_s", "kv_pages_used_peak", "kv_pages_total", "load_s"},
                             set(lines[-1]["summary"]))
        return lines[:-1]

    def test_one_prompt_by_every_way_in(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("The capital of France is")
            file.flush()
            answers = [self.generate("--prompt", "The capital of France is", "--max-tokens", 5, "--temperature", 0),
                       self.generate("--prompt-file", file.name, "--max-tokens", 5, "--temperature", 0),
                       self.generate("--max-tokens", 5, "--temperature", 0, stdin="The capital of France is")]
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(answers[0], answers[2])
        line = answers[0][0]
        self.assertEqual(line["index"], 0)
        self.assertIsNone(line["prompt_logprobs"])
        choice = line["choices"][0]
        self.assertIn("Paris", choice["text"])
        self.assertEqual(choice["finish_reason"], "length")
        self.assertEqual(len(choice["token_ids"]), 5)
        self.assertIsNone(choice["logprobs"])
        self.assertEqual(line["usage"], {"prompt_tokens": len(line["prompt_token_ids"]), "completion_tokens": 5, "cached_tokens": 0})

    def test_batch_keeps_order_and_a_bad_line_harms_no_other(self):
        prompts = [{"prompt": "One two three", "max_tokens": 3},
                   {"prompt_token_ids": [504, 3575], "max_tokens": 2},
                   {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
                   {"prompt": "a", "temperature": -1},
                   {"prompt_token_ids": [10**9]},
                   {"prompt": "x", "messages": []},
                   {"prompt": "last", "max_tokens": 1, "n": 2, "seed": 1}]
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write("\n".join(map(json.dumps, prompts)) + "\nnot json\n")
            file.flush()
            lines = self.generate("--prompts", file.name, "--temperature", 0, check_code=1)
        self.assertEqual([line["index"] for line in lines], list(range(8)))
        for index in (0, 1, 2, 6):
            self.assertEqual([len(c["token_ids"]) for c in lines[index]["choices"]], [prompts[index]["max_tokens"]] * prompts[index].get("n", 1))
        for index in (3, 4, 5, 7):
            self.assertIn("error", lines[index])
        self.assertIn("temperature", lines[3]["error"])
        self.assertEqual(lines[1]["prompt_token_ids"], [504, 3575])

    def test_a_key_that_means_nothing_is_told_of(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('{"prompt": "a", "max_token": 3, "max_tokens": 1}\n')
            file.flush()
            result = run("generate", MODEL, "--prompts", file.name, "--json", check_code=0)
        self.assertIn("max_token'", result.err)

    def test_logprobs(self):
        line = self.generate("--prompt", "The capital of France is", "--max-tokens", 3, "--temperature", 0, "--logprobs", 3,
                             "--prompt-logprobs", 2)[0]
        prompt = line["prompt_logprobs"]
        self.assertIsNone(prompt[0])
        self.assertEqual([entry["token_id"] for entry in prompt[1:]], line["prompt_token_ids"][1:])
        for entry in line["choices"][0]["logprobs"]:
            self.assertEqual(entry["rank"], 1)
            self.assertEqual(len(entry["top"]), 3)
            self.assertEqual(entry["top"][0], {"token_id": entry["token_id"], "logprob": entry["logprob"]})
            self.assertLess(entry["logprob"], 0)

    def test_stop_strings_and_seeds(self):
        plain = self.generate("--prompt", "1, 2, 3, 4, 5, 6, 7,", "--max-tokens", 16, "--temperature", 0)[0]["choices"][0]
        self.assertIn("10", plain["text"])
        cut = self.generate("--prompt", "1, 2, 3, 4, 5, 6, 7,", "--max-tokens", 16, "--temperature", 0, "--stop", ", 1")[0]["choices"][0]
        self.assertEqual(cut["finish_reason"], "stop")
        self.assertEqual(cut["text"], plain["text"][: plain["text"].index(", 1")])
        seeded = [self.generate("--prompt", "Once", "--max-tokens", 8, "--seed", 7, "--n", 2)[0]["choices"] for _ in range(2)]
        self.assertEqual(seeded[0], seeded[1])
        self.assertNotEqual(seeded[0][0]["token_ids"], seeded[0][1]["token_ids"])

    def test_what_can_never_run_is_refused(self):
        result = run("generate", MODEL, "--prompt", "word " * 200, "--max-model-len", 64, check_code=1)
        self.assertIn("64", result.err)
        result = run("generate", MODEL, "--prompt", "a", "--n", 1000000, check_code=1)
        self.assertIn("n", result.err)
        result = run("generate", MODEL, "--prompt", "", check_code=1)
        self.assertIn("prompt", result.err)

    def test_text_streams_to_stdout_and_figures_to_stderr(self):
        result = run("generate", MODEL, "--chat", "--prompt", "Say hello.", "--max-tokens", 8, "--temperature", 0, check_code=0)
        self.assertTrue(result.out.strip())
        self.assertIn("tok/s", result.err)
        self.assertIn("KV pages", result.err)

    def test_an_answer_does_not_depend_on_its_neighbours_or_settings(self):
        with open(GOLDENS / "smollm2_greedy.jsonl") as file:
            goldens = [json.loads(line) for line in file][:7]
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for golden in goldens:
                file.write(json.dumps({"prompt_token_ids": golden["prompt_token_ids"][:300]}) + "\n")
            file.flush()
            settings = [[], ["--max-num-seqs", 1], ["--max-num-batched-tokens", 32], ["--page-size", 32, "--threads", 1]]
            answers = []
            for extra in settings:
                lines = self.generate("--prompts", file.name, "--temperature", 0, "--max-tokens", 12, "--logprobs", 2, "--ignore-eos", *extra)
                answers.append([line["choices"] for line in lines])
        for extra, other in zip(settings[1:], answers[1:]):
            self.assertEqual(other, answers[0], extra)


@needs_model
class TextCommandsTest(unittest.TestCase):
    def test_tokenize_and_back(self):
        texts = ["Hello world", "", "a\u0000b", "\U0001f999 \u4e16\u754c\n\n  x", "<|im_start|>user"]
        result = run("tokenize", MODEL, stdin="\n".join(map(json.dumps, texts)) + "\n", check_code=0)
        ids = json_lines(result.out)
        self.assertEqual(len(ids), len(texts))
        back = run("tokenize", MODEL, "--detokenize", stdin=result.out, check_code=0)
        self.assertEqual(json_lines(back.out), texts)

    def test_a_wrong_line_gives_an_error_in_its_place(self):
        result = run("tokenize", MODEL, stdin='"a"\n{"b": 1}\n"c"\n', check_code=1)
        lines = json_lines(result.out)
        self.assertIn("error", lines[1])
        self.assertIsInstance(lines[2], list)

    def test_render(self):
        conversation = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}], "add_generation_prompt": True}
        result = run("render", MODEL, stdin=json.dumps(conversation) + "\n", check_code=0)
        self.assertEqual(json_lines(result.out)[0],
                         "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n")
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write("{% for m in messages %}{{ m.content }}{% endfor %}{{ raise_exception('no') if bad }}")
            file.flush()
            result = run("render", file.name, stdin='{"messages": [{"content": "x"}]}\n{"messages": [], "bad": true}\n', check_code=1)
        lines = json_lines(result.out)
        self.assertEqual(lines[0], "x")
        self.assertIn("no", lines[1]["error"])

    def test_models_and_inspect(self):
        description = json_lines(run("inspect", MODEL, "--json", check_code=0).out)[0]
        self.assertEqual(description["config"]["layers"], 30)
        self.assertEqual(description["memory"]["kv_bytes_per_token"], 2 * 30 * 3 * 64 * 2)
        self.assertIn("architecture", run("inspect", MODEL, check_code=0).out)
        run("models", "--json", check_code=0)

    def test_bench(self):
        result = run("bench", MODEL, "--prompt-lens", "32", "--gen-lens", 8, "--batch-sizes", "1,3", "--repeats", 2, "--json",
                     "--kv-cache-memory", "64MiB", check_code=0)
        for line, batch in zip(json_lines(result.out), (1, 3)):
            self.assertEqual((line["batch"], line["prompt_len"], line["gen_len"]), (batch, 32, 8))
            for figure in ("prefill_tok_s", "decode_tok_s"):
                self.assertLessEqual(line[figure]["min"], line[figure]["median"])
                self.assertGreater(line[figure]["min"], 0)
            self.assertEqual(set(line["share_of_limit"]), {"prefill", "decode"})
            self.assertLessEqual(line["kv_useful_share"], 1)


@needs_model
class ChatTest(unittest.TestCase):
    def test_turns_commands_and_reuse_of_pages(self):
        result = run("chat", MODEL, "--json", "--temperature", 0, "--max-tokens", 24,
                     stdin="/system You are brief.\nName a color.\nName another one.\n/regen\n/nonsense\n/reset\nHi\n", check_code=0)
        replies = json_lines(result.out)
        self.assertEqual(len(replies), 4)
        self.assertGreater(replies[1]["usage"]["cached_tokens"], 0)
        self.assertEqual(replies[1]["content"], replies[2]["content"])
        self.assertIn("/nonsense", result.err)

    def test_turns_that_fail_say_so_in_their_place_and_in_the_exit_code(self):
        result = run("chat", MODEL, "--json", "--temperature", 0, "--max-tokens", 2, "--max-model-len", 128,
                     stdin="word " * 500 + "\nHi\n", check_code=1)
        replies = json_lines(result.out)
        self.assertEqual([list(reply)[0] for reply in replies], ["error", "role"])
        self.assertIn("context", replies[0]["error"])

    def test_save_keeps_the_old_file_when_it_cannot_write_the_new_one(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "conversation.json"
            path.write_text("old")
            limited = ["bash", "-c", 'ulimit -f 0; trap "" XFSZ; exec "$@"', "bash", QUIRE, "chat", MODEL, "--max-tokens", "1"]
            result = subprocess.run(limited, input=f"Hi\n/save {path}\n".encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
            self.assertIn(b"cannot write", result.stderr)
            self.assertEqual([(p.name, p.read_text()) for p in pathlib.Path(folder).iterdir()], [("conversation.json", "old")])
            run("chat", MODEL, "--max-tokens", 1, stdin=f"Hi\n/save {path}\n", check_code=0)
            self.assertEqual(json.loads(path.read_text())["messages"][0], {"role": "user", "content": "Hi"})

    def test_interrupt_stops_an_answer_and_the_conversation_goes_on(self):
        process = subprocess.Popen([QUIRE, "chat", MODEL, "--temperature", "0", "--max-tokens", "2000", "--ignore-eos"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdin.write(b"Tell me a long story.\n")
        process.stdin.flush()
        process.stdout.read(20)  # the answer has begun
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(b"/reset\n", timeout=120)
        self.assertEqual(process.returncode, 0, err)
        self.assertLess(len(out), 4000)


if __name__ == "__main__":
    QUIRE = sys.argv.pop(1)
    unittest.main(verbosity=2)
