//! The slow, exact executor: runs a [`Program`] with the reference functions of every op.
//!
//! It is what both devices' whole programs are compared with, on tiny random models and on the real one.
//! It implements [`Device`], so anything written against that trait can be run on the definition itself.
//! It leaves speed to the devices: one thread, plain loops, a row of a weight dequantised when it is needed.
//!
//! Invariant: each op's output is what its `reference.rs` computes from the buffers before it; where an op
//! works in place, its input is copied first.

use std::time::Instant;

use super::add::reference::add;
use super::add_bias::reference::add_bias;
use super::attention::reference::{AttentionShape, attention};
use super::embed::reference::embed;
use super::gate_mul::reference::gate_mul;
use super::gather_rows::reference::gather_rows;
use super::matmul::reference::matmul;
use super::rms_norm::reference::rms_norm;
use super::rope::reference::{frequencies, rope};
use super::store_kv::reference::store_kv;
use crate::cache_layout::{CacheLayout, CachePlace};
use crate::device::batch_check::check_batch;
use crate::device::{Batch, Device, DeviceError, DeviceInfo, DeviceLimits, ExecuteTimes, WeightSource};
use crate::program::{BufferId, Op, OpKind, Program, Rows, WeightId};

/// The reference functions as a device.
pub struct ReferenceDevice {
    info: DeviceInfo,
    program: Program,
    limits: DeviceLimits,
    /// Stored bytes, one entry per weight.
    weights: Vec<Vec<u8>>,
    /// Activations of the last batch, one entry per buffer.
    buffers: Vec<Vec<f32>>,
    layout: CacheLayout,
    /// One entry per memory of the layout, `[slot][kv_head][head_size]`.
    keys: Vec<Vec<f32>>,
    /// The same, `[slot][kv_head][value_head_size]`.
    values: Vec<Vec<f32>>,
}

impl ReferenceDevice {
    /// Copies the weights as stored and allocates an empty cache.
    pub fn open(program: &Program, weights: &dyn WeightSource, limits: DeviceLimits) -> ReferenceDevice {
        program.check();
        let layout = CacheLayout::of(program);
        let cache =
            |width| vec![vec![0.0; limits.num_blocks * limits.block_size * width]; layout.num_memories];
        ReferenceDevice {
            info: DeviceInfo {
                kind: "cpu",
                name: "reference functions".to_owned(),
                device_type: "Cpu".to_owned(),
                backend: "rust".to_owned(),
                driver: String::new(),
            },
            program: program.clone(),
            limits,
            weights: (0..program.weights.len()).map(|id| weights.weight(WeightId(id)).into_owned()).collect(),
            buffers: vec![Vec::new(); program.buffers.len()],
            keys: cache(program.key_width()),
            values: cache(program.value_width()),
            layout,
        }
    }

    /// What a buffer held after the last batch: its rows, one after the other.
    pub fn buffer(&self, id: BufferId) -> &[f32] {
        &self.buffers[id.0]
    }

    /// Keys and values of a layer, `[slot][kv_head]` and the values of a head.
    pub fn cache(&self, layer: usize) -> (&[f32], &[f32]) {
        let CachePlace { memory, .. } = self.layout.places[layer];
        (&self.keys[memory], &self.values[memory])
    }

    fn run(&mut self, op: &Op, batch: &Batch) {
        let program = &self.program;
        // The output is taken out of the list while it is written; ops that work in place read a copy.
        let mut take = |id: BufferId| std::mem::take(&mut self.buffers[id.0]);
        let vector = |id: WeightId| {
            let mut values = vec![0.0; program.weights[id.0].columns];
            program.weights[id.0].format.dequantize(&self.weights[id.0], &mut values);
            values
        };
        match op.kind {
            OpKind::Embed { table, out, scale } => {
                let mut values = take(out);
                let (stored, bytes) = (&program.weights[table.0], &self.weights[table.0]);
                embed(&batch.tokens, stored, bytes, scale, &mut values);
                self.buffers[out.0] = values;
            }
            OpKind::RmsNorm { input, weight, out, epsilon } => {
                let source = self.buffers[input.0].clone();
                let mut values = std::mem::take(&mut self.buffers[out.0]);
                rms_norm(&source, &vector(weight), epsilon, &mut values);
                self.buffers[out.0] = values;
            }
            OpKind::MatMul { input, weight, out, accumulate } => {
                let mut values = take(out);
                let (stored, bytes) = (&program.weights[weight.0], &self.weights[weight.0]);
                matmul(&self.buffers[input.0], stored, bytes, accumulate, &mut values);
                self.buffers[out.0] = values;
            }
            OpKind::AddBias { buffer, bias } => add_bias(&mut self.buffers[buffer.0], &vector(bias)),
            OpKind::Rope { buffer, num_heads, head_size, rotation, style } => {
                let frequencies = frequencies(&rotation, rotation.factors.map(vector).as_deref());
                let (values, magnitude) = (&mut self.buffers[buffer.0], rotation.magnitude);
                rope(values, &batch.positions, num_heads, head_size, &frequencies, magnitude, style);
            }
            OpKind::StoreKv { key, value, layer } => {
                let CachePlace { group, memory } = self.layout.places[layer];
                let slots = &batch.slots[group * batch.tokens.len()..];
                store_kv(&self.buffers[key.0], slots, program.key_width(), &mut self.keys[memory]);
                store_kv(&self.buffers[value.0], slots, program.value_width(), &mut self.values[memory]);
            }
            OpKind::Attention { query, out, layer, num_heads, scale, window } => {
                let CachePlace { group, memory } = self.layout.places[layer];
                let shape = AttentionShape {
                    num_heads,
                    num_kv_heads: program.num_kv_heads,
                    head_size: program.head_size,
                    value_head_size: program.value_head_size,
                    block_size: self.limits.block_size,
                    scale,
                    window,
                    cache_group: group,
                };
                let source = self.buffers[query.0].clone();
                let (keys, values) = (&self.keys[memory], &self.values[memory]);
                attention(&source, keys, values, batch, shape, &mut self.buffers[out.0]);
            }
            OpKind::GateMul { activation, gate, up, out } => {
                let (gate, up) = (self.buffers[gate.0].clone(), self.buffers[up.0].clone());
                gate_mul(activation, &gate, &up, &mut self.buffers[out.0]);
            }
            OpKind::Add { input, out } => {
                let mut values = take(out);
                add(&self.buffers[input.0], &mut values);
                self.buffers[out.0] = values;
            }
            OpKind::GatherRows { input, out } => {
                let mut values = take(out);
                let width = program.buffers[input.0].width;
                gather_rows(&self.buffers[input.0], &batch.logits_rows, width, &mut values);
                self.buffers[out.0] = values;
            }
        }
    }
}

impl Device for ReferenceDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn execute(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<ExecuteTimes, DeviceError> {
        logits.clear();
        check_batch(batch, &self.program, &self.layout, &self.limits, self.max_candidates())?;
        let start = Instant::now();
        for (values, buffer) in self.buffers.iter_mut().zip(&self.program.buffers) {
            let rows = match buffer.rows {
                Rows::Tokens => batch.tokens.len(),
                Rows::Logits => batch.logits_rows.len(),
            };
            values.clear();
            values.resize(rows * buffer.width, f32::NAN);
        }
        for index in 0..self.program.ops.len() {
            let op = self.program.ops[index].clone();
            self.run(&op, batch);
        }
        logits.extend_from_slice(self.buffer(self.program.logits));
        Ok(ExecuteTimes { forward: Some(start.elapsed()) })
    }
}
