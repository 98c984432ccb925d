//! Test support: a GGUF file's model as a Hugging Face directory, as if the one had been converted from the other.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::{Map, Value, json};

use super::architecture::{ARCHITECTURES, Architecture, COUNTS};
use super::row_before_permutation;
use crate::gguf::{FromValue, GgufFile};
use crate::tensor_type::TensorType;

/// How the weights are written.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// F32, F16 or BF16, for all tensors.
    pub format: TensorType,
    /// Files the tensors are dealt out to; more than one have an index.
    pub files: usize,
}

type ShapeAndBytes = (Vec<usize>, Vec<u8>);

/// Writes the directory's files. The model's matrices may be of any format, its values are what is written.
///
/// # Errors
/// A file cannot be written.
///
/// # Panics
/// If the model is of a kind that has no counterpart.
pub fn write_directory(gguf: &GgufFile, directory: &Path, layout: Layout) -> io::Result<()> {
    let architecture = ARCHITECTURES
        .iter()
        .find(|known| known.name == get::<&str>(gguf, "general.architecture"))
        .expect("an architecture of Hugging Face");
    let write = |name: &str, value: Value| std::fs::write(directory.join(name), value.to_string());
    write("config.json", config(gguf, architecture))?;
    write("tokenizer.json", tokenizer(gguf))?;
    write("tokenizer_config.json", tokenizer_config(gguf))?;
    write(
        "generation_config.json",
        json!({"eos_token_id": [get::<u32>(gguf, "tokenizer.ggml.eos_token_id")]}),
    )?;
    let mut files: Vec<BTreeMap<String, ShapeAndBytes>> = vec![BTreeMap::new(); layout.files];
    for (index, tensor) in gguf.tensors().enumerate() {
        let shape: Vec<usize> = tensor.dimensions.iter().rev().map(|size| *size as usize).collect();
        let mut values = vec![0.0; shape.iter().product()];
        let format = tensor.format.supported().expect("a fixture's format");
        format.dequantize(gguf.bytes(tensor.range), &mut values);
        let heads = match tensor.name.rsplit('.').nth(1) {
            Some("attn_q") => Some("attention.head_count"),
            Some("attn_k") => Some("attention.head_count_kv"),
            _ => None,
        };
        if let Some(heads) = heads.filter(|_| architecture.permutes_heads) {
            let heads = get::<u32>(gguf, &format!("{}.{heads}", architecture.name)) as usize;
            values = before_permutation(&values, shape[0], shape[0] / heads);
        }
        if architecture.norms_from_one && tensor.name.ends_with("norm.weight") {
            values.iter_mut().for_each(|value| *value -= 1.0);
        }
        let name = architecture.tensor_here(tensor.name).expect("a tensor of the architecture");
        files[index % layout.files].insert(name, (shape, layout.format.quantize(&values)));
    }
    let mut index = Map::new();
    for (number, tensors) in files.iter().enumerate() {
        let name = match layout.files {
            1 => "model.safetensors".to_owned(),
            files => format!("model-{:05}-of-{files:05}.safetensors", number + 1),
        };
        let views = tensors.iter().map(|(name, (shape, bytes))| {
            let view =
                TensorView::new(dtype(layout.format), shape.clone(), bytes).expect("shape and bytes agree");
            (name.as_str(), view)
        });
        serialize_to_file(views, None, &directory.join(&name)).map_err(io::Error::other)?;
        index.extend(tensors.keys().map(|tensor| (tensor.clone(), json!(name))));
    }
    match layout.files {
        1 => Ok(()),
        _ => write("model.safetensors.index.json", json!({"metadata": {}, "weight_map": index})),
    }
}

fn dtype(format: TensorType) -> Dtype {
    match format {
        TensorType::F32 => Dtype::F32,
        TensorType::F16 => Dtype::F16,
        TensorType::Bf16 => Dtype::BF16,
        other => panic!("no directory has {other:?}"),
    }
}

fn get<'a, T: FromValue<'a>>(gguf: &'a GgufFile, key: &str) -> T {
    gguf.metadata().require(key).expect("fixtures have it")
}

/// Rows in the order in which the values that turn together are half a head apart.
fn before_permutation(values: &[f32], rows: usize, head_size: usize) -> Vec<f32> {
    let columns = values.len() / rows;
    let mut out = vec![0.0; values.len()];
    for (row, values) in values.chunks_exact(columns).enumerate() {
        let row = row_before_permutation(row, head_size);
        out[row * columns..][..columns].copy_from_slice(values);
    }
    out
}

