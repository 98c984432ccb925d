//! The CPU device and every mapping of the wgpu device against the references, on whole tiny models whose heads of keys
//! and of values differ in size.

use super::cpu::CpuAdapter;
use super::wgpu::testing::{MAPPINGS, Rig, Stored, assert_close};
use super::{Adapter as _, Batch, Device, DeviceLimits, WeightSource as _};
use crate::kernels::reference_device::ReferenceDevice;
use crate::kernels::synthetic::{LlamaShape, SequenceSet, SyntheticModel};
use crate::program::{RopeStyle, WeightId};
use crate::tensor_type::TensorType;

const LIMITS: DeviceLimits = DeviceLimits {
    num_blocks: 64,
    block_size: 4,
    max_tokens: 48,
    max_sequences: 3,
    max_blocks_per_sequence: 16,
};

/// Whole prompts, chunks, single tokens, and all of them together.
fn batches(model: &SyntheticModel) -> Vec<Batch> {
    let steps = [[17, 0, 0], [1, 9, 0], [1, 13, 30], [1, 1, 1], [3, 1, 1]];
    let mut set = SequenceSet::new(3, LIMITS.num_blocks, LIMITS.block_size, 41).for_program(&model.program);
    let tokens: Vec<u32> =
        (0..LIMITS.max_tokens as u32).map(|i| i * 37 % LlamaShape::TINY.vocabulary as u32).collect();
    let batch = |rows: [usize; 3]| {
        let rows = rows.into_iter().enumerate().filter(|(_, rows)| *rows > 0);
        let additions: Vec<(usize, &[u32])> = rows.map(|(index, rows)| (index, &tokens[..rows])).collect();
        set.batch(&additions)
    };
    steps.map(batch).to_vec()
}

/// The logits of all batches, one after the other.
fn logits(batches: &[Batch], mut execute: impl FnMut(&Batch, &mut Vec<f32>)) -> Vec<f32> {
    let mut all = Vec::new();
    for batch in batches {
        let mut logits = Vec::new();
        execute(batch, &mut logits);
        all.extend(logits);
    }
    all
}

fn compare(shape: &LlamaShape) {
    let model = SyntheticModel::new(shape, 40);
    let program = &model.program;
    let batches = batches(&model);
    let run = |device: &mut dyn Device| {
        logits(&batches, |batch, logits| {
            device.execute(batch, logits).expect("the batch runs");
        })
    };
    let expected = run(&mut ReferenceDevice::open(program, &model, LIMITS));
    let largest = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let close = |what: &str, found: &[f32]| {
        assert_close(&format!("{what}, {shape:?}"), found, &expected, &vec![largest; found.len()], 1e-4);
    };
    let mut cpu = CpuAdapter::new().open(program, &model, LIMITS).expect("the CPU device opens");
    close("the CPU", &run(&mut *cpu));
    let weights = (0..program.weights.len()).map(|id| model.weight(WeightId(id)).into_owned());
    let weights = Stored(weights.collect());
    for mapping in MAPPINGS {
        let Some(mut rig) = Rig::mapped(program, &weights, LIMITS, mapping) else { return };
        let found = logits(&batches, |batch, logits| {
            rig.execute(batch, logits).expect("the batch runs");
        });
        close(&format!("wgpu, {mapping:?}"), &found);
    }
}

#[test]
fn heads_of_keys_and_of_values_may_differ_in_size() {
    for (index, (head_size, value_head_size)) in
        [(8, 16), (16, 8), (64, 32), (6, 4), (4, 7), (24, 8)].into_iter().enumerate()
    {
        let style = if index % 2 == 0 { RopeStyle::Halves } else { RopeStyle::Pairs };
        let (format, rotary) = (TensorType::F16, head_size / 4 * 4);
        let sizes = LlamaShape { head_size, value_head_size, rotary, ..LlamaShape::TINY };
        compare(&LlamaShape { style, format, window: Some(5), ..sizes });
    }
}

#[test]
fn weights_in_blocks_take_heads_of_two_sizes() {
    let sizes = LlamaShape { head_size: 32, value_head_size: 16, rotary: 32, ..LlamaShape::TINY };
    for format in [TensorType::Q4_1, TensorType::Q8_0] {
        compare(&LlamaShape { format, ..sizes.clone() });
    }
}
