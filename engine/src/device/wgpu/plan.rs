//! A program turned into dispatches: buffers allocated, kernels chosen, pipelines and bind groups built.
//!
//! Invariant: after [`Plan::build`] nothing about the program is left to decide but the number of rows.

use std::num::NonZeroU64;
use std::time::Instant;

use limpid_telemetry::observation::Phase;
use wgpu::{BindGroup, Buffer, BufferUsages, ComputePipeline};

use super::gpu::{Gpu, Options};
use super::shader::{Access, Variant, Work, fold, stride};
use super::step::{HEADER_WORDS, capacity};
use super::weights::{Weights, dequantized_vector, uniform};
use crate::cache_layout::{CacheLayout, CachePlace};
use crate::device::{DeviceError, DeviceLimits, WeightSource};
use crate::kernels::attention::reference::AttentionShape;
use crate::kernels::rope::RopeTable;
use crate::kernels::{
    add, add_bias, attention, embed, gate_mul, gather_rows, matmul, rms_norm, rope, store_kv,
};
use crate::program::{BufferId, OpKind, Program, Rotation, Rows, WeightId};

/// One op, or the part of it that one part of its weight takes.
pub(super) struct Dispatch {
    /// Place of the op in the program.
    pub(super) op: usize,
    name: String,
    rows: Rows,
    bind_group: BindGroup,
    /// By rising number of rows.
    variants: Vec<(u64, ComputePipeline, Work)>,
}

/// Everything that a step needs on the device.
pub(super) struct Plan {
    pub(super) dispatches: Vec<Dispatch>,
    /// One per buffer of the program, rows [`stride`] values apart.
    pub(super) activations: Vec<Buffer>,
    /// How layers share the cache.
    pub(super) layout: CacheLayout,
    /// One pair of keys and values per memory of the layout.
    pub(super) cache: Vec<[Buffer; 2]>,
    /// The step's words.
    pub(super) step: Buffer,
    pub(super) ropes: Vec<RopeTable>,
    pub(super) max_workgroups: u32,
}

impl Plan {
    pub(super) fn build(
        gpu: &Gpu,
        program: &Program,
        source: &dyn WeightSource,
        limits: &DeviceLimits,
        options: Options,
    ) -> Result<(Plan, [Phase; 2]), DeviceError> {
        let started = Instant::now();
        let ropes = rope_tables(program, source)?;
        let layout = CacheLayout::of(program);
        let step_bytes = 4 * capacity(limits, layout.num_groups(), &ropes) as u64;
        let usage = BufferUsages::STORAGE | BufferUsages::UNIFORM | BufferUsages::COPY_DST;
        let step = gpu.bound("the data of a step", step_bytes, usage, options)?;
        let mut activations = Vec::with_capacity(program.buffers.len());
        for buffer in &program.buffers {
            let bytes = 4 * row_capacity(buffer.rows, limits) * stride(buffer.width) as u64;
            activations.push(gpu.storage(&format!("buffer {}", buffer.name), bytes, options)?);
        }
        let slots = (limits.num_blocks * limits.block_size) as u64;
        let cache_bytes = 4 * slots * program.kv_width() as u64;
        let mut cache = Vec::with_capacity(layout.num_memories);
        for number in 0..layout.num_memories {
            let half = |what| gpu.storage(&format!("the {what} of cache {number}"), cache_bytes, options);
            cache.push([half("keys")?, half("values")?]);
        }
        let max_workgroups = options.max_workgroups;
        let plan = Plan { dispatches: Vec::new(), activations, layout, cache, step, ropes, max_workgroups };
        let weights = Weights::new(gpu, options, &program.weights, source);
        let mut builder = Builder { gpu, program, limits, options, weights, plan };
        let mut drafts = Vec::with_capacity(program.ops.len());
        for (index, op) in program.ops.iter().enumerate() {
            drafts.extend(builder.drafts(&op.kind)?.into_iter().map(|draft| (index, draft)));
        }
        let uploaded = Phase::since("upload_weights", started);
        for (index, draft) in drafts {
            let dispatch = builder.finish(index, draft)?;
            builder.plan.dispatches.push(dispatch);
        }
        let compiled = Phase::since("build_pipelines", uploaded.to);
        Ok((builder.plan, [uploaded, compiled]))
    }

    fn fold(&self, name: &str, workgroups: u64) -> Result<(u32, u32), DeviceError> {
        fold(workgroups, self.max_workgroups).ok_or_else(|| DeviceError::Limit {
            what: name.to_owned(),
            needed: workgroups,
            allowed: u64::from(self.max_workgroups) * u64::from(self.max_workgroups),
            unit: "workgroups",
        })
    }

