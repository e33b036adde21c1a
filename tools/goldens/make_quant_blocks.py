#!/usr/bin/env python3
"""Makes tests/goldens/quant_blocks.txt: random blocks of every weight format and the values that PyPI gguf dequantizes.

    python make_quant_blocks.py
Blocks are random bytes except for their f16 scales, which are drawn to be finite: ordinary ones of both signs,
subnormal ones, zero, negative zero and the largest. Formats are described in tests/goldens/README.md.
Needs: gguf, numpy.
"""
import pathlib

import gguf
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
#   format: (byte offsets of f16 scales within a block, number of blocks)
FORMATS = {
    "F16": ((0,), 0), "BF16": ((), 0),  # elements, not blocks: see elements()
    "Q4_0": ((0,), 16), "Q4_1": ((0, 2), 16), "Q5_0": ((0,), 16), "Q5_1": ((0, 2), 16), "Q8_0": ((0,), 16),
    "Q2_K": ((80, 82), 8), "Q3_K": ((108,), 8), "Q4_K": ((0, 2), 8), "Q5_K": ((0, 2), 8), "Q6_K": ((208,), 8),
    "IQ4_NL": ((0,), 16), "IQ4_XS": ((0,), 8),
}
SPECIAL_SCALES = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x7BFF, 0xFBFF], np.uint16)


def scale(rng):
    """An f16 bit pattern: in one of three cases a special one, else an ordinary magnitude of either sign."""
    if rng.random() < 1 / 3:
        return int(rng.choice(SPECIAL_SCALES))
    return int(np.float16(rng.standard_normal() * 0.05).view(np.uint16))


def elements(rng, name):
    """32 f16 or bf16 bit patterns: special ones, then random finite ones."""
    patterns = rng.integers(0, 1 << 16, 256, dtype=np.uint16)
    exponent = 0x7C00 if name == "F16" else 0x7F80
    finite = patterns[(patterns & exponent) != exponent]
    return np.concatenate([SPECIAL_SCALES, finite])[:32].view(np.uint8)


def blocks(rng, name):
    offsets, count = FORMATS[name]
    if count == 0:
        return elements(rng, name).reshape(1, -1)
    _, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    data = rng.integers(0, 256, (count, num_bytes), dtype=np.uint8)
    for block in data:
        for offset in offsets:
            block[offset:offset + 2] = np.array([scale(rng)], np.uint16).view(np.uint8)
    return data


def main():
    rng = np.random.default_rng(2024)
    lines = ["# FORMAT, the bytes of one block in hex, the float32 bits of its values in hex (see README.md)"]
    for name in FORMATS:
        for block in blocks(rng, name):
            values = gguf.quants.dequantize(block.reshape(1, -1), gguf.GGMLQuantizationType[name])
            values = np.ascontiguousarray(values, np.float32).reshape(-1)
            assert np.isfinite(values).all(), name
            lines.append(f"{name} {block.tobytes().hex()} " + " ".join(f"{v:08x}" for v in values.view(np.uint32)))
    path = ROOT / "tests/goldens/quant_blocks.txt"
    path.write_text("\n".join(lines) + "\n")
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
