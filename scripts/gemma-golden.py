#!/usr/bin/env python3
"""Writes tests/data/gemma.json: what llama.cpp makes of texts with Gemma 3 270M (Q4_K_M).

`greedy` are continuations: `margins[i]` is the gap between the two best logits at output position i. llama.cpp
rounds activations to 8 bits, so a comparison holds only while the margin is wide. One prompt is longer than the
window of the model's local layers. `tokens` are ids of texts of many scripts.

    limpid pull gemma-3-270m
    pip install numpy llama-cpp-python==0.3.36
    scripts/gemma-golden.py ~/.local/share/limpid/models/gemma-3-270m.gguf > tests/data/gemma.json
"""

import json
import sys

import llama_cpp
import numpy as np

# Facts that are easy to go on with, until more text than the window holds stands between them and their repetition.
LONG = "".join(f"Room {room} is on floor {room // 100} and has {room % 7 + 2} chairs.\n" for room in range(101, 760, 17))

PROMPTS = [
    # (prompt text, tokens to generate)
    ("The capital of France is", 24),
    ("Once upon a time, there was a", 32),
    ("def fibonacci(n):\n    ", 32),
    ("1, 2, 3, 4, 5,", 32),
    ("Monday, Tuesday, Wednesday,", 16),
    ("Die Hauptstadt von Deutschland ist", 16),
    (LONG + "Room 764 is on floor", 40),
]

TEXTS = [
    "Hello world",
    " Hello  world   and    more ",
    "I'LL say: WE'RE here, they've gone; don't!",
    "1 22 333 4444 3.14159 1,000,000 ½ ² ٣",
    "fn main() {\n    println!(\"{}\", x + 1);\n\treturn;\n}\n",
    "line one\nline two\r\nline three\n\n\nline six   \n   indented",
    "tabs\t\tand\u00a0nbsp and\u3000ideographic",
    "naïve café Ångström Straße ΑΒΓ αβγ Привет мир שלום مرحبا नमस्ते สวัสดี",
    "今天天气很好。東京タワーはきれいです。 안녕하세요",
    "emoji 😀😃 👩‍👩‍👧 🇩🇪 👍🏽 and more",
    "combining e\u0301 a\u0308 o\u0302",
    "control \u0001\u0002\u007f\u0085 and \u200b zero width",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "<table><tr><td>cell</td></tr></table> <h1>Title</h1>",
    "\u2581 is how a space is written",
    "<0x41> <bos> <eos> <unk> <unused7> [multimodal]",
    "",
    " ",
    "\n",
]


def main():
    f32 = llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(
        sys.argv[1],
        n_ctx=1024,
        n_threads=2,
        n_gpu_layers=0,
        type_k=f32,
        type_v=f32,
        flash_attn=False,
        verbose=False,
    )
    greedy = []
    for prompt, count in PROMPTS:
        model.reset()
        ids = model.tokenize(prompt.encode(), add_bos=True, special=True)
        model.eval(ids)
        output, margins = [], []
        for _ in range(count):
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(model.ctx, -1), (model.n_vocab(),))
            best, second = np.argsort(logits)[::-1][:2]
            output.append(int(best))
            margins.append(round(float(logits[best] - logits[second]), 4))
            if best == model.token_eos():
                break
            model.eval([int(best)])
        greedy.append({"prompt": prompt, "prompt_ids": ids, "output_ids": output, "margins": margins})
        print(len(ids), repr(model.detokenize(output).decode(errors="replace")), margins, file=sys.stderr)
    tokens = []
    for text in TEXTS:
        # As a prompt, where special tokens are read as such, and as plain text.
        both = [model.tokenize(text.encode(), add_bos=special, special=special) for special in [True, False]]
        tokens.append({"text": text, "prompt": both[0], "plain": both[1]})
    json.dump({"greedy": greedy, "tokens": tokens}, sys.stdout, separators=(",", ":"))
    print()


main()
