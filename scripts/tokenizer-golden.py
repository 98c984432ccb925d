#!/usr/bin/env python3
"""Writes engine/testdata/tokenizers/: small vocabularies of every kind and llama.cpp's ids for a corpus.

Vocabularies are trained here on the corpus itself, without regard to where a pre-tokeniser cuts, so that a wrong
cut shows as another id.

    pip install numpy gguf llama-cpp-python==0.3.36
    scripts/tokenizer-golden.py
"""

import collections
import json
import pathlib

import gguf
import llama_cpp

CORPUS = [
    "Hello world",
    " Hello  world ",
    "the cat sat on the mat, the cat's hat and the dog's bone",
    "I'LL say: WE'RE here, they've gone; don't! it's 'S",
    "1 22 333 4444 55555 3.14159 1,000,000 ½ ² ٣",
    "fn main() {\n    println!(\"{}\", x + 1);\n\treturn;\n}\n",
    "line one\nline two\r\nline three\n\n\nline six   \n   indented",
    "tabs\t\tand\u00a0nbsp and\u3000ideographic",
    "naïve café Ångström Straße ΑΒΓ αβγ Привет мир שלום مرحبا नमस्ते สวัสดี",
    "今天天气很好。東京タワーはきれいです。 안녕하세요",
    "emoji 😀😃 👩‍👩‍👧 🇩🇪 👍🏽 and more",
    "combining e\u0301 a\u0308 o\u0302",
    "control \u0001\u0002\u007f\u0085 and \u200b zero width",
    "snake_case CamelCase kebab-case a.b.c http://example.com/?q=1&r=2#x",
    "<|user|>\n Hi there<|end|>\n<|assistant|> \n ok",
    "<|user|><|end|><|user|>  two spaces",
    "a<|end|>b <|end|> c",
    "",
    " ",
    "   ",
    "\n",
    "\u2581 is how a space is written",
    "<0x41> <s> </s> <unk>",
    "!!! ... ??? --- *** === ((nested)) [[x]] {{y}}",
    "The quick brown fox jumps over the lazy dog. " * 3,
    "".join(map(chr, [*range(1, 32), *range(127, 160)])),
    "nul\0in the middle",
    "\ufeffBOM \u200e\u200f\u202e marks \u2060 joiner \ufffd replacement \U0010ffff last",
    "def f(x: int) -> str:\n\treturn f\"{x!r:>10}\"  # comment\n\n\nclass A(B):\n    pass\n",
    '{"key": [1, 2.5e-3, true, null], "nested": {"a\\n": "\\u00e9"}}',
    "#include <stdio.h>\r\nint main(void) { return 0; } /* \u00fcn\u00efcode */\r",
    "Հայերեն ქართული አማርኛ ខ្មែរ ལྷ་ས 粵語 ᚠᛇᚻ ᏣᎳᎩ 𐍈𐌿𐍄 𝔘𝔫𝔦 𓀀",
    "اَلْعَرَبِيَّةُ עִבְרִית हिन्दी বাংলা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල မြန်မာ ລາວ",
    "👨‍👩‍👧‍👦🏳️‍🌈🧑🏿‍🚀 ☃️ ✔︎ ㊙️ 1️⃣ #️⃣ 🇺🇳🇪🇺",
    "½⅓¼ Ⅷ ⅷ ①②③ ٠١٢٣ ०१२३ 𝟘𝟙𝟚 1²3₄",
    "don’t ‘quoted’ “double” — em–en … ‹x› «y» it'ſ",
    "   \n \n\t \n  x\u2028line\u2029paragraph\x0bvertical\x0cform\x85next",
    "x<tool>y</tool> <tool> z",
]
SPECIAL = ["<|user|>", "<|assistant|>", "<|end|>"]
# Tokens wherever they are spelled, in prompts and in plain text.
DEFINED = ["<tool>", "</tool>"]
FORBIDDEN = [*SPECIAL, *DEFINED, "<unk>", "<s>", "</s>", "<|endoftext|>"]


