//! `limpid inspect`: what a model is and what serving it takes, without a device.
//!
//! Everything comes from the opened model and its program, so a model that can be inspected can be served. The
//! figures are those by which the server sizes itself: bytes of weights, of KV cache for one sequence, and of
//! activations for a batch of the default size.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::bail;
use limpid_engine::cache_layout::{CacheLayout, blocks_per_sequence};
use limpid_engine::config::EngineConfig;
use limpid_engine::model::{Model, Quantization};
use limpid_engine::program::{BatchShape, OpKind};

use crate::local::quantization_parser;
use crate::store::{self, human_bytes as size};

/// Arguments of `limpid inspect`.
#[derive(Clone, Debug, clap::Args)]
pub struct InspectArgs {
    /// The model: a GGUF file, a Hugging Face directory, a name in the store, or a source; the default model if
    /// absent
    pub model: Option<String>,

    /// Quantise the matrices of a Hugging Face directory while loading
    #[arg(long, value_name = "FORMAT", value_parser = quantization_parser())]
    pub quantization: Option<Quantization>,

    /// Length of the sequence that memory and costs are stated for [default: the model's context length]
    #[arg(long, value_name = "TOKENS")]
    pub max_model_len: Option<usize>,
}

/// Prints the inspection.
///
/// # Errors
/// The model is not found or cannot be opened, or the context is out of its range.
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let path = store::resolve(args.model.as_deref())?;
    let model = Model::open_quantized(&path, args.quantization)?;
    let context = args.max_model_len.unwrap_or(model.context_length);
    if !(1..=model.context_length).contains(&context) {
        bail!("--max-model-len is {context}; the model allows 1 to {}", model.context_length);
    }
    describe(&model, context, &mut io::stdout().lock())?;
    Ok(())
}

/// Writes one line a fact.
fn describe(model: &Model, context: usize, out: &mut impl Write) -> io::Result<()> {
    let program = &model.program;
    let mut line = |name: &str, value: String| writeln!(out, "{name:<16}{value}");
    let kind = if model.path.is_dir() { "directory" } else { "file" };
    line(kind, format!("{}, {}", model.path.display(), size(model.file_bytes)))?;
    line("name", model.name.clone().unwrap_or_else(|| "unnamed".to_owned()))?;
    let heads = program.ops.iter().find_map(|op| match op.kind {
        OpKind::Attention { num_heads, .. } => Some(num_heads),
        _ => None,
    });
    let head_sizes = match (program.head_size, program.value_head_size) {
        (key, value) if key == value => format!("{key} values"),
        (key, value) => format!("{key} dimensions for keys and {value} for values"),
    };
    let width = |name: &str| program.buffers.iter().find(|buffer| buffer.name == name).map_or(0, |b| b.width);
    line(
        "architecture",
        format!(
            "{}: {} layers of width {}, feed-forward width {}, {} query heads on {} KV heads of {}",
            model.architecture,
            program.num_layers,
            width("hidden"),
            width("gate"),
            heads.unwrap_or(0),
            program.num_kv_heads,
            head_sizes
        ),
    )?;
    line("parameters", format!("{:.1} million", model.parameters as f64 / 1e6))?;
    line("context length", format!("{} tokens", model.context_length))?;
    let tokens = &model.tokenizer;
    line("tokenizer", format!("{}; {} tokens", tokens.describe(), tokens.vocabulary_size()))?;
    let spell = |id: u32| {
        let bytes = tokens.token_bytes(id, true).unwrap_or_default();
        format!("{id} {:?}", String::from_utf8_lossy(bytes))
    };
    let ends: Vec<String> = tokens.end_token_ids().iter().map(|id| spell(*id)).collect();
    line("end tokens", if ends.is_empty() { "none".to_owned() } else { ends.join(", ") })?;
    line("chat template", if model.chat_template.is_some() { "yes" } else { "none" }.to_owned())?;

    let mut formats: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for weight in &program.weights {
        let (count, bytes) = formats.entry(weight.format.name()).or_default();
        *count += 1;
        *bytes += weight.bytes() as u64;
    }
    let mut formats: Vec<_> = formats.into_iter().collect();
    formats.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
    let total = program.weight_bytes();
    for (index, (name, (count, bytes))) in formats.into_iter().enumerate() {
        let share = 100.0 * bytes as f64 / total.max(1) as f64;
        let label = if index == 0 { "weights" } else { "" };
        line(label, format!("{name:<7}{count:>5} tensors, {}, {share:.1}%", size(bytes)))?;
    }

    let defaults = EngineConfig::default();
    let activations = program.activation_bytes(defaults.max_num_batched_tokens, defaults.max_num_seqs);
    let windows = CacheLayout::of(program).windows;
    let (block_size, chunk) = (defaults.block_size, defaults.max_num_batched_tokens);
    let blocks = blocks_per_sequence(&windows, block_size, context, chunk) as u64;
    let cache = blocks * block_size as u64 * program.kv_bytes_per_slot();
    // Layers with a window stop growing when it is full.
    let growing = windows.iter().filter(|window| window.is_none()).count().max(1) as u64;
    line("memory", format!("{} with one sequence of {context} tokens:", size(total + cache + activations)))?;
    line("  weights", size(total))?;
    line("  KV cache", format!("{}, {} a token", size(cache), size(growing * program.kv_bytes_per_slot())))?;
    if let Some(window) = program.window() {
        let num_windowed = program.ops.iter().filter(|op| is_windowed(&op.kind)).count();
        line("  windows", format!("{window} tokens in {num_windowed} of {} layers", program.num_layers))?;
    }
    line(
        "  activations",
        format!("{} for batches of {} tokens", size(activations), defaults.max_num_batched_tokens),
    )?;
    for (label, attended) in [("first token", 1), ("last token", context as u64)] {
        let seen = program.window().map_or(attended, |window| attended.min(window as u64));
        let batch = BatchShape {
            tokens: 1,
            logits_rows: 1,
            attended,
            context: attended,
            window_attended: seen,
            window_context: seen,
        };
        let cost = program.total_cost(batch);
        let moved = cost.bytes_read + cost.bytes_written;
        line(label, format!("{}, {} moved", operations(cost.flops), size(moved)))?;
    }
    Ok(())
}

