//! Llama: a decoder of pre-normalised layers with rotary positions, grouped-query attention and a gated
//! feed-forward network. SmolLM2 and TinyLlama are of this shape too.
//!
//! [`Settings`] reads and bounds the hyperparameters; [`build`] writes the forward pass down once, in the
//! order of the paper. What a file asks for beyond that is refused by name, never ignored: a program that
//! leaves something out gives wrong texts, not errors.

use std::ops::Range;

use super::ModelProblem;
use super::builder::ProgramBuilder;
use super::settings::{MAX_WIDTH, count, optional_count, positive, refuse};
use crate::gguf::{GgufFile, Metadata};
use crate::program::{OpKind, Program, RopeStyle, Rows};

pub(super) const ARCHITECTURE: &str = "llama";

const LAYERS: &str = "llama.block_count";
const WIDTH: &str = "llama.embedding_length";
const FEED_FORWARD: &str = "llama.feed_forward_length";
const HEADS: &str = "llama.attention.head_count";
const KV_HEADS: &str = "llama.attention.head_count_kv";
const KEY_LENGTH: &str = "llama.attention.key_length";
const VALUE_LENGTH: &str = "llama.attention.value_length";
const EPSILON: &str = "llama.attention.layer_norm_rms_epsilon";
const ROTARY: &str = "llama.rope.dimension_count";
const ROPE_BASE: &str = "llama.rope.freq_base";
const ROPE_SCALING: &str = "llama.rope.scaling.type";
const ROPE_FACTORS: [&str; 2] = ["llama.rope.scaling.factor", "llama.rope.scale_linear"];
const ROPE_FREQUENCIES: &str = "rope_freqs.weight";

/// Keys of variants that the program does not compute unless they are 0.
const VARIANTS: [(&str, &str); 2] = [
    ("llama.expert_count", "mixtures of experts are not supported"),
    ("llama.attention.sliding_window", "sliding windows are not supported"),
];

/// Hyperparameters, checked.
struct Settings {
    layers: usize,
    width: usize,
    feed_forward: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    rotary: usize,
    rope_base: f32,
    epsilon: f32,
}

impl Settings {
    fn read(file: &GgufFile) -> Result<Settings, ModelProblem> {
        let metadata = file.metadata();
        refuse_variants(metadata)?;
        refuse_rope_scaling(file)?;
        // Every layer has tensors of its own, so a forged number of layers cannot make the program larger
        // than the file.
        let layers = count(metadata, LAYERS, file.tensors().len())?;
        let width = count(metadata, WIDTH, MAX_WIDTH)?;
        let heads = count(metadata, HEADS, MAX_WIDTH)?;
        let kv_heads = optional_count(metadata, KV_HEADS, MAX_WIDTH)?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(refuse(KV_HEADS, kv_heads, format!("it must divide `{HEADS}`, which is {heads}")));
        }
        let head_size = head_size(metadata, width, heads)?;
        let rotary = optional_count(metadata, ROTARY, MAX_WIDTH)?.unwrap_or(head_size);
        if rotary > head_size || !rotary.is_multiple_of(2) {
            let allowed = format!("it must be even and at most the size of a head, which is {head_size}");
            return Err(refuse(ROTARY, rotary, allowed));
        }
        Ok(Settings {
            layers,
            width,
            feed_forward: count(metadata, FEED_FORWARD, MAX_WIDTH)?,
            heads,
            kv_heads,
            head_size,
            rotary,
            rope_base: positive(ROPE_BASE, metadata.get(ROPE_BASE)?.unwrap_or(10_000.0))?,
            epsilon: positive(EPSILON, metadata.require(EPSILON)?)?,
        })
    }
}

fn head_size(metadata: Metadata<'_>, width: usize, heads: usize) -> Result<usize, ModelProblem> {
    let head_size = match optional_count(metadata, KEY_LENGTH, MAX_WIDTH)? {
        Some(head_size) => head_size,
        None if width.is_multiple_of(heads) => width / heads,
        None => {
            let allowed = format!("without `{KEY_LENGTH}` it must divide `{WIDTH}`, which is {width}");
            return Err(refuse(HEADS, heads, allowed));
        }
    };
    match optional_count(metadata, VALUE_LENGTH, MAX_WIDTH)? {
        Some(value_size) if value_size != head_size => Err(refuse(
            VALUE_LENGTH,
            value_size,
            format!("it must equal the size of a key, which is {head_size}"),
        )),
        _ => Ok(head_size),
    }
}

fn refuse_variants(metadata: Metadata<'_>) -> Result<(), ModelProblem> {
    for (key, reason) in VARIANTS {
        match metadata.get::<u32>(key)? {
            None | Some(0) => {}
            Some(found) => return Err(refuse(key, found, reason)),
        }
    }
    Ok(())
}

