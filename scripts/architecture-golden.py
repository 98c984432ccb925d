#!/usr/bin/env python3
"""Writes engine/testdata/architectures/: for every architecture a tiny random model and llama.cpp's logits.

llama.cpp gets the weights in F32 and keeps its KV cache in it, so that what differs is the order of additions and
nothing else; limpid's logits have to be within 1e-4 of the largest.

llama.cpp runs these architectures only with heads of keys and of values of one size. Where a model has two, it gets a
twin whose smaller heads are filled up with zeros, which changes no logit.

    pip install numpy gguf llama-cpp-python==0.3.36
    scripts/architecture-golden.py
"""

import dataclasses
import json
import pathlib
import tempfile

import gguf
import llama_cpp
import numpy as np

# llama.cpp asks for the first four in every phi3 model.
CONTROL = ["<|endoftext|>", "<unk>", "<s>", "</s>"]
VOCABULARY = CONTROL + [chr(ord("a") + i) for i in range(26)] + [".", "ab"]
WIDTH, FEED_FORWARD, HEADS, KV_HEADS = 32, 64, 4, 2
TOKENS = [5, 17, 8, 31, 0, 9, 9, 26, 12, 1, 30, 22, 7, 14, 2, 19]


@dataclasses.dataclass
class Model:
    # Values of a head of keys, and of one of values.
    key: int
    value: int
    # Values that turn.
    rotary: int
    layers: int = 2
    # Whether the output has a matrix of its own.
    untied: bool = False
    # How rotations are scaled for contexts four times as long as those of the training.
    scaling: str = ""
    # Of matrices with rows of whole blocks; the others are F32.
    format: str = "F32"
    frequency_factors: bool = False


# By the architecture's name and what is special.
MODELS = {
    "llama": Model(8, 8, 8, untied=True, frequency_factors=True),
    "qwen2": Model(8, 8, 8),
    "qwen3": Model(16, 16, 16),
    "phi3": Model(8, 8, 6, untied=True),
    # The sixth layer attends to everything, the others to a window.
    "gemma3": Model(16, 16, 16, layers=7),
    "qwen3-linear": Model(16, 16, 16, scaling="linear"),
    "qwen3-yarn": Model(16, 16, 16, scaling="yarn"),
    "phi3-longrope": Model(8, 8, 6, untied=True, scaling="longrope"),
    "llama-narrow-values": Model(12, 8, 12),
    "llama-narrow-values-q8_0": Model(16, 8, 16, format="Q8_0"),
    "phi3-wide-values-q4_0": Model(6, 8, 4, untied=True, format="Q4_0"),
    "qwen2-narrow-values": Model(8, 4, 8, format="Q8_0"),
    "qwen3-narrow-values": Model(16, 8, 16, format="Q8_0"),
    "gemma3-narrow-values": Model(16, 8, 16, layers=7, format="Q8_0"),
}
WINDOW = 6
ORIGINAL_CONTEXT = 32


def tensors(architecture, model, random):
    """Names and values, in the order of writing."""

    def matrix(tensor, rows, columns, spread=1.0):
        values = random.normal(0, spread / columns**0.5, (rows, columns))
        return f"{tensor}.weight", values.astype(np.float32)

    def vector(tensor, width, mean=1.0, spread=0.2):
        return tensor, random.normal(mean, spread, width).astype(np.float32)

    def constant(tensor, values):
        return tensor, np.array(values, dtype=np.float32)

    query, key, value = HEADS * model.key, KV_HEADS * model.key, KV_HEADS * model.value
    yield matrix("token_embd", len(VOCABULARY), WIDTH, 4.0)
    if model.scaling == "longrope":
        yield constant("rope_factors_long.weight", [1.1, 2.5, 9])
        yield constant("rope_factors_short.weight", [1, 1.2, 1.4])
    if model.frequency_factors:
        yield constant("rope_freqs.weight", [1, 1.7, 8, 32])
    for layer in range(model.layers):
        block = f"blk.{layer}"
        yield vector(f"{block}.attn_norm.weight", WIDTH)
        if architecture == "phi3":
            yield matrix(f"{block}.attn_qkv", query + key + value, WIDTH)
        else:
            for part, rows in [("q", query), ("k", key), ("v", value)]:
                yield matrix(f"{block}.attn_{part}", rows, WIDTH)
                if architecture == "qwen2":
                    yield vector(f"{block}.attn_{part}.bias", rows, 0.0, 0.5)
        if architecture in ("qwen3", "gemma3"):
            yield vector(f"{block}.attn_q_norm.weight", model.key)
            yield vector(f"{block}.attn_k_norm.weight", model.key)
        yield matrix(f"{block}.attn_output", WIDTH, HEADS * model.value)
        if architecture == "gemma3":
            yield vector(f"{block}.post_attention_norm.weight", WIDTH)
            yield vector(f"{block}.post_ffw_norm.weight", WIDTH)
        yield vector(f"{block}.ffn_norm.weight", WIDTH)
        if architecture == "phi3":
            yield matrix(f"{block}.ffn_up", 2 * FEED_FORWARD, WIDTH)
        else:
            yield matrix(f"{block}.ffn_gate", FEED_FORWARD, WIDTH)
            yield matrix(f"{block}.ffn_up", FEED_FORWARD, WIDTH)
        yield matrix(f"{block}.ffn_down", WIDTH, FEED_FORWARD)
    yield vector("output_norm.weight", WIDTH)
    if model.untied:
        yield matrix("output", len(VOCABULARY), WIDTH, 4.0)


