//! Every architecture against llama.cpp: tiny random models and the logits it computes for them
//! (`scripts/architecture-golden.py`), on the reference functions and on both devices.

use std::path::{Path, PathBuf};

use super::Model;
use crate::device::{self, Adapter, Batch, BatchSequence, Device, DeviceLimits};
use crate::kernels::reference_device::ReferenceDevice;
use crate::test_support;

/// Of the largest logit. Both sides compute in F32, in different orders.
const TOLERANCE: f32 = 1e-4;

/// What a model computes for a sequence of tokens.
pub(crate) struct Golden {
    tokens: Vec<u32>,
    /// One row for each token.
    logits: Vec<Vec<f32>>,
}

pub(crate) const LIMITS: DeviceLimits = DeviceLimits {
    num_blocks: 8,
    block_size: 4,
    max_tokens: 16,
    max_sequences: 16,
    max_blocks_per_sequence: 8,
};

/// Tokens `first..end` of a sequence whose blocks lie backwards in the pool, with the logits of all of them.
pub(crate) fn batch(tokens: &[u32], first: usize, end: usize) -> Batch {
    let block_table: Vec<u32> = (0..LIMITS.num_blocks as u32).rev().collect();
    let slot = |position: usize| {
        block_table[position / LIMITS.block_size] * LIMITS.block_size as u32
            + (position % LIMITS.block_size) as u32
    };
    Batch {
        tokens: tokens[first..end].to_vec(),
        positions: (first as u32..end as u32).collect(),
        slots: (first..end).map(slot).collect(),
        sequences: vec![BatchSequence {
            first_row: 0,
            num_rows: (end - first) as u32,
            context_len: end as u32,
            block_table_start: 0,
        }],
        block_tables: block_table.clone(),
        logits_rows: (0..(end - first) as u32).collect(),
    }
}

fn check(name: &str, what: &str, device: &mut dyn Device, golden: &Golden) {
    let largest = golden.logits.iter().flatten().fold(0f32, |largest, value| largest.max(value.abs()));
    let (mut row, mut logits) = (0, Vec::new());
    // A prompt in two chunks, then one token at a time.
    for (first, end) in [(0, 5), (5, 13), (13, 14), (14, 15), (15, 16)] {
        device.execute(&batch(&golden.tokens, first, end), &mut logits).unwrap();
        for ours in logits.chunks_exact(golden.logits[0].len()) {
            for (token, (ours, expected)) in ours.iter().zip(&golden.logits[row]).enumerate() {
                let error = (ours - expected).abs();
                let close = error <= TOLERANCE * largest;
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
    }
}

fn compare(name: &str) {
    let model = Model::open(&path(name)).unwrap();
    assert_eq!(model.architecture, name);
    compare_model(name, &model, &golden(name));
}

/// Compares a model on the references and on both devices.
pub(crate) fn compare_model(name: &str, model: &Model, golden: &Golden) {
    let program = &model.program;
    check(name, "the references", &mut ReferenceDevice::open(program, model, LIMITS), golden);
    let open = |adapter: &dyn Adapter| adapter.open(program, model, LIMITS).unwrap();
    check(name, "the CPU", &mut *open(&device::cpu::CpuAdapter::new()), golden);
    match device::wgpu::find(false, 1) {
        Ok(adapters) => check(name, "wgpu", &mut *open(&*adapters[0]), golden),
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
fn phi3_has_the_logits_of_llama_cpp() {
    compare("phi3");
}
