//! Every architecture in every format against llama.cpp: the models of `scripts/format-golden.py`, made here byte
//! for byte as there, on the reference functions and on both devices.

use std::collections::BTreeMap;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::golden_tests::{LIMITS, batch};
use super::{ARCHITECTURES, Model};
use crate::device::{self, Adapter, Device};
use crate::gguf::Writer;
use crate::kernels::reference_device::ReferenceDevice;
use crate::tensor_type::TensorType;
use crate::test_support;

/// How far logits may be from what llama.cpp computes with the same values in F32, as a share of the largest.
const EXACT: f32 = 1e-4;

/// How far they may be from what it computes with the packed blocks, as a share of the logits' deviation: it
/// rounds activations to 8 bits, which moves its own logits by up to 0.11 of it.
const PACKED: f32 = 0.15;

const WIDTH: usize = 256;
const FEED_FORWARD: usize = 256;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 64;
const LAYERS: usize = 2;

#[derive(Deserialize)]
struct Golden {
    tokens: Vec<u32>,
    models: BTreeMap<String, GoldenModel>,
}

#[derive(Deserialize)]
struct GoldenModel {
    /// Of the tensors' bytes.
    sum: String,
    exact: Vec<Vec<f32>>,
    packed: Vec<Vec<f32>>,
}

/// Where a block has a number that must be sane: its bytes, the bits that stay random, the bits that are set.
type Field = (usize, usize, u32, u32);

fn fields(format: TensorType) -> Vec<Field> {
    // Signless halves of one exponent.
    let half = |offset, exponent: u32| (offset, 2, 0x03ff, exponent << 10);
    let negative = |offset, exponent: u32| (offset, 2, 0x03ff, 0x8000 | exponent << 10);
    match format {
        TensorType::F32 => vec![(0, 4, 0x807f_ffff, 122 << 23)],
        TensorType::F16 => vec![(0, 2, 0x83ff, 10 << 10)],
        TensorType::Bf16 => vec![(0, 2, 0x807f, 122 << 7)],
        TensorType::Q4_0 => vec![half(0, 8)],
        TensorType::Q4_1 => vec![half(0, 8), negative(2, 11)],
        TensorType::Q5_0 => vec![half(0, 7)],
        TensorType::Q5_1 => vec![half(0, 7), negative(2, 11)],
        TensorType::Q8_0 | TensorType::IQ4_NL => vec![half(0, 4)],
        TensorType::Q2_K => vec![half(80, 7), half(82, 8)],
        TensorType::Q3_K => vec![half(108, 5)],
        TensorType::Q4_K => vec![half(0, 3), half(2, 6)],
        TensorType::Q5_K => vec![half(0, 2), half(2, 6)],
        TensorType::Q6_K => vec![half(208, 1)],
        TensorType::MXFP4 => vec![(0, 1, 0x03, 0x78)],
    }
}