    /// The dispatches op by op, those of ops that a batch of this many rows does not need left out.
    pub(super) fn ops(&self, logits_rows: usize) -> impl Iterator<Item = (usize, &[Dispatch])> {
        let needed = move |dispatch: &Dispatch| dispatch.rows == Rows::Tokens || logits_rows > 0;
        let ops = self.dispatches.chunk_by(|one, next| one.op == next.op);
        ops.filter(move |dispatches| needed(&dispatches[0])).map(|dispatches| (dispatches[0].op, dispatches))
    }

    /// Records those of `dispatches` that a batch of this many rows needs.
    pub(super) fn record(
        &self,
        dispatches: &[Dispatch],
        pass: &mut wgpu::ComputePass<'_>,
        tokens: usize,
        logits_rows: usize,
    ) -> Result<(), DeviceError> {
        for dispatch in dispatches {
            let rows = match dispatch.rows {
                Rows::Tokens => tokens,
                Rows::Logits => logits_rows,
            } as u64;
            let variant = dispatch.variants.iter().rev().find(|(min_rows, ..)| *min_rows <= rows);
            let Some((_, pipeline, work)) = variant.filter(|_| rows > 0) else { continue };
            let (x, y) = self.fold(&dispatch.name, work.workgroups(rows))?;
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, &dispatch.bind_group, &[]);
            pass.dispatch_workgroups(x, y, 1);
        }
        Ok(())
    }

    /// Records one workgroup of everything. On a step of no rows they do nothing, and the driver has compiled
    /// every pipeline and touched every buffer.
    pub(super) fn record_warm_up(&self, pass: &mut wgpu::ComputePass<'_>) {
        for dispatch in &self.dispatches {
            pass.set_bind_group(0, &dispatch.bind_group, &[]);
            for (_, pipeline, _) in &dispatch.variants {
                pass.set_pipeline(pipeline);
                pass.dispatch_workgroups(1, 1, 1);
            }
        }
    }
}

/// A dispatch before its pipelines and bind group are made.
struct Draft {
    rows: Rows,
    variants: Vec<Variant>,
    params: Vec<u32>,
    /// For the bindings from 3 on.
    buffers: Vec<Buffer>,
}

struct Builder<'a> {
    gpu: &'a Gpu,
    program: &'a Program,
    limits: &'a DeviceLimits,
    options: Options,
    weights: Weights<'a>,
    plan: Plan,
}

