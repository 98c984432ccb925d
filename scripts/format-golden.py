#!/usr/bin/env python3
"""Writes engine/testdata/formats.json: llama.cpp's logits for every architecture in every format of weights.

The models are tiny and made of pseudo-random blocks, so that nobody has to store them: `format_tests.rs` of
limpid's models makes the same ones, byte for byte (a sum of their tensors is in the file), and what is said here
about tensors, sizes and scales is said there again.

For each there are two sets of logits. `packed` is what llama.cpp computes with the blocks as they are; it rounds
activations to 8 bits for most formats, so limpid is near these. `exact` is what it computes with the values that
PyPI's `gguf` reads from the blocks, in F32; limpid has these but for the order of additions.

    pip install numpy gguf llama-cpp-python==0.3.36
    scripts/format-golden.py
"""

import hashlib
import json
import pathlib
import tempfile

import gguf
import llama_cpp
import numpy as np

Type = gguf.GGMLQuantizationType

# llama.cpp asks for the first four in every phi3 model.
VOCABULARY = ["<|endoftext|>", "<unk>", "<s>", "</s>"] + [chr(ord("a") + i) for i in range(26)] + [".", "ab"]
WIDTH, FEED_FORWARD, HEADS, KV_HEADS, HEAD, LAYERS = 256, 256, 4, 2, 64, 2
TOKENS = [5, 17, 8, 31, 9, 12]
# Positions whose logits are kept.
KEPT = 2

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3", "phi3"]

# For each format, where a block has numbers that must be sane, and what becomes of them: bits that stay random,
# bits that are set. Two bytes each, but for F32's four and the exponent of MXFP4.
HALF = 0x03FF
FORMATS = {
    "F32": [(0, 0x807FFFFF, 122 << 23)],
    "F16": [(0, 0x83FF, 10 << 10)],
    "BF16": [(0, 0x807F, 122 << 7)],
    "Q4_0": [(0, HALF, 8 << 10)],
    "Q4_1": [(0, HALF, 8 << 10), (2, HALF, 0x8000 | 11 << 10)],
    "Q5_0": [(0, HALF, 7 << 10)],
    "Q5_1": [(0, HALF, 7 << 10), (2, HALF, 0x8000 | 11 << 10)],
    "Q8_0": [(0, HALF, 4 << 10)],
    "Q2_K": [(80, HALF, 7 << 10), (82, HALF, 8 << 10)],
    "Q3_K": [(108, HALF, 5 << 10)],
    "Q4_K": [(0, HALF, 3 << 10), (2, HALF, 6 << 10)],
    "Q5_K": [(0, HALF, 2 << 10), (2, HALF, 6 << 10)],
    "Q6_K": [(208, HALF, 1 << 10)],
    "IQ4_NL": [(0, HALF, 4 << 10)],
    "MXFP4": [(0, 0x03, 0x78)],
}


