#!/usr/bin/env python3
"""Writes engine/testdata/blocks/*.bin: random blocks of every quantised format and the values they stand for.

A file holds as many blocks as make 512 values, then the values as little-endian f32, dequantised by PyPI's
`gguf`. Block bytes are random but for the f16 scales (or the exponent), which are kept to numbers that real
files have.

    pip install numpy gguf
    scripts/quantisation-golden.py
"""

import pathlib

import gguf
import numpy as np

# Format, and where its f16 numbers begin.
FORMATS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "MXFP4": [],
}  # fmt: skip
VALUES = 512

folder = pathlib.Path(__file__).parent.parent / "engine/testdata/blocks"
folder.mkdir(parents=True, exist_ok=True)
for number, (name, halves) in enumerate(FORMATS.items()):
    random = np.random.default_rng(number)
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    count = VALUES // elements
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    for offset in halves:
        scales = random.uniform(-0.1, 0.1, count).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(count, 2)
    if kind == gguf.GGMLQuantizationType.MXFP4:
        # The two exponents whose scale is subnormal come first.
        blocks[:, 0] = random.integers(100, 140, count)
        blocks[:2, 0] = [0, 1]
    values = gguf.quants.dequantize(blocks, kind).astype("<f4")
    assert values.size == VALUES and np.isfinite(values).all()
    (folder / f"{name.lower()}.bin").write_bytes(blocks.tobytes() + values.tobytes())
