//! Every architecture against llama.cpp: tiny random models and the logits it computes for them
//! (`scripts/architecture-golden.py`), on the reference functions and on both devices. Heads of keys and of values
//! of two sizes llama.cpp computes with the smaller ones filled up with zeros.

use std::path::{Path, PathBuf};

use super::Model;
use crate::cache_layout::CacheLayout;
use crate::device::{self, Adapter, Batch, BatchSequence, Device, DeviceLimits};
use crate::kernels::reference_device::ReferenceDevice;
use crate::program::OpKind;
use crate::test_support;

/// Of the largest logit. Both sides compute in F32, in different orders.
const TOLERANCE: f32 = 1e-4;

/// llama.cpp looks GELU up in a table of half-precision values.
const GELU_TOLERANCE: f32 = 1e-3;

/// What a model computes for a sequence of tokens.
pub(crate) struct Golden {
    tokens: Vec<u32>,
    /// One row for each token.
    logits: Vec<Vec<f32>>,
    tolerance: f32,
}

pub(crate) const LIMITS: DeviceLimits = DeviceLimits {
    num_blocks: 28,
    block_size: 4,
    max_tokens: 16,
    max_sequences: 16,
    max_blocks_per_sequence: 8,
};

/// Tokens `first..end` of a sequence whose blocks lie backwards in the pool, with the logits of all of them.
pub(crate) fn batch(tokens: &[u32], first: usize, end: usize, groups: usize) -> Batch {
    let blocks: Vec<u32> = (0..LIMITS.num_blocks as u32).rev().collect();
    // The groups' blocks alternate.
    let block = |group: usize, index: usize| blocks[index * groups + group];
    let slot = |group: usize, position: usize| {
        block(group, position / LIMITS.block_size) * LIMITS.block_size as u32
            + (position % LIMITS.block_size) as u32
    };
    let context_blocks = end.div_ceil(LIMITS.block_size);
    Batch {
        tokens: tokens[first..end].to_vec(),
        positions: (first as u32..end as u32).collect(),
        slots: (0..groups).flat_map(|group| (first..end).map(move |p| slot(group, p))).collect(),
        sequences: vec![BatchSequence {
            first_row: 0,
            num_rows: (end - first) as u32,
            context_len: end as u32,
            block_table_start: 0,
        }],
        block_tables: (0..groups)
            .flat_map(|group| (0..context_blocks).map(move |i| block(group, i)))
            .collect(),
        logits_rows: (0..(end - first) as u32).collect(),
        candidates: vec![],
    }
}

fn check(name: &str, what: &str, device: &mut dyn Device, groups: usize, golden: &Golden) {
    let largest = golden.logits.iter().flatten().fold(0f32, |largest, value| largest.max(value.abs()));
    let (mut row, mut logits) = (0, Vec::new());
    // A prompt in two chunks, then one token at a time.
    for (first, end) in [(0, 5), (5, 13), (13, 14), (14, 15), (15, 16)] {
        device.execute(&batch(&golden.tokens, first, end, groups), &mut logits).unwrap();
        for ours in logits.chunks_exact(golden.logits[0].len()) {
            for (token, (ours, expected)) in ours.iter().zip(&golden.logits[row]).enumerate() {
                let error = (ours - expected).abs();
                let close = error <= golden.tolerance * largest;
                assert!(close, "{name} on {what}: token {token} of row {row} is {ours}, not {expected}");
            }
            row += 1;
        }
    }
    assert_eq!(row, golden.logits.len());
}

/// Path of an architecture's model.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/architectures/{name}.gguf"))
}

/// llama.cpp's logits for it.
pub(crate) fn golden(name: &str) -> Golden {
    let text = std::fs::read_to_string(path(name).with_extension("json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    Golden {
        tokens: serde_json::from_value(json["tokens"].clone()).unwrap(),
        logits: serde_json::from_value(json["logits"].clone()).unwrap(),
        tolerance: if name.starts_with("gemma3") { GELU_TOLERANCE } else { TOLERANCE },
    }
}

fn compare(name: &str) {
    let model = Model::open(&path(name)).unwrap();
    assert!(name.starts_with(&model.architecture), "{name} is a {}", model.architecture);
    compare_model(name, &model, &golden(name));
}

/// Compares a model on the references and on both devices.
pub(crate) fn compare_model(name: &str, model: &Model, golden: &Golden) {
    let program = &model.program;
    let groups = CacheLayout::of(program).num_groups();
    check(name, "the references", &mut ReferenceDevice::open(program, model, LIMITS), groups, golden);
    let open = |adapter: &dyn Adapter| adapter.open(program, model, LIMITS).unwrap();
    check(name, "the CPU", &mut *open(&device::cpu::CpuAdapter::new()), groups, golden);
    match device::wgpu::find(false, 1, None) {
        Ok(adapters) => check(name, "wgpu", &mut *open(&*adapters[0]), groups, golden),
        Err(error) => test_support::skip_without_adapter(&error.to_string()),
    }
}

#[test]
fn llama_with_frequency_factors_has_the_logits_of_llama_cpp() {
    compare("llama");
}

#[test]
fn qwen2_has_the_logits_of_llama_cpp() {
    compare("qwen2");
}

#[test]
fn qwen3_has_the_logits_of_llama_cpp() {
    compare("qwen3");
}

#[test]
fn gemma3_has_the_logits_of_llama_cpp() {
    compare("gemma3");
}

#[test]
fn linear_scaling_has_the_logits_of_llama_cpp() {
    compare("qwen3-linear");
}

#[test]
fn yarn_has_the_logits_of_llama_cpp() {
    compare("qwen3-yarn");
}

#[test]
fn long_factors_of_phi3_have_the_logits_of_llama_cpp() {
    compare("phi3-longrope");
}

#[test]
fn short_contexts_take_the_short_factors_of_phi3() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/architectures/phi3-longrope.gguf");
    let factors = |max_model_len| {
        let mut program = Model::open(&path).unwrap().program;
        program.fit_context(max_model_len);
        let names = program.ops.iter().filter_map(|op| match op.kind {
            OpKind::Rope { rotation, .. } => Some(program.weights[rotation.factors.unwrap().0].name.clone()),
            _ => None,
        });
        names.collect::<Vec<_>>()
    };
    assert_eq!(factors(32), vec!["rope_factors_short.weight"; 4]);
    assert_eq!(factors(33), vec!["rope_factors_long.weight"; 4]);
}

#[test]
fn phi3_has_the_logits_of_llama_cpp() {
    compare("phi3");
}

#[test]
fn heads_of_two_sizes_have_the_logits_of_llama_cpp() {
    for name in [
        "llama-narrow-values",
        "llama-narrow-values-q8_0",
        "phi3-wide-values-q4_0",
        "qwen2-narrow-values",
        "qwen3-narrow-values",
        "gemma3-narrow-values",
    ] {
        compare(name);
    }
}
