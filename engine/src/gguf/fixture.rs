//! Test support: tiny llama models with random weights, complete with tokenizer and chat template.
//!
//! They compute nonsense, deterministically from a seed, and take a fraction of a megabyte; everything that
//! does not ask for sensible text can be tested on them.

use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{GgufError, Writer};
use crate::tensor_type::TensorType;
use crate::tokenizer::byte_level;

/// Control tokens of the fixture's vocabulary, from id 0 on.
pub const CONTROL_TOKENS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Id of `<|im_end|>`, which is the EOS token.
pub const EOS: u32 = 2;

/// Merges of the fixture's vocabulary, in the byte-level alphabet (`Ġ` is a space).
const MERGES: [(&str, &str); 16] = [
    ("h", "e"),
    ("t", "he"),
    ("Ġ", "the"),
    ("i", "n"),
    ("a", "n"),
    ("an", "d"),
    ("Ġ", "and"),
    ("l", "l"),
    ("he", "ll"),
    ("hell", "o"),
    ("Ġ", "w"),
    ("o", "r"),
    ("Ġw", "or"),
    ("l", "d"),
    ("Ġwor", "ld"),
    ("in", "g"),
];

/// ChatML, as in the models the vocabulary imitates.
pub const CHAT_TEMPLATE: &str = "{% for message in messages %}\
     {{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}\
     {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Sizes of a tiny model. Widths must be multiples of 32 for the quantised formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TinyLlama {
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values per head of queries and keys; even.
    pub head_size: usize,
    /// Values per head of values.
    pub value_head_size: usize,
    /// Width inside the feed-forward network.
    pub feed_forward: usize,
    /// Longest sequence.
    pub context_length: usize,
    /// Whether the embedding is also the output matrix.
    pub tied: bool,
    /// Format of every matrix; norm weights are F32.
    pub format: TensorType,
    /// Where the weights come from: equal seeds give equal files.
    pub seed: u64,
}

impl Default for TinyLlama {
    fn default() -> Self {
        TinyLlama {
            layers: 2,
            width: 64,
            heads: 4,
            kv_heads: 2,
            head_size: 16,
            value_head_size: 16,
            feed_forward: 128,
            context_length: 256,
            tied: true,
            format: TensorType::F32,
            seed: 1,
        }
    }
}

/// The tokens of every fixture: three control tokens, the 256 bytes, the merges.
pub fn vocabulary() -> Vec<String> {
    let control = CONTROL_TOKENS.iter().map(|token| (*token).to_owned());
    let bytes = (0..=255).map(|byte| byte_level::byte_to_char(byte).to_string());
    let merged = MERGES.iter().map(|(left, right)| format!("{left}{right}"));
    control.chain(bytes).chain(merged).collect()
}

/// Writes a tiny model to `path`.
///
/// The rows of the end tokens in the output matrix are zero, so their logits are exactly 0 and greedy
/// generation goes on until a limit ends it.
///
/// # Errors
/// The file cannot be written.
///
/// # Panics
/// If the format cannot store rows of the given widths.
pub fn write_tiny_llama(path: &Path, model: &TinyLlama) -> Result<(), GgufError> {
    tiny_llama(model).write(path)
}

