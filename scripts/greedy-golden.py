#!/usr/bin/env python3
"""Writes tests/data/greedy.json: greedy continuations of the default model in exact f32.

Every weight is dequantised to f32 with PyPI's `gguf`, and the forward pass is plain numpy, independent of
limpid's own code. `margins[i]` is the gap between the two best logits at output position i; a comparison holds
only while the margin is above 0.05.

    pip install numpy gguf tokenizers
    scripts/greedy-golden.py MODEL.gguf > tests/data/greedy.json
"""

import json
import sys

import gguf
import numpy as np

PROMPTS = [
    # (prompt text, most tokens to generate)
    ("<|im_start|>user\nWrite a long story about a lighthouse keeper.<|im_end|>\n<|im_start|>assistant\n", 64),
    ("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n", 24),
    ("The three laws of thermodynamics are", 32),
    ("def fibonacci(n):\n    ", 32),
    ("1, 2, 3, 4, 5,", 24),
    ("<|im_start|>user\nList the planets of the solar system in order, one per line.<|im_end|>\n<|im_start|>assistant\n", 48),
    ("Once upon a time", 32),
]


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = lambda key: reader.fields[key].contents()
        self.heads = field("llama.attention.head_count")
        self.kv_heads = field("llama.attention.head_count_kv")
        self.epsilon = np.float32(field("llama.attention.layer_norm_rms_epsilon"))
        self.base = float(field("llama.rope.freq_base"))
        self.layers = field("llama.block_count")
        self.tokens = field("tokenizer.ggml.tokens")
        self.merges = field("tokenizer.ggml.merges")
        self.eos = field("tokenizer.ggml.eos_token_id")
        self.weights = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            for tensor in reader.tensors
        }
        self.head = self.weights["token_embd.weight"].shape[1] // self.heads
        self.cache = [(np.zeros((0, self.kv_heads, self.head), np.float32),) * 2 for _ in range(self.layers)]

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.epsilon) * self.weights[name]

    def rope(self, x, start):
        half = self.head // 2
        frequencies = self.base ** (-2.0 * np.arange(half) / self.head)
        angles = (np.arange(start, start + x.shape[0])[:, None] * frequencies)[:, None, :]
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        a, b = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2], out[..., 1::2] = a * cos - b * sin, a * sin + b * cos
        return out

    def forward(self, ids):
        """Appends `ids` to the context; logits of the last position."""
        w = self.weights
        start = self.cache[0][0].shape[0]
        x = w["token_embd.weight"][ids]
        n = len(ids)
        for layer in range(self.layers):
            at = lambda name: w[f"blk.{layer}.{name}.weight"]
            h = self.norm(x, f"blk.{layer}.attn_norm.weight")
            q = self.rope((h @ at("attn_q").T).reshape(n, self.heads, self.head), start)
            k = self.rope((h @ at("attn_k").T).reshape(n, self.kv_heads, self.head), start)
            v = (h @ at("attn_v").T).reshape(n, self.kv_heads, self.head)
            keys, values = (np.concatenate(pair) for pair in zip(self.cache[layer], (k, v)))
            self.cache[layer] = (keys, values)
            group = self.heads // self.kv_heads
            keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
            scores = np.einsum("qhd,khd->hqk", q, keys) / np.float32(np.sqrt(self.head))
            mask = np.arange(keys.shape[0])[None, :] > (start + np.arange(n))[:, None]
            scores = np.where(mask[None], np.float32(-1e30), scores)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            x = x + np.einsum("hqk,khd->qhd", weights, values).reshape(n, -1) @ at("attn_output").T
            h = self.norm(x, f"blk.{layer}.ffn_norm.weight")
            gate = h @ at("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ at("ffn_up").T)) @ at("ffn_down").T
        return self.norm(x[-1], "output_norm.weight") @ w.get("output.weight", w["token_embd.weight"]).T


def tokenizer(model):
    """The model's tokenizer, built from the file's metadata with the Hugging Face library."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    vocab = {token: index for index, token in enumerate(model.tokens)}
    merges = [tuple(merge.split(" ")) for merge in model.merges]
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tok.add_special_tokens([AddedToken(t, special=True) for t in model.tokens[:17]])
    return tok


def main():
    result = []
    for prompt, count in PROMPTS:
        model = Model(sys.argv[1])
        ids = tokenizer(model).encode(prompt, add_special_tokens=False).ids
        logits, output, margins = model.forward(ids), [], []
        for _ in range(count):
            best, second = np.argsort(logits)[::-1][:2]
            output.append(int(best))
            margins.append(round(float(logits[best] - logits[second]), 4))
            if best == model.eos:
                break
            logits = model.forward([best])
        result.append({"prompt": prompt, "prompt_ids": ids, "output_ids": output, "margins": margins})
        print(prompt[-40:], min(margins), file=sys.stderr)
    json.dump(result, sys.stdout, indent=None, separators=(",", ":"))
    print()


main()