fn is_windowed(kind: &OpKind) -> bool {
    matches!(kind, OpKind::Attention { window: Some(_), .. })
}

/// Operations for people to read.
fn operations(flops: u64) -> String {
    match flops {
        0..1_000_000_000 => format!("{:.3} MFLOP", flops as f64 / 1e6),
        _ => format!("{:.2} GFLOP", flops as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use limpid_engine::gguf::fixture::{TinyLlama, write_tiny_llama};
    use limpid_engine::tensor_type::TensorType;

    use super::*;

    fn inspect(tiny: &TinyLlama, context: usize) -> String {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        write_tiny_llama(file.path(), tiny).expect("room for a small file");
        let model = Model::open(file.path()).expect("a valid model");
        let mut out = Vec::new();
        describe(&model, context, &mut out).expect("memory is writable");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn every_fact_of_a_model_is_told() {
        let text = inspect(&TinyLlama { format: TensorType::Q4_1, ..TinyLlama::default() }, 100);
        for fact in [
            "name            Tiny random llama",
            "architecture    llama: 2 layers of width 64, feed-forward width 128, 4 query heads on 2 KV heads of 16",
            "context length  256 tokens",
            "byte-level BPE, pre-tokeniser smollm; 275 tokens",
            "end tokens      0 \"<|endoftext|>\", 2 \"<|im_end|>\"",
            "chat template   yes",
            "weights         Q4_1      15 tensors",
            "                F32        5 tensors",
            "with one sequence of 100 tokens:",
            // 7 blocks of 16 tokens: 2 layers, keys and values, 2 heads of 16 floats.
            "KV cache      57.3 kB, 0.5 kB a token",
        ] {
            assert!(text.contains(fact), "{fact:?} is not in\n{text}");
        }
    }

    #[test]
    fn heads_of_two_sizes_are_told_apart() {
        let text = inspect(&TinyLlama { value_head_size: 24, ..TinyLlama::default() }, 100);
        for fact in [
            "4 query heads on 2 KV heads of 16 dimensions for keys and 24 for values",
            // 7 blocks of 16 tokens: 2 layers, 2 heads of 16 and of 24 floats.
            "KV cache      71.7 kB, 0.6 kB a token",
        ] {
            assert!(text.contains(fact), "{fact:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_later_token_costs_more_than_the_first() {
        let text = inspect(&TinyLlama::default(), 256);
        let line = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).expect("there is such a line");
            line[16..].split(' ').next().and_then(|figure| figure.parse::<f64>().ok()).expect("a figure")
        };
        // Four times the values of the heads for each position attended to, in two layers.
        let difference = line("last token") - line("first token");
        assert!((difference - 255.0 * 2.0 * 4.0 * 64.0 / 1e6).abs() <= 2e-3, "{text}");
    }
}