def random_bytes(name, count):
    """The bytes of splitmix64, seeded with the FNV-1a hash of a name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count // 8 + 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return z.astype("<u8").view(np.uint8)[:count]


def set_bits(blocks, offset, size, keep, bits):
    field = blocks[:, offset : offset + size].copy().view(f"<u{size}")
    blocks[:, offset : offset + size] = ((field & keep) | bits).astype(f"<u{size}").view(np.uint8)


def matrix(name, format, rows, columns):
    elements, size = gguf.GGML_QUANT_SIZES[Type[format]]
    blocks = random_bytes(name, rows * columns // elements * size).reshape(-1, size).copy()
    for offset, keep, bits in FORMATS[format]:
        set_bits(blocks, offset, {"F32": 4, "MXFP4": 1}.get(format, 2), keep, bits)
    return blocks.reshape(rows, -1)


def vector(name, width, keep, bits):
    values = random_bytes(name, 4 * width).reshape(-1, 4).copy()
    set_bits(values, 0, 4, keep, bits)
    return values.reshape(-1)


def tensors(architecture, format):
    """Names, formats and bytes, in the order of writing."""
    query, key = HEADS * HEAD, KV_HEADS * HEAD
    fused = architecture == "phi3"

    def weight(name, rows, columns):
        name = f"{name}.weight"
        return name, format, matrix(f"{architecture} {format} {name}", format, rows, columns)

    def norm(name, width):
        # From 0.5 to 1.
        name = f"{name}.weight"
        return name, "F32", vector(f"{architecture} {format} {name}", width, 0x007FFFFF, 126 << 23)

    def bias(name, width):
        # From 0.125 to 0.25, of either sign.
        name = f"{name}.bias"
        return name, "F32", vector(f"{architecture} {format} {name}", width, 0x807FFFFF, 124 << 23)

    yield weight("token_embd", len(VOCABULARY), WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        yield norm(f"{block}.attn_norm", WIDTH)
        if fused:
            yield weight(f"{block}.attn_qkv", query + 2 * key, WIDTH)
        else:
            for part, rows in [("q", query), ("k", key), ("v", key)]:
                yield weight(f"{block}.attn_{part}", rows, WIDTH)
                if architecture == "qwen2":
                    yield bias(f"{block}.attn_{part}", rows)
        if architecture in ("qwen3", "gemma3"):
            yield norm(f"{block}.attn_q_norm", HEAD)
            yield norm(f"{block}.attn_k_norm", HEAD)
        yield weight(f"{block}.attn_output", WIDTH, query)
        if architecture == "gemma3":
            yield norm(f"{block}.post_attention_norm", WIDTH)
            yield norm(f"{block}.post_ffw_norm", WIDTH)
        yield norm(f"{block}.ffn_norm", WIDTH)
        if not fused:
            yield weight(f"{block}.ffn_gate", FEED_FORWARD, WIDTH)
        yield weight(f"{block}.ffn_up", FEED_FORWARD * (2 if fused else 1), WIDTH)
        yield weight(f"{block}.ffn_down", WIDTH, FEED_FORWARD)
    yield norm("output_norm", WIDTH)


def write(path, architecture, weights):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)
    if architecture == "gemma3":
        writer.add_sliding_window(4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3] * 4 + [1] * (len(VOCABULARY) - 4))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    for name, format, data in weights:
        data = data.view("<f4") if format == "F32" else data
        writer.add_tensor(name, data, raw_dtype=None if format == "F32" else Type[format])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(architecture, weights):
    f32 = llama_cpp.GGML_TYPE_F32
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.gguf"
        write(path, architecture, weights)
        model = llama_cpp.Llama(
            str(path), n_ctx=128, n_gpu_layers=0, logits_all=True, type_k=f32, type_v=f32, verbose=False
        )
        model.eval(TOKENS)
        rows = model.scores[len(TOKENS) - KEPT : len(TOKENS)].copy()
        model.close()
    assert np.isfinite(rows).all()
    return rows


def dequantized(weights):
    for name, format, data in weights:
        if format != "F32":
            data = gguf.quants.dequantize(data, Type[format]).astype("<f4").view(np.uint8)
        yield name, "F32", data


models = {}
for architecture in ARCHITECTURES:
    for format in FORMATS:
        weights = list(tensors(architecture, format))
        sum = hashlib.sha256(b"".join(data.tobytes() for _, _, data in weights)).hexdigest()[:16]
        exact = logits(architecture, dequantized(weights))
        packed = logits(architecture, weights)
        apart = np.abs(exact - packed).max() / exact.std()
        print(f"{architecture} {format}: spread {exact.std():.3f}, packed is {apart:.4f} of it apart", flush=True)
        rounded = [[[round(float(value), 5) for value in row] for row in rows] for rows in (exact, packed)]
        models[f"{architecture} {format}"] = {"sum": sum, "exact": rounded[0], "packed": rounded[1]}
rows = ",\n    ".join(f"{json.dumps(name)}: {json.dumps(model, separators=(',', ':'))}" for name, model in models.items())
text = f'{{\n  "tokens": {json.dumps(TOKENS)},\n  "models": {{\n    {rows}\n  }}\n}}\n'
(pathlib.Path(__file__).parent.parent / "engine/testdata/formats.json").write_text(text)
