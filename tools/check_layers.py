#!/usr/bin/env python3
"""Checks that includes under src/ point only down the layers of ARCHITECTURE.md, and that the lowest layers use nothing
but the C++ standard library and CUDA. Prints every offending line; exit code 1 if there is any."""
import pathlib
import re
import sys

# Folder → the folders that it may include besides itself.
ALLOWED = {
    "base": set(),
    "tensor": {"base"},
    "quant": {"tensor", "base"},
    "ops": {"quant", "tensor", "base"},
    "kv": {"tensor", "base"},
    "comm": {"tensor", "base"},
    "weights": {"quant", "tensor", "base"},
}
ALLOWED["layers"] = {"ops", "kv", "comm", "quant", "weights", "tensor", "base"}
ALLOWED["models"] = ALLOWED["layers"] | {"layers"}
ALLOWED["engine"] = ALLOWED["models"] | {"models"}
ALLOWED["text"] = {"base"}
ALLOWED["server"] = ALLOWED["engine"] | {"engine", "text"}
ALLOWED["app"] = ALLOWED["server"] | {"server"}

STANDARD_ONLY = {"base", "tensor", "quant", "ops"}
# Headers with an extension that these layers may use all the same: the C library's, the system's, intrinsics, CUDA's.
SYSTEM_HEADER = re.compile(
    r"^(sys/\w+|unistd|fcntl|pthread|sched|cpuid|immintrin|arm_neon|linux/futex|errno|signal)\.h$"
    r"|^(cuda\w*|cublas\w*|driver_types|mma|cooperative_groups)(\.h|/.*)?$|^(cute|cutlass|cub|cuda)/.*$")
TEST_HEADER = re.compile(r"^(gtest|gmock|benchmark)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def problems_of(path, src):
    folder = path.relative_to(src).parts[0]
    is_test = path.stem.endswith(("_test", "_fuzz", "_bench")) or {"tests", "testing"} & set(path.relative_to(src).parts)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, header = match.groups()
        target = header.split("/")[0]
        if quote == '"':
            if "/" not in header or target not in ALLOWED:
                yield f"{path}:{number}: write the include from src/: \"folder/{header}\""
            elif target != folder and target not in ALLOWED[folder]:
                yield f"{path}:{number}: {folder} may not include {header}"
        elif folder in STANDARD_ONLY and not (is_test and TEST_HEADER.match(header)):
            if ("." in header or "/" in header) and not SYSTEM_HEADER.match(header):
                yield f"{path}:{number}: {folder} uses the standard library and CUDA only, not <{header}>"


def main():
    src = pathlib.Path(__file__).resolve().parent.parent / "src"
    problems = []
    for path in sorted(src.rglob("*")):
        if path.suffix in {".h", ".cc", ".cu", ".cuh"}:
            if path.relative_to(src).parts[0] not in ALLOWED:
                problems.append(f"{path}: a folder that the layers do not know")
            else:
                problems.extend(problems_of(path, src))
    print("\n".join(problems) if problems else "layers: every include points down")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
