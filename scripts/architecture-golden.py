#!/usr/bin/env python3
"""Writes engine/testdata/architectures/: for every architecture a tiny random model and llama.cpp's logits.

Weights and llama.cpp's KV cache are F32, so that what differs is the order of additions and nothing else; limpid's
logits have to be within 1e-4 of the largest.

    pip install numpy gguf llama-cpp-python==0.3.36
    scripts/architecture-golden.py
"""

import json
import pathlib

import gguf
import llama_cpp
import numpy as np

# llama.cpp asks for the first four in every phi3 model.
CONTROL = ["<|endoftext|>", "<unk>", "<s>", "</s>"]
VOCABULARY = CONTROL + [chr(ord("a") + i) for i in range(26)] + [".", "ab"]
WIDTH, FEED_FORWARD, HEADS, KV_HEADS = 32, 64, 4, 2
TOKENS = [5, 17, 8, 31, 0, 9, 9, 26, 12, 1, 30, 22, 7, 14, 2, 19]

# Values a head; values that turn; whether the output has a matrix of its own; layers.
MODELS = {
    "llama": (8, 8, True, 2),
    "qwen2": (8, 8, False, 2),
    "qwen3": (16, 16, False, 2),
    "phi3": (8, 6, True, 2),
    # The sixth layer attends to everything, the others to a window.
    "gemma3": (16, 16, False, 7),
    # The same architectures with rotations scaled for contexts four times as long as those of the training.
    "qwen3-linear": (16, 16, False, 2),
    "qwen3-yarn": (16, 16, False, 2),
    "phi3-longrope": (8, 6, True, 2),
}
WINDOW = 6
ORIGINAL_CONTEXT = 32


def write(path, name, head, rotary, untied, layers, random):
    name, _, scaling = name.partition("-")
    writer = gguf.GGUFWriter(path, name)
    writer.add_name(f"Tiny random {name}")
    writer.add_block_count(layers)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(rotary)
    writer.add_rope_freq_base(10000.0 if name == "phi3" or scaling else 1000000.0)
    if scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling))
        writer.add_rope_scaling_orig_ctx_len(ORIGINAL_CONTEXT)
    if scaling == "longrope":
        writer.add_rope_scaling_attn_factors(1.19)
    elif scaling:
        writer.add_rope_scaling_factor(4.0)
    if name == "gemma3":
        writer.add_sliding_window(WINDOW)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(VOCABULARY) - len(CONTROL)))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)

    def matrix(tensor, rows, columns, spread=1.0):
        values = random.normal(0, spread / columns**0.5, (rows, columns))
        writer.add_tensor(f"{tensor}.weight", values.astype(np.float32))

    def vector(tensor, width, mean=1.0, spread=0.2):
        writer.add_tensor(tensor, random.normal(mean, spread, width).astype(np.float32))

    query, key = HEADS * head, KV_HEADS * head
    matrix("token_embd", len(VOCABULARY), WIDTH, 4.0)
    if scaling == "longrope":
        writer.add_tensor("rope_factors_long.weight", np.array([1.1, 2.5, 9], dtype=np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array([1, 1.2, 1.4], dtype=np.float32))
    if name == "llama":
        writer.add_tensor("rope_freqs.weight", np.array([1, 1.7, 8, 32], dtype=np.float32))
    for layer in range(layers):
        block = f"blk.{layer}"
        vector(f"{block}.attn_norm.weight", WIDTH)
        if name == "phi3":
            matrix(f"{block}.attn_qkv", query + 2 * key, WIDTH)
        else:
            for part, rows in [("q", query), ("k", key), ("v", key)]:
                matrix(f"{block}.attn_{part}", rows, WIDTH)
                if name == "qwen2":
                    vector(f"{block}.attn_{part}.bias", rows, 0.0, 0.5)
        if name in ("qwen3", "gemma3"):
            vector(f"{block}.attn_q_norm.weight", head)
            vector(f"{block}.attn_k_norm.weight", head)
        matrix(f"{block}.attn_output", WIDTH, query)
        if name == "gemma3":
            vector(f"{block}.post_attention_norm.weight", WIDTH)
            vector(f"{block}.post_ffw_norm.weight", WIDTH)
        vector(f"{block}.ffn_norm.weight", WIDTH)
        if name == "phi3":
            matrix(f"{block}.ffn_up", 2 * FEED_FORWARD, WIDTH)
        else:
            matrix(f"{block}.ffn_gate", FEED_FORWARD, WIDTH)
            matrix(f"{block}.ffn_up", FEED_FORWARD, WIDTH)
        matrix(f"{block}.ffn_down", WIDTH, FEED_FORWARD)
    vector("output_norm.weight", WIDTH)
    if untied:
        matrix("output", len(VOCABULARY), WIDTH, 4.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(path):
    f32 = llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(
        str(path), n_ctx=128, n_gpu_layers=0, logits_all=True, type_k=f32, type_v=f32, verbose=False
    )
    model.eval(TOKENS)
    return [[round(float(value), 6) for value in row] for row in model.scores[: len(TOKENS)]]


folder = pathlib.Path(__file__).parent.parent / "engine/testdata/architectures"
folder.mkdir(parents=True, exist_ok=True)
for seed, (name, sizes) in enumerate(MODELS.items()):
    path = folder / f"{name}.gguf"
    write(path, name, *sizes, np.random.default_rng(seed))
    rows = ",\n    ".join(json.dumps(row) for row in logits(path))
    text = f'{{\n  "tokens": {json.dumps(TOKENS)},\n  "logits": [\n    {rows}\n  ]\n}}\n'
    (folder / f"{name}.json").write_text(text)