/// The bytes of splitmix64, seeded with the FNV-1a hash of a name.
fn random_bytes(name: &str, count: usize) -> Vec<u8> {
    let mut state = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend((z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// Random blocks with sane numbers in their fields.
fn blocks(name: &str, count: usize, size: usize, fields: &[Field]) -> Vec<u8> {
    let mut bytes = random_bytes(name, count * size);
    for block in bytes.chunks_exact_mut(size) {
        for (offset, len, keep, bits) in fields {
            let mut word = [0; 4];
            word[..*len].copy_from_slice(&block[*offset..offset + len]);
            let word = (u32::from_le_bytes(word) & keep | bits).to_le_bytes();
            block[*offset..offset + len].copy_from_slice(&word[..*len]);
        }
    }
    bytes
}

/// A model in the making.
struct Maker {
    prefix: String,
    format: TensorType,
    writer: Writer,
    sum: Sha256,
}

impl Maker {
    fn add(&mut self, name: &str, dimensions: &[usize], format: TensorType, fields: &[Field]) {
        let values = dimensions.iter().product::<usize>();
        let count = values / format.block_elements();
        let bytes = blocks(&format!("{}{name}", self.prefix), count, format.block_bytes(), fields);
        self.sum.update(&bytes);
        let dimensions: Vec<u64> = dimensions.iter().map(|size| *size as u64).collect();
        self.writer.raw_tensor(name, &dimensions, format.ggml_number(), bytes);
    }

    fn weight(&mut self, name: &str, rows: usize, columns: usize) {
        self.add(&format!("{name}.weight"), &[columns, rows], self.format, &fields(self.format));
    }

    /// From 0.5 to 1.
    fn norm(&mut self, name: &str, width: usize) {
        let fields = [(0, 4, 0x007f_ffff, 126 << 23)];
        self.add(&format!("{name}.weight"), &[width], TensorType::F32, &fields);
    }

    /// From 0.125 to 0.25, of either sign.
    fn bias(&mut self, name: &str, width: usize) {
        let fields = [(0, 4, 0x807f_ffff, 124 << 23)];
        self.add(&format!("{name}.bias"), &[width], TensorType::F32, &fields);
    }
}

/// The model and the sum of its tensors.
fn make(architecture: &str, format: TensorType) -> (Writer, String) {
    let letters = ('a'..='z').map(String::from);
    let mut vocabulary = ["<|endoftext|>", "<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    vocabulary.extend(letters.chain([".", "ab"].map(str::to_owned)));
    let types: Vec<i32> = (0..vocabulary.len()).map(|id| if id < 4 { 3 } else { 1 }).collect();
    let tokens = vocabulary.len();
    let mut writer = Writer::new();
    let key = |name: &str| format!("{architecture}.{name}");
    writer
        .set("general.architecture", architecture)
        .set(&key("block_count"), LAYERS as u32)
        .set(&key("context_length"), 128)
        .set(&key("embedding_length"), WIDTH as u32)
        .set(&key("feed_forward_length"), FEED_FORWARD as u32)
        .set(&key("attention.head_count"), HEADS as u32)
        .set(&key("attention.head_count_kv"), KV_HEADS as u32)
        .set(&key("attention.key_length"), HEAD as u32)
        .set(&key("attention.value_length"), HEAD as u32)
        .set(&key("attention.layer_norm_rms_epsilon"), 1e-5f32)
        .set(&key("rope.dimension_count"), HEAD as u32)
        .set(&key("rope.freq_base"), 10_000f32)
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", "qwen2")
        .set("tokenizer.ggml.tokens", vocabulary)
        .set("tokenizer.ggml.token_type", types)
        .set("tokenizer.ggml.merges", vec!["a b".to_owned()])
        .set("tokenizer.ggml.eos_token_id", 0)
        .set("tokenizer.ggml.add_bos_token", false);
    if architecture == "gemma3" {
        writer.set(&key("attention.sliding_window"), 4);
    }
    let prefix = format!("{architecture} {} ", format.name());
    let mut maker = Maker { prefix, format, writer, sum: Sha256::new() };
    let (query, keys, fused) = (HEADS * HEAD, KV_HEADS * HEAD, architecture == "phi3");
    maker.weight("token_embd", tokens, WIDTH);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}");
        maker.norm(&name("attn_norm"), WIDTH);
        if fused {
            maker.weight(&name("attn_qkv"), query + 2 * keys, WIDTH);
        } else {
            for (part, rows) in [("attn_q", query), ("attn_k", keys), ("attn_v", keys)] {
                maker.weight(&name(part), rows, WIDTH);
                if architecture == "qwen2" {
                    maker.bias(&name(part), rows);
                }
            }
        }
        if matches!(architecture, "qwen3" | "gemma3") {
            maker.norm(&name("attn_q_norm"), HEAD);
            maker.norm(&name("attn_k_norm"), HEAD);
        }
        maker.weight(&name("attn_output"), WIDTH, query);
        if architecture == "gemma3" {
            maker.norm(&name("post_attention_norm"), WIDTH);
            maker.norm(&name("post_ffw_norm"), WIDTH);
        }
        maker.norm(&name("ffn_norm"), WIDTH);
        if !fused {
            maker.weight(&name("ffn_gate"), FEED_FORWARD, WIDTH);
        }
        maker.weight(&name("ffn_up"), if fused { 2 * FEED_FORWARD } else { FEED_FORWARD }, WIDTH);
        maker.weight(&name("ffn_down"), WIDTH, FEED_FORWARD);
    }
    maker.norm("output_norm", WIDTH);
    let sum = maker.sum.finalize();
    (maker.writer, sum[..8].iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The largest distance of two sets of logits, or infinity if one of them is no number.
fn distance(ours: &[f32], golden: &[Vec<f32>]) -> f32 {
    let apart = ours.iter().zip(golden.iter().flatten()).map(|(a, b)| (a - b).abs());
    apart.fold(0.0, |most, apart| {
        if apart <= most {
            most
        } else if apart.is_nan() {
            f32::INFINITY
        } else {
            apart
        }
    })
}

/// What is wrong with a device's logits.
fn gaps(
    name: &str,
    what: &str,
    device: &mut dyn Device,
    tokens: &[u32],
    golden: &GoldenModel,
) -> Vec<String> {
    let mut logits = Vec::new();
    device.execute(&batch(tokens, 0, tokens.len(), 1), &mut logits).unwrap();
    let kept = golden.exact.iter().flatten().count();
    let ours = &logits[logits.len() - kept..];
    let all = || golden.exact.iter().flatten();
    let largest = all().fold(0f32, |largest, value| largest.max(value.abs()));
    let mean = all().sum::<f32>() / kept as f32;
    let spread = (all().map(|value| (value - mean).powi(2)).sum::<f32>() / kept as f32).sqrt();
    let checks = [
        ("the exact", distance(ours, &golden.exact) / largest, EXACT),
        ("the packed", distance(ours, &golden.packed) / spread, PACKED),
    ];
    let wrong = checks.into_iter().filter(|(_, found, allowed)| found > allowed);
    wrong
        .map(|(which, found, allowed)| format!("{name} on {what}: {found} from {which}, {allowed} allowed"))
        .collect()
}

#[test]
fn every_architecture_in_every_format_has_the_logits_of_llama_cpp() {
    let text = include_str!("../../testdata/formats.json");
    let golden: Golden = serde_json::from_str(text).unwrap();
    let mut found = Vec::new();
    let mut devices = 2;
    for (architecture, _) in ARCHITECTURES {
        for format in TensorType::ALL {
            let name = format!("{architecture} {}", format.name());
            let expected = golden.models.get(&name);
            let expected = expected.unwrap_or_else(|| panic!("scripts/format-golden.py has no {name}"));
            let (writer, sum) = make(architecture, format);
            assert_eq!(sum, expected.sum, "{name} is not the model that llama.cpp computed");
            let folder = TempDir::new().unwrap();
            let path = folder.path().join("model.gguf");
            writer.write(&path).unwrap();
            let model = Model::open(&path).unwrap();
            let mut check = |what, device: &mut dyn Device| {
                found.extend(gaps(&name, what, device, &golden.tokens, expected));
            };
            check("the references", &mut ReferenceDevice::open(&model.program, &model, LIMITS));
            let open = |adapter: &dyn Adapter| adapter.open(&model.program, &model, LIMITS).unwrap();
            check("the CPU", &mut *open(&device::cpu::CpuAdapter::new()));
            match device::wgpu::find(false, 1, None) {
                Ok(adapters) => {
                    devices = 3;
                    check("wgpu", &mut *open(&*adapters[0]));
                }
                Err(error) => test_support::skip_without_adapter(&error.to_string()),
            }
        }
    }
    assert!(found.is_empty(), "{} gaps on {devices} devices:\n{}", found.len(), found.join("\n"));
}