fn refuse_rope_scaling(file: &GgufFile) -> Result<(), ModelProblem> {
    const ALLOWED: &str = "scaled rotary positions are not supported";
    let metadata = file.metadata();
    let scaling: Option<&str> = metadata.get(ROPE_SCALING)?;
    match scaling {
        Some("none") => {}
        Some(found) => return Err(refuse(ROPE_SCALING, found, ALLOWED)),
        // Without a type a factor means linear scaling; 0 and 1 mean none.
        None => {
            for key in ROPE_FACTORS {
                match metadata.get::<f32>(key)? {
                    None | Some(0.0 | 1.0) => {}
                    Some(found) => return Err(refuse(key, found, ALLOWED)),
                }
            }
        }
    }
    match file.tensor(ROPE_FREQUENCIES) {
        None => Ok(()),
        Some(tensor) => {
            Err(refuse(ROPE_FREQUENCIES, format!("a tensor of {:?} values", tensor.dimensions), ALLOWED))
        }
    }
}

/// The forward pass, and where each weight's bytes are in the file.
pub(super) fn build(
    file: &GgufFile,
    vocabulary: usize,
) -> Result<(Program, Vec<Range<usize>>), ModelProblem> {
    let settings = Settings::read(file)?;
    let Settings { layers, width, feed_forward, heads, kv_heads, head_size, epsilon, .. } = settings;
    let (query_width, kv_width) = (heads * head_size, kv_heads * head_size);
    let mut program = ProgramBuilder::new(file, ARCHITECTURE);

    let hidden = program.buffer("hidden", Rows::Tokens, width);
    let normed = program.buffer("normed", Rows::Tokens, width);
    let query = program.buffer("query", Rows::Tokens, query_width);
    let key = program.buffer("key", Rows::Tokens, kv_width);
    let value = program.buffer("value", Rows::Tokens, kv_width);
    let attended = program.buffer("attended", Rows::Tokens, query_width);
    let gate = program.buffer("gate", Rows::Tokens, feed_forward);
    let up = program.buffer("up", Rows::Tokens, feed_forward);
    let last_hidden = program.buffer("last_hidden", Rows::Logits, width);
    let last_normed = program.buffer("last_normed", Rows::Logits, width);
    let logits = program.buffer("logits", Rows::Logits, vocabulary);

    let embedding = program.matrix("token_embd.weight", vocabulary, width);
    program.op("embed", OpKind::Embed { table: embedding, out: hidden });

    for layer in 0..layers {
        let tensor = |part: &str| format!("blk.{layer}.{part}.weight");
        let op = |part: &str| format!("layer.{layer}.{part}");
        let norm = |input, weight, out| OpKind::RmsNorm { input, weight, out, epsilon };
        let matmul = |input, weight, out| OpKind::MatMul { input, weight, out, accumulate: false };
        let residual = |input, weight| OpKind::MatMul { input, weight, out: hidden, accumulate: true };
        let rope = |buffer, num_heads| OpKind::Rope {
            buffer,
            num_heads,
            head_size,
            rotary: settings.rotary,
            base: settings.rope_base,
            style: RopeStyle::Pairs,
        };

        let attention_norm = program.vector(&tensor("attn_norm"), width);
        program.op(op("attention_norm"), norm(hidden, attention_norm, normed));
        let query_matrix = program.matrix(&tensor("attn_q"), query_width, width);
        program.op(op("query"), matmul(normed, query_matrix, query));
        let key_matrix = program.matrix(&tensor("attn_k"), kv_width, width);
        program.op(op("key"), matmul(normed, key_matrix, key));
        let value_matrix = program.matrix(&tensor("attn_v"), kv_width, width);
        program.op(op("value"), matmul(normed, value_matrix, value));
        program.op(op("query_rope"), rope(query, heads));
        program.op(op("key_rope"), rope(key, kv_heads));
        program.op(op("store_kv"), OpKind::StoreKv { key, value, layer });
        let scale = 1.0 / (head_size as f32).sqrt();
        program
            .op(op("attention"), OpKind::Attention { query, out: attended, layer, num_heads: heads, scale });
        let attention_output = program.matrix(&tensor("attn_output"), width, query_width);
        program.op(op("attention_output"), residual(attended, attention_output));

        let feed_forward_norm = program.vector(&tensor("ffn_norm"), width);
        program.op(op("feed_forward_norm"), norm(hidden, feed_forward_norm, normed));
        let gate_matrix = program.matrix(&tensor("ffn_gate"), feed_forward, width);
        program.op(op("gate"), matmul(normed, gate_matrix, gate));
        let up_matrix = program.matrix(&tensor("ffn_up"), feed_forward, width);
        program.op(op("up"), matmul(normed, up_matrix, up));
        program.op(op("silu_mul"), OpKind::SiluMul { gate, up, out: gate });
        let down_matrix = program.matrix(&tensor("ffn_down"), width, feed_forward);
        program.op(op("down"), residual(gate, down_matrix));
    }

    // Only the rows whose logits are wanted go on: the output matrix is the largest of all.
    program.op("gather_rows", OpKind::GatherRows { input: hidden, out: last_hidden });
    let output_norm = program.vector("output_norm.weight", width);
    program.op(
        "output_norm",
        OpKind::RmsNorm { input: last_hidden, weight: output_norm, out: last_normed, epsilon },
    );
    // Without a matrix of its own the output uses the embedding's.
    let output = match file.tensor("output.weight") {
        Some(_) => program.matrix("output.weight", vocabulary, width),
        None => embedding,
    };
    program
        .op("logits", OpKind::MatMul { input: last_normed, weight: output, out: logits, accumulate: false });

    program.finish(logits, layers, kv_heads, head_size)
}