def train(texts, count):
    """Pairs in the order of their merging, most frequent first."""
    words, merges = [list(text) for text in texts], []
    while len(merges) < count:
        pairs = collections.Counter(pair for word in words for pair in zip(word, word[1:]))
        # No text may become a special token.
        pairs = {pair: often for pair, often in pairs.items() if "".join(pair) not in FORBIDDEN}
        (left, right), often = max(pairs.items(), key=lambda item: (item[1], item[0]))
        if often < 2:
            break
        merges.append((left, right))
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == (left, right):
                    word[i : i + 2] = [left + right]
                i += 1
    return merges


def byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def write(path, name, tokens, types, settings):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    settings(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def byte_level(pre):
    alphabet = byte_alphabet()
    merges = train(["".join(alphabet[byte] for byte in text.encode()) for text in CORPUS], 400)
    merged = list(dict.fromkeys(left + right for left, right in merges))
    tokens = SPECIAL + DEFINED + list(alphabet.values()) + merged
    types = [3] * len(SPECIAL) + [4] * len(DEFINED)

    def settings(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges([f"{left} {right}" for left, right in merges])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(False)

    return tokens, types + [1] * (len(tokens) - len(types)), settings


def sentence_piece(add_space_prefix):
    texts = [text.replace(" ", "\u2581") for text in CORPUS]
    pieces = list(dict.fromkeys(left + right for left, right in train(texts, 300)))
    # Characters that occur once have no token of their own and fall back to bytes.
    counts = collections.Counter("".join(texts))
    characters = [character for character, often in counts.most_common() if often > 1]
    start = ["<unk>", "<s>", "</s>", "<|endoftext|>", *SPECIAL, *DEFINED, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = start + pieces + characters
    types = [2, 3, 3, 3, 3, 3, 3, 4, 4] + [6] * 256 + [1] * (len(pieces) + len(characters))
    # Scores with ties, as trained models have them after rounding.
    scores = [0.0] * len(start) + [float(-(i // 2)) for i in range(len(pieces) + len(characters))]

    def settings(writer):
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores(scores)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_space_prefix(add_space_prefix)

    return tokens, types, settings


def tokenize(vocabulary, text, both):
    data = text.encode()
    room = len(data) + 8
    ids = (llama_cpp.llama_token * room)()
    count = llama_cpp.llama_tokenize(vocabulary, data, len(data), ids, room, both, both)
    assert count >= 0, text
    return list(ids[:count])


parameters = llama_cpp.llama_model_default_params()
parameters.vocab_only = True
folder = pathlib.Path(__file__).parent.parent / "engine/testdata/tokenizers"
folder.mkdir(parents=True, exist_ok=True)
kinds = {pre: (pre, byte_level(pre)) for pre in ["gpt-2", "smollm", "llama-bpe", "qwen2"]}
kinds["sentence-piece"] = ("Tiny", sentence_piece(True))
kinds["sentence-piece-no-prefix"] = ("Tiny", sentence_piece(False))
# llama.cpp knows by the name that special tokens take the white space behind them.
kinds["sentence-piece-phi3"] = ("Tiny Phi-3", sentence_piece(True))
for kind, (name, (tokens, types, settings)) in kinds.items():
    path = folder / f"{kind}.gguf"
    write(path, name, tokens, types, settings)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
    assert model, f"llama.cpp does not load {path}"
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    rows = []
    for text in CORPUS:
        # With the BOS token if the model wants one, and special tokens read as such; then neither.
        ids = [tokenize(vocabulary, text, both) for both in [True, False]]
        if any(types[id] in (2, 3) for id in ids[1]):
            # llama.cpp merges text to a control token if it is spelled like one; limpid never does.
            ids[1] = None
        rows.append(json.dumps({"text": text, "prompt": ids[0], "plain": ids[1]}))
    (folder / f"{kind}.json").write_text("[\n  " + ",\n  ".join(rows) + "\n]\n")