fn config(gguf: &GgufFile, architecture: &Architecture) -> Value {
    let key = |name: &str| format!("{}.{name}", architecture.name);
    let mut config = Map::new();
    for (own, name) in COUNTS {
        config.insert(own.to_owned(), json!(get::<u32>(gguf, &key(name))));
    }
    let (head_size, rotary) =
        (get::<u32>(gguf, &key("attention.key_length")), get::<u32>(gguf, &key("rope.dimension_count")));
    let settings = json!({
        "model_type": architecture.model_types[0],
        (architecture.activation.0): architecture.activation.1,
        "vocab_size": gguf.tensor("token_embd.weight").map(|tensor| tensor.dimensions[1]),
        "tie_word_embeddings": gguf.tensor("output.weight").is_none(),
        "head_dim": head_size,
        "partial_rotary_factor": f64::from(rotary) / f64::from(head_size),
        "rms_norm_eps": get::<f32>(gguf, &key("attention.layer_norm_rms_epsilon")),
        "rope_theta": get::<f32>(gguf, &key("rope.freq_base")),
        "rope_scaling": null,
    });
    let Value::Object(settings) = settings else { unreachable!("written as one") };
    config.extend(settings);
    if architecture.name == "gemma3" {
        config.insert("sliding_window".to_owned(), json!(get::<u32>(gguf, &key("attention.sliding_window"))));
        config.insert("query_pre_attn_scalar".to_owned(), json!(head_size));
        let layers = get::<u32>(gguf, &key("block_count"));
        // GGUF's readers know it, a directory says it.
        let kind = |layer| if layer % 6 == 5 { "full_attention" } else { "sliding_attention" };
        config.insert("layer_types".to_owned(), (0..layers).map(kind).collect());
    }
    Value::Object(config)
}

/// `tokenizer.json`.
pub(super) fn tokenizer(gguf: &GgufFile) -> Value {
    let tokens: Vec<&str> = get(gguf, "tokenizer.ggml.tokens");
    let types: Vec<i32> = get(gguf, "tokenizer.ggml.token_type");
    let is_text = |id: usize| matches!(types[id], 1 | 6);
    // The library gives other ids to added tokens that are not in the vocabulary too.
    let vocabulary: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect();
    let added = |id: usize| {
        json!({"id": id, "content": tokens[id], "special": types[id] != 4, "normalized": false,
               "single_word": false, "lstrip": false, "rstrip": false})
    };
    let added: Vec<Value> = (0..tokens.len()).filter(|id| !is_text(*id)).map(added).collect();
    let mut file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocabulary}
    });
    if get::<&str>(gguf, "tokenizer.ggml.model") == "llama" {
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
        let prepend = json!({"type": "Prepend", "prepend": "\u{2581}"});
        let prepends = get::<bool>(gguf, "tokenizer.ggml.add_space_prefix");
        let steps = if prepends { vec![prepend, replace] } else { vec![replace] };
        file["normalizer"] = json!({"type": "Sequence", "normalizers": steps});
        file["model"]["byte_fallback"] = json!(true);
        file["model"]["merges"] = json!(merges_by_score(gguf, &tokens, &types));
        return file;
    }
    let byte_level = |use_regex| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let pre: &str = get(gguf, "tokenizer.ggml.pre");
    let steps = match pre {
        "smollm" => vec![json!({"type": "Digits", "individual_digits": true}), byte_level(true)],
        "gpt-2" => vec![byte_level(true)],
        pre => {
            let known = super::tokenizer::PATTERNS.into_iter().find(|(_, name)| *name == pre);
            let (pattern, _) = known.expect("a pattern of ours");
            let split = json!({
                "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false
            });
            vec![split, byte_level(false)]
        }
    };
    file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": steps});
    file["model"]["ignore_merges"] = json!(pre == "llama-bpe");
    file["model"]["merges"] = json!(get::<Vec<&str>>(gguf, "tokenizer.ggml.merges"));
    file
}

/// All ways to make a token of two, those of the best scores first.
fn merges_by_score(gguf: &GgufFile, tokens: &[&str], types: &[i32]) -> Vec<[String; 2]> {
    let scores: Vec<f32> = get(gguf, "tokenizer.ggml.scores");
    let mut text: Vec<usize> = (0..tokens.len()).filter(|id| types[*id] == 1).collect();
    let known: HashSet<&str> = text.iter().map(|id| tokens[*id]).collect();
    text.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let splits = text.into_iter().flat_map(|id| {
        let places = tokens[id].char_indices().skip(1);
        places.map(move |(place, _)| tokens[id].split_at(place))
    });
    splits
        .filter(|(left, right)| known.contains(left) && known.contains(right))
        .map(|(left, right)| [left.to_owned(), right.to_owned()])
        .collect()
}

fn tokenizer_config(gguf: &GgufFile) -> Value {
    let tokens: Vec<&str> = get(gguf, "tokenizer.ggml.tokens");
    let token = |key: &str| gguf.metadata().get::<u32>(key).ok().flatten().map(|id| tokens[id as usize]);
    json!({
        "bos_token": token("tokenizer.ggml.bos_token_id"),
        "eos_token": {"content": token("tokenizer.ggml.eos_token_id"), "lstrip": false},
        "add_bos_token": get::<bool>(gguf, "tokenizer.ggml.add_bos_token"),
        "chat_template": gguf.metadata().get::<&str>("tokenizer.chat_template").ok().flatten(),
    })
}
