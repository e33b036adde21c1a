#!/usr/bin/env python3
"""Runs `quire pull` and `quire models` against a stand-in of a hub that fails in every way that hubs and networks do.

Usage: pull_test.py PATH/TO/quire. Uses the standard library only.
"""
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import unittest

import stand_in_hub

QUIRE = ""
WEIGHTS = random.Random(1).randbytes(700_001)
FOLDER = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "tokenizer.json": b'{"model": {}}',
    "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
    "README.md": b"# not needed",
    "pytorch_model.bin": b"not needed",
    "original/model.safetensors": b"not needed",
}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class PullTest(unittest.TestCase):
    def setUp(self):
        self.hub = stand_in_hub.Hub()
        self.enterContext(self.hub)
        self.home = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.cache = self.home / "hub"
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "HF_HOME": str(self.home), "HF_ENDPOINT": self.hub.url}

    def run_quire(self, *arguments, code=0, **environment):
        result = subprocess.run([QUIRE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
                                env={**self.environment, **environment})
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def pull(self, name, **environment):
        return pathlib.Path(self.run_quire("pull", name, **environment).stdout.strip())

    def error(self, name, code=1, **environment):
        result = self.run_quire("pull", name, code=code, **environment)
        self.assertEqual(result.stdout, "")
        return result.stderr

    def add_gguf(self, **arguments):
        files = {"m-Q4_K_M.gguf": WEIGHTS, "m-Q8_0.gguf": b"eight", "m-UD-Q4_K_M.gguf": b"ud", "mmproj-m-f16.gguf": b"eye", "README.md": b"#"}
        return self.hub.add("org/m-GGUF", files, lfs=[path for path in files if path.endswith(".gguf")], **arguments)

    def check_cache(self):
        """Nothing under a final name but whole files; no leftovers."""
        for blob in self.cache.glob("models--*/blobs/*"):
            self.assertFalse(blob.name.endswith(".incomplete"), blob)
            data = blob.read_bytes()
            self.assertIn(blob.name, (sha256(data), stand_in_hub.git_hash(data)))
        for link in self.cache.glob("models--*/snapshots/*/**/*"):
            if not link.is_dir():
                self.assertTrue(link.is_symlink())
                self.assertFalse(os.path.isabs(os.readlink(link)))
                self.assertTrue(link.exists(), link)

    # ---- Which files, and where they are put ----

    def test_the_layout_is_that_of_the_hubs_own_tools(self):
        repo = self.add_gguf()
        commit = repo.revisions["main"]
        path = self.pull("org/m-GGUF:q4_k_m")
        self.assertEqual(path, self.cache / "models--org--m-GGUF/snapshots" / commit / "m-Q4_K_M.gguf")
        self.assertEqual(os.readlink(path), f"../../blobs/{sha256(WEIGHTS)}")
        self.assertEqual(path.read_bytes(), WEIGHTS)
        self.assertEqual((self.cache / "models--org--m-GGUF/refs/main").read_text(), commit)
        self.assertTrue((self.cache / f".locks/models--org--m-GGUF/{sha256(WEIGHTS)}.lock").exists())
        self.assertEqual([file.name for file in path.parent.iterdir()], ["m-Q4_K_M.gguf"])
        self.check_cache()
        self.assertEqual(len(self.hub.fetches("m-Q4_K_M.gguf")), 1)
        self.assertEqual(self.pull("org/m-GGUF:Q4_K_M"), path)
        self.assertEqual(len(self.hub.fetches("m-Q4_K_M.gguf")), 1)

    def test_which_gguf_file(self):
        self.add_gguf()
        self.assertEqual(self.pull("org/m-GGUF").name, "m-Q4_K_M.gguf")
        self.assertEqual(self.pull("org/m-GGUF:Q8_0").name, "m-Q8_0.gguf")
        self.assertEqual(self.pull("org/m-GGUF:UD-Q4_K_M").name, "m-UD-Q4_K_M.gguf")
        self.assertEqual(self.pull("org/m-GGUF:m-Q8_0.gguf").name, "m-Q8_0.gguf")
        message = self.error("org/m-GGUF:Q4_K")
        self.assertIn("m-Q8_0", message)
        self.assertNotIn("mmproj", message)
        self.hub.add("org/one", {"strange-name.gguf": b"x"})
        self.assertEqual(self.pull("org/one").name, "strange-name.gguf")
        self.hub.add("org/two", {"a.gguf": b"x", "b.gguf": b"y"})
        self.assertIn("several GGUF files: a, b", self.error("org/two"))
        self.hub.add("org/none", {"README.md": b"x", "pytorch_model.bin": b"y"})
        self.assertIn("neither GGUF", self.error("org/none"))

    def test_all_parts_of_a_split_file(self):
        parts = {f"Q8_0/m-Q8_0-0000{i}-of-00003.gguf": bytes([i]) * 1000 for i in (1, 2, 3)}
        self.hub.add("org/split", {**parts, "m-Q2_K.gguf": b"two"}, lfs=parts)
        path = self.pull("org/split:Q8_0")
        self.assertEqual(path.name, "m-Q8_0-00001-of-00003.gguf")
        self.assertEqual(sorted(file.name for file in path.parent.iterdir()), sorted(part[5:] for part in parts))
        self.assertEqual(os.readlink(path), f"../../../blobs/{sha256(bytes([1]) * 1000)}")
        del parts["Q8_0/m-Q8_0-00002-of-00003.gguf"]
        self.hub.add("org/torn", parts)
        self.assertIn("only 2 of the 3 parts", self.error("org/torn"))
        self.check_cache()

    def test_a_folder_of_safetensors(self):
        self.hub.add("org/whole", {**FOLDER, "model.safetensors": WEIGHTS, "model.fp16.safetensors": b"variant"}, lfs=["model.safetensors"])
        path = self.pull("org/whole")
        found = sorted(str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir())
        self.assertEqual(found, ["1_Pooling/config.json", "config.json", "model.safetensors", "tokenizer.json"])
        self.assertEqual((path / "1_Pooling/config.json").read_bytes(), FOLDER["1_Pooling/config.json"])
        shards = {"model-00001-of-00002.safetensors": b"one", "model-00002-of-00002.safetensors": b"two"}
        index = json.dumps({"weight_map": dict(zip("abc", [*shards, *shards]))}).encode()
        self.hub.add("org/shards", {**FOLDER, **shards, "model.safetensors.index.json": index, "stray.safetensors": b"no"})
        found = sorted(file.name for file in self.pull("org/shards").iterdir())
        self.assertEqual(found, ["1_Pooling", "config.json", *shards, "model.safetensors.index.json", "tokenizer.json"])
        self.hub.add("org/lost", {**FOLDER, "model.safetensors.index.json": index, **dict(list(shards.items())[:1])})
        self.assertIn("lacks model-00002-of-00002", self.error("org/lost"))
        self.check_cache()

    def test_revisions(self):
        repo = self.add_gguf()
        first = repo.revisions["main"]
        second = repo.update({"m-Q4_K_M.gguf": b"newer"}, ["m-Q4_K_M.gguf"], "main")
        repo.update({"m-Q4_K_M.gguf": b"branch"}, [], "feature/x")
        self.assertEqual(self.pull("org/m-GGUF").read_bytes(), b"newer")
        self.assertEqual(self.pull(f"org/m-GGUF@{first}").read_bytes(), WEIGHTS)
        self.assertEqual(self.pull("org/m-GGUF:Q4_K_M@feature/x").read_bytes(), b"branch")
        refs = self.cache / "models--org--m-GGUF/refs"
        self.assertEqual((refs / "main").read_text(), second)
        self.assertTrue((refs / "feature/x").exists())
        self.assertFalse((refs / first).exists())
        self.assertIn("no such revision", self.error("org/m-GGUF@nowhere"))

    def test_lists_of_many_pages(self):
        self.hub.page_size = 2
        self.hub.add("org/many", {f"m-Q{i}_0.gguf": b"%d" % i for i in range(9)})
        self.assertEqual(self.pull("org/many:Q7_0").read_bytes(), b"7")

    def test_names_that_lead_out_of_the_folder_are_passed_over(self):
        self.hub.add("org/evil", {"../../../evil.gguf": b"x", "/evil.gguf": b"x", "a/../../evil.gguf": b"x", "good.gguf": b"y"})
        self.assertEqual(self.pull("org/evil").name, "good.gguf")
        self.hub.add("org/worse", {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"a": "../../../../evil"}}'})
        self.assertIn("names a file that is none", self.error("org/worse"))
        self.assertEqual([path for path in self.home.rglob("*evil*") if path.suffix == ".gguf"], [])

    # ---- What networks do ----

    def test_every_fault_is_survived(self):
        for number, faults in enumerate([["drop"], ["drop", "drop", "drop"], ["lie"], ["unsized"], ["short"], ["long"], ["wrong"], ["429"], ["500", "503"],
                                         ["drop", "no-range"], ["drop", "416"], ["drop", "other-range"], ["drop", "wrong"]]):
            name = f"org/fault{number}"
            data = WEIGHTS + bytes([number])
            with self.subTest(faults=faults):
                self.hub.add(name, {f"m{number}.gguf": data}, lfs=[f"m{number}.gguf"])
                self.hub.faults[f"m{number}.gguf"] = list(faults)
                self.assertEqual(self.pull(name).read_bytes(), data)
                self.assertEqual(self.hub.faults[f"m{number}.gguf"], [])
        self.check_cache()

    def test_a_dropped_file_goes_on_where_it_stopped(self):
        self.add_gguf()
        self.hub.faults["m-Q4_K_M.gguf"] = ["drop"]
        self.pull("org/m-GGUF")
        ranges = [request[2] for request in self.hub.fetches("m-Q4_K_M.gguf")]
        self.assertEqual(ranges, [None, "bytes=350000-"])

    def test_a_server_without_ranges_sends_the_file_once_more_and_no_more(self):
        self.add_gguf()
        self.hub.faults["m-Q4_K_M.gguf"] = ["drop", "no-range"]
        self.assertEqual(self.pull("org/m-GGUF").read_bytes(), WEIGHTS)
        self.assertEqual(len(self.hub.fetches("m-Q4_K_M.gguf")), 2)

    def test_a_later_run_goes_on_where_the_former_stopped(self):
        self.add_gguf()
        self.hub.faults["m-Q4_K_M.gguf"] = ["drop", "404"]
        self.error("org/m-GGUF")
        blobs = self.cache / "models--org--m-GGUF/blobs"
        self.assertEqual([file.name for file in blobs.iterdir()], [sha256(WEIGHTS) + ".incomplete"])
        self.assertEqual(list(self.cache.glob("models--*/snapshots/*/*")), [])
        self.hub.requests.clear()
        self.assertEqual(self.pull("org/m-GGUF").read_bytes(), WEIGHTS)
        self.assertEqual([request[2] for request in self.hub.fetches("m-Q4_K_M.gguf")], ["bytes=350000-"])
        self.check_cache()

    def test_leftovers_that_are_wrong_or_too_long_do_no_harm(self):
        self.add_gguf()
        blobs = self.cache / "models--org--m-GGUF/blobs"
        blobs.mkdir(parents=True)
        partial = blobs / (sha256(WEIGHTS) + ".incomplete")
        for content in (b"rubbish", b"x" * (len(WEIGHTS) + 10), WEIGHTS, b""):
            partial.write_bytes(content)
            self.assertEqual(self.pull("org/m-GGUF").read_bytes(), WEIGHTS)
            (blobs / sha256(WEIGHTS)).unlink()

    def test_wrong_bytes_are_never_kept(self):
        self.hub.add("org/small", {"m.gguf": b"small and not LFS"})
        for name, file in (("org/small", "m.gguf"), ("org/m-GGUF", "m-Q4_K_M.gguf")):
            self.add_gguf()
            self.hub.faults[file] = ["wrong", "wrong", "wrong"]
            self.assertIn("hash", self.error(name))
            self.assertEqual([blob for blob in self.cache.glob("models--*/blobs/*")], [])
            self.hub.faults[file] = []

    def test_it_gives_up_in_the_end(self):
        self.add_gguf()
        self.hub.faults["m-Q4_K_M.gguf"] = ["429"] * 50
        self.assertIn("429", self.error("org/m-GGUF"))
        self.hub.faults["m-Q4_K_M.gguf"] = ["429-long"]
        self.assertIn("1000 s", self.error("org/m-GGUF"))
        self.hub.faults["api"] = ["500", "429"]
        self.hub.faults["m-Q4_K_M.gguf"] = []
        self.assertEqual(self.pull("org/m-GGUF").read_bytes(), WEIGHTS)
        self.hub.faults["api"] = ["html"]
        self.assertIn("HF_ENDPOINT", self.error("org/m-GGUF"))

    # ---- Who may, and when ----

    def test_refusals_say_what_to_do(self):
        self.assertIn("HF_TOKEN", self.error("org/nothing"))
        self.add_gguf(gated=True)
        self.hub.tokens = {"good"}
        message = self.error("org/m-GGUF")
        for word in ("gated", "HF_TOKEN", f"{self.hub.url}/org/m-GGUF"):
            self.assertIn(word, message)
        self.assertIn("gated", self.error("org/m-GGUF", HF_TOKEN="bad"))
        self.assertEqual(self.pull("org/m-GGUF", HF_TOKEN="good").read_bytes(), WEIGHTS)
        for name in ("justaname", "a/b/c", "../x", "org/", "org/m:", "org/m@", "org/m:../x"):
            self.assertIn("no name on a hub", self.error(name, code=2))

    def test_the_token_comes_from_a_file_too_and_goes_to_the_hub_alone(self):
        self.add_gguf(gated=True)
        self.hub.tokens = {"good"}
        (self.home / "token").write_text("good\n")
        self.pull("org/m-GGUF")
        self.assertTrue(all(token for _, path, _, token in self.hub.requests if "/cdn/" not in path))
        self.assertEqual([token for _, path, _, token in self.hub.requests if "/cdn/" in path], [False])

    def test_offline(self):
        self.add_gguf()
        self.assertIn("HF_HUB_OFFLINE", self.error("org/m-GGUF", HF_HUB_OFFLINE="1"))
        self.assertEqual(self.hub.requests, [])
        path = self.pull("org/m-GGUF")
        self.hub.requests.clear()
        self.assertEqual(self.pull("org/m-GGUF", HF_HUB_OFFLINE="1"), path)
        self.assertEqual(self.pull("org/m-GGUF:Q4_K_M", HF_HUB_OFFLINE="True"), path)
        self.error("org/m-GGUF:Q8_0", HF_HUB_OFFLINE="1")
        self.assertEqual(self.hub.requests, [])

    def test_two_at_once_fetch_once(self):
        self.add_gguf()
        self.hub.barrier = threading.Barrier(2)
        self.hub.faults["m-Q4_K_M.gguf"] = ["wait"]
        command = [QUIRE, "pull", "org/m-GGUF"]
        pulls = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment) for _ in range(2)]
        # One holds the lock and the hub; the other says that it waits. Then the hub goes on.
        waiting = threading.Thread(target=self.hub.barrier.wait, args=(30,))
        seen = []
        readers = [threading.Thread(target=lambda pull=pull: seen.extend(iter(pull.stderr.readline, ""))) for pull in pulls]
        for reader in readers:
            reader.start()
        while not any("waiting" in line for line in seen):
            if all(pull.poll() is not None for pull in pulls):
                break
        waiting.start()
        for pull in pulls:
            self.assertEqual(pull.wait(30), 0, seen)
        for thread in (*readers, waiting):
            thread.join()
        self.assertEqual(len(self.hub.fetches("m-Q4_K_M.gguf")), 1)
        self.assertEqual(len({pull.stdout.read() for pull in pulls}), 1)
        for pull in pulls:
            pull.stdout.close()
            pull.stderr.close()
        self.check_cache()

    def test_folders_by_the_environment(self):
        self.add_gguf()
        for number, variables in enumerate([{"HF_HUB_CACHE": "{}"}, {"HUGGINGFACE_HUB_CACHE": "{}"}, {"HF_HOME": "{}", "sub": "hub"},
                                            {"HF_HOME": "", "XDG_CACHE_HOME": "{}", "sub": "huggingface/hub"}]):
            folder = self.home / f"place{number}"
            environment = {name: value.format(folder) for name, value in variables.items() if name != "sub"}
            self.assertEqual(self.pull("org/m-GGUF", **environment).parents[3], folder / variables.get("sub", ""))

    # ---- Beside pull ----

    def test_a_model_of_that_form_is_pulled_on_its_first_use_alone(self):
        tiny = pathlib.Path(__file__).resolve().parent / "goldens/models/llama"
        files = {path.name: path.read_bytes() for path in tiny.iterdir()}
        self.hub.add("org/tiny", files, lfs=[name for name in files if name.endswith((".safetensors", ".gguf"))])
        for model in ("org/tiny", "org/tiny:model"):
            lines = []
            for _ in range(2):
                result = subprocess.run([QUIRE, "tokenize", model], input='"hello"\n', stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        timeout=60, env=self.environment)
                self.assertEqual(result.returncode, 0, result.stderr)
                lines.append(result.stdout)
                if len(lines) == 1:
                    self.assertIn("fetching", result.stderr)
                    self.hub.requests.clear()
            self.assertEqual(self.hub.requests, [])
            self.assertEqual(lines[0], lines[1])
        self.run_quire("inspect", "org/tiny", HF_HUB_OFFLINE="1")
        message = self.run_quire("inspect", "org/none", code=1).stderr
        self.assertIn("no file or folder 'org/none'", message)
        self.assertEqual(len(self.hub.requests), 1)
        self.assertIn("no file, folder", self.run_quire("inspect", "org/none.gguf", code=1).stderr)
        self.assertEqual(len(self.hub.requests), 1)

    def test_models_lists_what_was_pulled(self):
        self.add_gguf()
        self.hub.add("org/whole", {**FOLDER, "model.safetensors": WEIGHTS}, lfs=["model.safetensors"])
        gguf = self.pull("org/m-GGUF")
        self.pull("org/m-GGUF:Q8_0")
        folder = self.pull("org/whole")
        lines = [json.loads(line) for line in self.run_quire("models", "--json").stdout.splitlines()]
        listed = {line["name"]: line for line in lines}
        self.assertEqual(sorted(listed), ["org/m-GGUF:m-Q4_K_M", "org/m-GGUF:m-Q8_0", "org/whole"])
        self.assertEqual(listed["org/m-GGUF:m-Q4_K_M"], {"name": "org/m-GGUF:m-Q4_K_M", "path": str(gguf), "bytes": len(WEIGHTS)})
        self.assertEqual(listed["org/whole"]["path"], str(folder))
        for line in lines:
            self.assertEqual(self.run_quire("pull", line["name"], HF_HUB_OFFLINE="1").stdout.strip(), line["path"])


if __name__ == "__main__":
    QUIRE = sys.argv.pop(1)
    unittest.main()