def format_of(model, values):
    """The format a tensor is stored in."""
    elements, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[model.format]]
    whole_blocks = values.ndim == 2 and values.shape[1] % elements == 0
    return gguf.GGMLQuantizationType[model.format if whole_blocks else "F32"]


def write(path, architecture, model, weights):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"Tiny random {architecture}")
    writer.add_block_count(model.layers)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(model.key)
    writer.add_value_length(model.value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(model.rotary)
    writer.add_rope_freq_base(10000.0 if architecture == "phi3" or model.scaling else 1000000.0)
    if model.scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType(model.scaling))
        writer.add_rope_scaling_orig_ctx_len(ORIGINAL_CONTEXT)
    if model.scaling == "longrope":
        writer.add_rope_scaling_attn_factors(1.19)
    elif model.scaling:
        writer.add_rope_scaling_factor(4.0)
    if architecture == "gemma3":
        writer.add_sliding_window(WINDOW)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(VOCABULARY) - len(CONTROL)))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    for name, values in weights:
        format = format_of(model, values)
        if format == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, format), raw_dtype=format)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_stored(model, values):
    """What is left of values when they have been stored."""
    format = format_of(model, values)
    return gguf.quants.dequantize(gguf.quants.quantize(values, format), format)


def filled_up(values, heads, size, head, axis=0):
    """Heads of `size` along an axis, with zeros behind each up to `head`."""
    before, after = values.shape[:axis], values.shape[axis + 1 :]
    split = values.reshape(*before, heads, size, *after)
    zeros = [(0, 0)] * split.ndim
    zeros[axis + 1] = (0, head - size)
    return np.pad(split, zeros).reshape(*before, heads * head, *after)


def twin(model, weights):
    """The model in F32 with heads of one size, the smaller ones filled up with zeros."""
    head = max(model.key, model.value)

    def queries(tensor):
        # Their products with keys are divided by the root of a head's size.
        return filled_up(tensor * np.float32((head / model.key) ** 0.5), HEADS, model.key, head)

    def keys(tensor):
        return filled_up(tensor, KV_HEADS, model.key, head)

    def values(tensor):
        return filled_up(tensor, KV_HEADS, model.value, head)

    def fused(tensor):
        parts = np.split(tensor, [HEADS * model.key, (HEADS + KV_HEADS) * model.key])
        return np.concatenate([fill(part) for fill, part in zip([queries, keys, values], parts)])

    def output(tensor):
        return filled_up(tensor, HEADS, model.value, head, axis=1)

    def same(tensor):
        # The norm of a head that is filled up would be another.
        assert len(tensor) != model.key or model.key == head
        return tensor

    fills = {"attn_q": queries, "attn_k": keys, "attn_v": values, "attn_qkv": fused, "attn_output": output}
    filled = [(name, fills.get(name.split(".")[-2], same)(tensor)) for name, tensor in weights]
    return dataclasses.replace(model, key=head, value=head, format="F32"), filled


def logits(path):
    f32 = llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(
        str(path), n_ctx=128, n_gpu_layers=0, logits_all=True, type_k=f32, type_v=f32, verbose=False
    )
    model.eval(TOKENS)
    return [[round(float(value), 6) for value in row] for row in model.scores[: len(TOKENS)]]


folder = pathlib.Path(__file__).parent.parent / "engine/testdata/architectures"
folder.mkdir(parents=True, exist_ok=True)
for seed, (name, model) in enumerate(MODELS.items()):
    architecture = name.partition("-")[0]
    weights = list(tensors(architecture, model, np.random.default_rng(seed)))
    write(folder / f"{name}.gguf", architecture, model, weights)
    with tempfile.TemporaryDirectory() as temporary:
        path = pathlib.Path(temporary) / "twin.gguf"
        write(path, architecture, *twin(model, [(name, as_stored(model, values)) for name, values in weights]))
        rows = ",\n    ".join(json.dumps(row) for row in logits(path))
    text = f'{{\n  "tokens": {json.dumps(TOKENS)},\n  "logits": [\n    {rows}\n  ]\n}}\n'
    (folder / f"{name}.json").write_text(text)