impl Builder<'_> {
    /// The dispatches of an op: one, but for weights in several parts.
    fn drafts(&mut self, kind: &OpKind) -> Result<Vec<Draft>, DeviceError> {
        let Builder { program, limits, plan, weights, options, .. } = self;
        let mapping = options.mapping;
        let width = |id: BufferId| program.buffers[id.0].width;
        let rows = |id: BufferId| program.buffers[id.0].rows;
        let columns = |id: WeightId| program.weights[id.0].columns;
        let activation = |id: BufferId| plan.activations[id.0].clone();
        let draft = match *kind {
            OpKind::Embed { table, out, scale } => {
                let format = program.weights[table.0].format;
                let parts = weights.matrix(table)?.iter();
                let drafts = parts.map(|part| Draft {
                    rows: Rows::Tokens,
                    variants: embed::variants(format, width(out)),
                    params: embed::params(part.first_row as u32, part.rows as u32, width(out), scale),
                    buffers: vec![part.values.clone(), part.scales.clone(), activation(out)],
                });
                return Ok(drafts.collect());
            }
            OpKind::MatMul { input, weight, out, accumulate } => {
                let format = program.weights[weight.0].format;
                let parts = weights.matrix(weight)?.iter();
                let drafts = parts.map(|part| Draft {
                    rows: rows(input),
                    variants: matmul::variants(format, part.rows, mapping),
                    params: matmul::Params {
                        features: part.rows,
                        first_feature: part.first_row,
                        columns: width(input),
                        out_width: width(out),
                        rows: rows(input),
                        accumulate,
                    }
                    .words(),
                    buffers: vec![
                        part.values.clone(),
                        part.scales.clone(),
                        activation(input),
                        activation(out),
                    ],
                });
                return Ok(drafts.collect());
            }
            OpKind::RmsNorm { input, weight, out, epsilon } => Draft {
                rows: rows(input),
                variants: rms_norm::variants(mapping, width(input) / columns(weight)),
                params: rms_norm::params(
                    columns(weight),
                    width(input) / columns(weight),
                    rows(input),
                    epsilon,
                ),
                buffers: vec![activation(input), weights.vector(weight)?, activation(out)],
            },
            OpKind::AddBias { buffer, bias } => Draft {
                rows: rows(buffer),
                variants: add_bias::variants(width(buffer)),
                params: add_bias::params(width(buffer), rows(buffer)),
                buffers: vec![activation(buffer), weights.vector(bias)?],
            },
            OpKind::Rope { rotation: Rotation { rotary: 0, .. }, .. } => return Ok(Vec::new()),
            OpKind::Rope { buffer, num_heads, head_size, rotation, style } => {
                let rotary = rotation.rotary;
                let tables = plan.ropes.iter().take_while(|table| !table.serves(&rotation));
                let words_before = tables.map(RopeTable::words).sum();
                Draft {
                    rows: rows(buffer),
                    variants: rope::variants(num_heads, rotary),
                    params: rope::params(num_heads, head_size, rotary, style, words_before),
                    buffers: vec![activation(buffer)],
                }
            }
            OpKind::StoreKv { key, value, layer } => {
                let CachePlace { group, memory } = plan.layout.places[layer];
                let [keys, values] = plan.cache[memory].clone();
                Draft {
                    rows: Rows::Tokens,
                    variants: store_kv::variants(width(key)),
                    params: store_kv::params(width(key), group),
                    buffers: vec![activation(key), activation(value), keys, values],
                }
            }
            OpKind::Attention { query, out, layer, num_heads, scale, window } => {
                let CachePlace { group, memory } = plan.layout.places[layer];
                let shape = AttentionShape {
                    num_heads,
                    num_kv_heads: program.num_kv_heads,
                    head_size: program.head_size,
                    block_size: limits.block_size,
                    scale,
                    window,
                    cache_group: group,
                };
                let [keys, values] = plan.cache[memory].clone();
                Draft {
                    rows: Rows::Tokens,
                    variants: attention::variants(shape, mapping),
                    params: attention::params(shape),
                    buffers: vec![activation(query), keys, values, activation(out)],
                }
            }
            OpKind::GateMul { activation: kind, gate, up, out } => Draft {
                rows: rows(gate),
                variants: gate_mul::variants(kind, width(gate)),
                params: gate_mul::params(width(gate), rows(gate)),
                buffers: vec![activation(gate), activation(up), activation(out)],
            },
            OpKind::Add { input, out } => Draft {
                rows: rows(out),
                variants: add::variants(width(out)),
                params: add::params(width(out), rows(out)),
                buffers: vec![activation(input), activation(out)],
            },
            OpKind::GatherRows { input, out } => Draft {
                rows: Rows::Logits,
                variants: gather_rows::variants(width(input)),
                params: gather_rows::params(width(input)),
                buffers: vec![activation(input), activation(out)],
            },
        };
        Ok(vec![draft])
    }

    fn finish(&self, op: usize, draft: Draft) -> Result<Dispatch, DeviceError> {
        let (gpu, name) = (self.gpu, self.program.ops[op].name.as_str());
        let params = uniform(gpu, name, &draft.params)?;
        let header = wgpu::BufferBinding {
            buffer: &self.plan.step,
            offset: 0,
            size: NonZeroU64::new(4 * HEADER_WORDS as u64),
        };
        let mut entries = vec![
            wgpu::BindGroupEntry { binding: 0, resource: params.as_entire_binding() },
            wgpu::BindGroupEntry { binding: 1, resource: wgpu::BindingResource::Buffer(header) },
            wgpu::BindGroupEntry { binding: 2, resource: self.plan.step.as_entire_binding() },
        ];
        for (binding, buffer) in (3..).zip(&draft.buffers) {
            entries.push(wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() });
        }
        // All variants of an op bind the same buffers in the same way.
        let storage: &'static [Access] = draft.variants[0].kernel.storage;
        let bind_group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(name),
            layout: &gpu.layout(storage),
            entries: &entries,
        });
        let mut variants = Vec::with_capacity(draft.variants.len());
        let capacity = row_capacity(draft.rows, self.limits);
        for (index, variant) in draft.variants.iter().enumerate() {
            let next = draft.variants.get(index + 1).map_or(u64::MAX, |next| next.min_rows - 1);
            self.plan.fold(name, variant.work.workgroups(capacity.min(next)))?;
            variants.push((variant.min_rows, gpu.pipeline(&variant.kernel)?, variant.work));
        }
        gpu.check()?;
        Ok(Dispatch { op, name: name.to_owned(), rows: draft.rows, bind_group, variants })
    }
}

/// Most rows a buffer can have.
fn row_capacity(rows: Rows, limits: &DeviceLimits) -> u64 {
    match rows {
        Rows::Tokens => limits.max_tokens as u64,
        Rows::Logits => limits.max_sequences as u64,
    }
}

fn rope_tables(program: &Program, source: &dyn WeightSource) -> Result<Vec<RopeTable>, DeviceError> {
    let mut tables: Vec<RopeTable> = Vec::new();
    for op in &program.ops {
        if let OpKind::Rope { rotation, .. } = op.kind
            && !tables.iter().any(|table| table.serves(&rotation))
        {
            let factors = rotation.factors;
            let values = factors
                .map(|id| dequantized_vector(&program.weights[id.0], source.weight(id)))
                .transpose()?;
            tables.push(RopeTable::new(rotation, values.as_deref()));
        }
    }
    Ok(tables)
}