/// The same before it is written, for tests that change something first.
pub fn tiny_llama(model: &TinyLlama) -> Writer {
    let mut writer = Writer::new();
    let vocabulary = vocabulary();
    let vocabulary_size = vocabulary.len();
    writer
        .set("general.architecture", "llama")
        .set("general.name", "Tiny random llama")
        .set("llama.block_count", model.layers as u32)
        .set("llama.context_length", model.context_length as u32)
        .set("llama.embedding_length", model.width as u32)
        .set("llama.feed_forward_length", model.feed_forward as u32)
        .set("llama.attention.head_count", model.heads as u32)
        .set("llama.attention.head_count_kv", model.kv_heads as u32)
        .set("llama.attention.key_length", model.head_size as u32)
        .set("llama.attention.value_length", model.value_head_size as u32)
        .set("llama.attention.layer_norm_rms_epsilon", 1e-5f32)
        .set("llama.rope.freq_base", 10_000f32)
        .set("llama.rope.dimension_count", model.head_size as u32);
    set_tokenizer(&mut writer, vocabulary);

    let mut random = Random(ChaCha8Rng::seed_from_u64(model.seed));
    let mut matrix = |name: &str, rows: usize, columns: usize, spread: f32| {
        let mut values = random.values(rows * columns, spread / (columns as f32).sqrt());
        if matches!(name, "token_embd.weight" | "output.weight") {
            for token in [0, EOS as usize] {
                values[token * columns..(token + 1) * columns].fill(0.0);
            }
        }
        writer.tensor(name, &[columns as u64, rows as u64], model.format, &values);
    };
    // The output matrix spreads the logits wide enough that the best one stands out on every device.
    matrix("token_embd.weight", vocabulary_size, model.width, 4.0);
    if !model.tied {
        matrix("output.weight", vocabulary_size, model.width, 4.0);
    }
    let (query, key) = (model.heads * model.head_size, model.kv_heads * model.head_size);
    let (attended, value) = (model.heads * model.value_head_size, model.kv_heads * model.value_head_size);
    for layer in 0..model.layers {
        let mut layer_matrix = |name: &str, rows, columns| {
            matrix(&format!("blk.{layer}.{name}.weight"), rows, columns, 1.0);
        };
        layer_matrix("attn_q", query, model.width);
        layer_matrix("attn_k", key, model.width);
        layer_matrix("attn_v", value, model.width);
        layer_matrix("attn_output", model.width, attended);
        layer_matrix("ffn_gate", model.feed_forward, model.width);
        layer_matrix("ffn_up", model.feed_forward, model.width);
        layer_matrix("ffn_down", model.width, model.feed_forward);
    }
    let mut norm = |name: &str| {
        let values: Vec<f32> = random.values(model.width, 0.2).iter().map(|value| 1.0 + value).collect();
        writer.tensor(name, &[model.width as u64], TensorType::F32, &values);
    };
    for layer in 0..model.layers {
        norm(&format!("blk.{layer}.attn_norm.weight"));
        norm(&format!("blk.{layer}.ffn_norm.weight"));
    }
    norm("output_norm.weight");
    writer
}

/// Sets the keys that describe a byte-level tokenizer with the given tokens and the fixture's merges.
fn set_tokenizer(writer: &mut Writer, vocabulary: Vec<String>) {
    let types: Vec<i32> =
        (0..vocabulary.len()).map(|id| if id < CONTROL_TOKENS.len() { 3 } else { 1 }).collect();
    let merges: Vec<String> = MERGES.iter().map(|(left, right)| format!("{left} {right}")).collect();
    writer
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", "smollm")
        .set("tokenizer.ggml.tokens", vocabulary)
        .set("tokenizer.ggml.token_type", types)
        .set("tokenizer.ggml.merges", merges)
        .set("tokenizer.ggml.bos_token_id", 1)
        .set("tokenizer.ggml.eos_token_id", EOS)
        .set("tokenizer.ggml.add_bos_token", false)
        .set("tokenizer.chat_template", CHAT_TEMPLATE);
}

/// Evenly distributed values.
struct Random(ChaCha8Rng);

impl Random {
    /// `count` values of zero mean and the given standard deviation.
    fn values(&mut self, count: usize, deviation: f32) -> Vec<f32> {
        // The top 24 bits give every f32 in [0, 1) of that grid; √12 is the inverse deviation of a uniform.
        let unit = |bits: u32| (bits >> 8) as f32 / (1 << 24) as f32;
        (0..count).map(|_| (unit(self.0.next_u32()) - 0.5) * 12f32.sqrt() * deviation).collect()
    }
}
