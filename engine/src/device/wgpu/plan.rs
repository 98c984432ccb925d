//! A program turned into dispatches: buffers allocated, kernels chosen, pipelines and bind groups built.
//!
//! Invariant: after [`Plan::build`] nothing about the program is left to decide but the number of rows.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Instant;

use limpid_telemetry::observation::Phase;
use wgpu::{BindGroup, Buffer, BufferUsages, ComputePipeline};

use super::gpu::{Gpu, Options};
use super::groups::{Group, How, groups};
use super::shader::{Access, Mapping, Texel, Variant, Work, fold, stride};
use super::step::{HEADER_WORDS, capacity};
use super::weights::{Packed, Part, Weights, dequantized_vector, uniform};
use crate::cache_layout::{CacheLayout, CachePlace};
use crate::device::{DeviceError, DeviceLimits, WeightSource};
use crate::kernels::attention::reference::AttentionShape;
use crate::kernels::rope::RopeTable;
use crate::kernels::{
    add, add_bias, attention, embed, gate_mul, gather_rows, matmul, rms_norm, rope, store_kv,
};
use crate::program::{BufferId, OpKind, Program, Rotation, Rows, WeightId};

/// Ops that are computed together, or the part of them that one part of their weight takes.
pub(super) struct Dispatch {
    /// Places of the ops in the program.
    pub(super) ops: Range<usize>,
    name: String,
    rows: Rows,
    bind_group: BindGroup,
    windows: Option<Windows>,
    /// By rising number of rows.
    variants: Vec<(u64, ComputePipeline, Work)>,
}

/// An input that is seen through windows: every so many rows are a dispatch of their own.
#[derive(Clone, Copy, Debug)]
struct Windows {
    rows: usize,
    /// Bytes from one window's parameters to the next's.
    params_stride: usize,
    /// Bytes of the input from one window to the next.
    input_stride: usize,
}

/// Keys or values of a layer.
#[derive(Clone)]
pub(super) enum Cache {
    Buffer(Buffer),
    Texels(wgpu::Texture),
}

/// Everything that a step needs on the device.
pub(super) struct Plan {
    pub(super) dispatches: Vec<Dispatch>,
    /// One per buffer of the program, rows [`stride`] values apart.
    pub(super) activations: Vec<Buffer>,
    /// How layers share the cache.
    pub(super) layout: CacheLayout,
    /// One pair of keys and values per memory of the layout.
    pub(super) cache: Vec<[Cache; 2]>,
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
            activations.push(gpu.activation(&format!("buffer {}", buffer.name), bytes, options)?);
        }
        let slots = (limits.num_blocks * limits.block_size) as u64;
        let in_texels = cache_in_texels(program, options);
        let mut cache = Vec::with_capacity(layout.num_memories);
        for number in 0..layout.num_memories {
            let half = |what, width: usize| -> Result<Cache, DeviceError> {
                let name = format!("the {what} of cache {number}");
                let bytes = 4 * slots * width as u64;
                Ok(if in_texels {
                    Cache::Texels(gpu.texels(&name, bytes / 16, Texel::Floats, options)?)
                } else {
                    Cache::Buffer(gpu.storage(&name, bytes, options)?)
                })
            };
            cache.push([half("keys", program.key_width())?, half("values", program.value_width())?]);
        }
        let max_workgroups = options.max_workgroups;
        let plan = Plan { dispatches: Vec::new(), activations, layout, cache, step, ropes, max_workgroups };
        let weights = Weights::new(gpu, options, &program.weights, source);
        let products = RefCell::default();
        let mut builder = Builder { gpu, program, limits, options, weights, products, plan };
        let mut drafts = Vec::with_capacity(program.ops.len());
        for group in groups(program, options.mapping) {
            let of_group = builder.group_drafts(&group)?;
            drafts.extend(of_group.into_iter().map(|draft| (group.ops.clone(), draft)));
        }
        let uploaded = Phase::since("upload_weights", started);
        for (ops, draft) in drafts {
            let dispatch = builder.finish(ops, draft)?;
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

    /// The dispatches group by group, those of ops that a batch of this many rows does not need left out.
    pub(super) fn groups(&self, logits_rows: usize) -> impl Iterator<Item = (Range<usize>, &[Dispatch])> {
        let needed = move |dispatch: &Dispatch| dispatch.rows == Rows::Tokens || logits_rows > 0;
        let groups = self.dispatches.chunk_by(|one, next| one.ops == next.ops);
        groups
            .filter(move |dispatches| needed(&dispatches[0]))
            .map(|dispatches| (dispatches[0].ops.clone(), dispatches))
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
            };
            let at_once = dispatch.windows.map_or(usize::MAX, |windows| windows.rows);
            for window in 0..rows.div_ceil(at_once) {
                let rows = (rows - window * at_once).min(at_once) as u64;
                let variant = dispatch.variants.iter().rev().find(|(min_rows, ..)| *min_rows <= rows);
                let Some((_, pipeline, work)) = variant else { continue };
                let (x, y) = self.fold(&dispatch.name, work.workgroups(rows))?;
                pass.set_pipeline(pipeline);
                match dispatch.windows {
                    None => pass.set_bind_group(0, &dispatch.bind_group, &[]),
                    Some(Windows { params_stride, input_stride, .. }) => {
                        let offsets = [window * params_stride, window * input_stride];
                        pass.set_bind_group(0, &dispatch.bind_group, &offsets.map(|offset| offset as u32));
                    }
                }
                pass.dispatch_workgroups(x, y, 1);
            }
        }
        Ok(())
    }

    /// Records one workgroup of everything. On a step of no rows they do nothing, and the driver has compiled
    /// every pipeline and touched every buffer.
    pub(super) fn record_warm_up(&self, pass: &mut wgpu::ComputePass<'_>) {
        for dispatch in &self.dispatches {
            let offsets: &[u32] = if dispatch.windows.is_some() { &[0, 0] } else { &[] };
            pass.set_bind_group(0, &dispatch.bind_group, offsets);
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
    windows: Option<Windows>,
    /// For the bindings from 3 on.
    bound: Vec<Bound>,
}

/// What is bound to a kernel's storage binding.
enum Bound {
    Buffer(Buffer),
    /// This many bytes of it, from a place that the dispatch sets.
    Window(Buffer, usize),
    Texels(wgpu::TextureView),
}

impl From<Buffer> for Bound {
    fn from(buffer: Buffer) -> Bound {
        Bound::Buffer(buffer)
    }
}

impl From<&Packed> for Bound {
    fn from(packed: &Packed) -> Bound {
        match packed {
            Packed::Buffer(buffer) => Bound::Buffer(buffer.clone()),
            Packed::Texels(texture) => Bound::Texels(texture.create_view(&Default::default())),
        }
    }
}

impl From<&Cache> for Bound {
    fn from(cache: &Cache) -> Bound {
        match cache {
            Cache::Buffer(buffer) => Bound::Buffer(buffer.clone()),
            Cache::Texels(texture) => Bound::Texels(texture.create_view(&Default::default())),
        }
    }
}

struct Builder<'a> {
    gpu: &'a Gpu,
    program: &'a Program,
    limits: &'a DeviceLimits,
    options: Options,
    weights: Weights<'a>,
    /// Products have few shapes, and sources that are long.
    products: RefCell<Vec<(matmul::Shape, Vec<Variant>)>>,
    plan: Plan,
}

/// Products that one dispatch computes.
struct Products<'p> {
    input: BufferId,
    weight: WeightId,
    parts: &'p [Part],
    /// Of all parts together.
    features: usize,
    outs: Vec<BufferId>,
    gated: bool,
    accumulate: bool,
}

impl Builder<'_> {
    /// The dispatches of a group: one, but for weights in several parts.
    fn group_drafts(&mut self, group: &Group) -> Result<Vec<Draft>, DeviceError> {
        let ops = &self.program.ops[group.ops.clone()];
        let product = |op: usize| match ops[op].kind {
            OpKind::MatMul { input, weight, out, .. } => (input, weight, out),
            _ => unreachable!("a group of products"),
        };
        match group.how {
            How::Alone => self.drafts(&ops[0].kind),
            How::Joined => {
                let products: Vec<_> = (0..ops.len()).map(product).collect();
                let ids: Vec<WeightId> = products.iter().map(|(_, weight, _)| *weight).collect();
                let parts = self.weights.joined(&ids)?;
                Ok(self.product_drafts(Products {
                    input: products[0].0,
                    weight: ids[0],
                    parts: &parts,
                    features: ids.iter().map(|id| self.program.weights[id.0].rows).sum(),
                    outs: products.iter().map(|(.., out)| *out).collect(),
                    gated: false,
                    accumulate: false,
                }))
            }
            How::Gated => {
                let ((input, gate, _), (_, up, _)) = (product(0), product(1));
                let OpKind::GateMul { out, .. } = ops[2].kind else { unreachable!("the gating") };
                let parts = self.weights.alternating([gate, up], matmul::GATED_ROWS)?;
                Ok(self.product_drafts(Products {
                    input,
                    weight: gate,
                    parts: &parts,
                    features: self.program.weights[gate.0].rows,
                    outs: vec![out],
                    gated: true,
                    accumulate: false,
                }))
            }
            How::RopeAndStore => {
                let OpKind::Rope { buffer: query, num_heads, head_size, rotation, style } = ops[0].kind
                else {
                    unreachable!("the rope of the queries")
                };
                let OpKind::StoreKv { key, value, layer } = ops[2].kind else { unreachable!("the store") };
                let (rotary, before) = (rotation.rotary, self.words_before(&rotation));
                let rope = rope::params(num_heads, head_size, rotary, style, before);
                let widths = [key, value].map(|id| self.program.buffers[id.0].width);
                let in_texels = cache_in_texels(self.program, self.options);
                let activation = |id: BufferId| Bound::Buffer(self.plan.activations[id.0].clone());
                let CachePlace { group, memory } = self.plan.layout.places[layer];
                let [keys, values] = &self.plan.cache[memory];
                Ok(vec![Draft {
                    rows: Rows::Tokens,
                    variants: store_kv::rope_variants(num_heads * rotary / 2, widths, in_texels),
                    params: store_kv::rope_params(widths, group, rope),
                    windows: None,
                    bound: vec![
                        activation(query),
                        activation(key),
                        activation(value),
                        keys.into(),
                        values.into(),
                    ],
                }])
            }
        }
    }

    /// Words of rope tables before the one of this rotation, for one row.
    fn words_before(&self, rotation: &Rotation) -> usize {
        let tables = self.plan.ropes.iter().take_while(|table| !table.serves(rotation));
        tables.map(RopeTable::words).sum()
    }

    fn product_drafts(&self, products: Products<'_>) -> Vec<Draft> {
        let Products { input, weight, parts, features, outs, gated, accumulate } = products;
        let Builder { program, options, plan, .. } = self;
        let format = program.weights[weight.0].format;
        let (width, rows) = (program.buffers[input.0].width, program.buffers[input.0].rows);
        let windows = self.windows(width);
        let widths = outs.iter().map(|out| program.buffers[out.0].width);
        let aligned = if widths.clone().all(|width| width.is_multiple_of(4)) { 4 } else { 1 };
        let draft = |part: &Part| {
            let features = if gated { features } else { part.rows };
            let shape = matmul::Shape {
                format,
                features,
                outputs: outs.len(),
                gated,
                accumulate,
                aligned,
                input: windows.map_or(matmul::Input::Buffer, |_| matmul::Input::Window(options.window)),
            };
            let window_rows = windows.map_or(usize::MAX, |windows| windows.rows);
            let count = (row_capacity(rows, self.limits) as usize).div_ceil(window_rows);
            let mut params = Vec::new();
            for window in 0..count {
                params.resize(window * windows.map_or(0, |windows| windows.params_stride) / 4, 0);
                let of_window = matmul::Params {
                    features,
                    first_feature: part.first_row,
                    columns: width,
                    out_widths: widths.clone().collect(),
                    rows,
                    window: (window * window_rows, window_rows),
                };
                params.extend(of_window.words());
            }
            let activation = |id: BufferId| plan.activations[id.0].clone();
            let bound_input = match windows {
                Some(_) => Bound::Window(activation(input), options.window),
                None => Bound::Buffer(activation(input)),
            };
            let mut bound = vec![(&part.values).into(), (&part.scales).into(), bound_input];
            bound.extend(outs.iter().map(|out| Bound::Buffer(activation(*out))));
            Draft { rows, variants: self.product_variants(shape), params, windows, bound }
        };
        parts.iter().map(draft).collect()
    }

    fn product_variants(&self, shape: matmul::Shape) -> Vec<Variant> {
        let mut products = self.products.borrow_mut();
        if let Some((_, variants)) = products.iter().find(|(made, _)| *made == shape) {
            return variants.clone();
        }
        let variants = matmul::variants(shape, self.options.mapping);
        products.push((shape, variants.clone()));
        variants
    }

    /// How an input of this width is seen; `None`: as a whole.
    fn windows(&self, width: usize) -> Option<Windows> {
        const ROWS_AT_ONCE: usize = 8;
        let row_bytes = 4 * stride(width);
        let rows = self.options.window / row_bytes / ROWS_AT_ONCE * ROWS_AT_ONCE;
        let params_stride = 4 * matmul::PARAMS.next_multiple_of(self.gpu.params_stride() / 4);
        let aligned = (rows * row_bytes).is_multiple_of(self.gpu.params_stride());
        (self.options.mapping != Mapping::Hardware && rows > 0 && aligned).then_some(Windows {
            rows,
            params_stride,
            input_stride: rows * row_bytes,
        })
    }

    /// The dispatches of an op: one, but for weights in several parts.
    fn drafts(&mut self, kind: &OpKind) -> Result<Vec<Draft>, DeviceError> {
        if let OpKind::MatMul { input, weight, out, accumulate } = *kind {
            self.weights.matrix(weight)?;
            return Ok(self.product_drafts(Products {
                input,
                weight,
                parts: self.weights.parts(weight),
                features: self.program.weights[weight.0].rows,
                outs: vec![out],
                gated: false,
                accumulate,
            }));
        }
        let words_before = match *kind {
            OpKind::Rope { rotation, .. } => self.words_before(&rotation),
            _ => 0,
        };
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
                    variants: embed::variants(format, width(out), mapping),
                    params: embed::params(part.first_row as u32, part.rows as u32, width(out), scale),
                    windows: None,
                    bound: vec![(&part.values).into(), (&part.scales).into(), activation(out).into()],
                });
                return Ok(drafts.collect());
            }
            OpKind::MatMul { .. } => unreachable!("drafted above"),
            OpKind::RmsNorm { input, weight, out, epsilon } => Draft {
                rows: rows(input),
                variants: rms_norm::variants(mapping, width(input) / columns(weight)),
                params: rms_norm::params(
                    columns(weight),
                    width(input) / columns(weight),
                    rows(input),
                    epsilon,
                ),
                windows: None,
                bound: vec![activation(input).into(), weights.vector(weight)?.into(), activation(out).into()],
            },
            OpKind::AddBias { buffer, bias } => Draft {
                rows: rows(buffer),
                variants: add_bias::variants(width(buffer)),
                params: add_bias::params(width(buffer), rows(buffer)),
                windows: None,
                bound: vec![activation(buffer).into(), weights.vector(bias)?.into()],
            },
            OpKind::Rope { rotation: Rotation { rotary: 0, .. }, .. } => return Ok(Vec::new()),
            OpKind::Rope { buffer, num_heads, head_size, rotation: Rotation { rotary, .. }, style } => {
                Draft {
                    rows: rows(buffer),
                    variants: rope::variants(num_heads, rotary),
                    params: rope::params(num_heads, head_size, rotary, style, words_before).to_vec(),
                    windows: None,
                    bound: vec![activation(buffer).into()],
                }
            }
            OpKind::StoreKv { key, value, layer } => {
                let CachePlace { group, memory } = plan.layout.places[layer];
                let [keys, values] = &plan.cache[memory];
                let widths = [key, value].map(width);
                Draft {
                    rows: Rows::Tokens,
                    variants: store_kv::variants(widths, cache_in_texels(program, *options)),
                    params: store_kv::params(widths, group),
                    windows: None,
                    bound: vec![activation(key).into(), activation(value).into(), keys.into(), values.into()],
                }
            }
            OpKind::Attention { query, out, layer, num_heads, scale, window } => {
                let CachePlace { group, memory } = plan.layout.places[layer];
                let shape = AttentionShape {
                    num_heads,
                    num_kv_heads: program.num_kv_heads,
                    head_size: program.head_size,
                    value_head_size: program.value_head_size,
                    block_size: limits.block_size,
                    scale,
                    window,
                    cache_group: group,
                };
                let [keys, values] = &plan.cache[memory];
                Draft {
                    rows: Rows::Tokens,
                    variants: attention::variants(shape, mapping),
                    params: attention::params(shape),
                    windows: None,
                    bound: vec![activation(query).into(), keys.into(), values.into(), activation(out).into()],
                }
            }
            OpKind::GateMul { activation: kind, gate, up, out } => Draft {
                rows: rows(gate),
                variants: gate_mul::variants(kind, width(gate)),
                params: gate_mul::params(width(gate), rows(gate)),
                windows: None,
                bound: vec![activation(gate).into(), activation(up).into(), activation(out).into()],
            },
            OpKind::Add { input, out } => Draft {
                rows: rows(out),
                variants: add::variants(width(out)),
                params: add::params(width(out), rows(out)),
                windows: None,
                bound: vec![activation(input).into(), activation(out).into()],
            },
            OpKind::GatherRows { input, out } => Draft {
                rows: Rows::Logits,
                variants: gather_rows::variants(width(input)),
                params: gather_rows::params(width(input)),
                windows: None,
                bound: vec![activation(input).into(), activation(out).into()],
            },
        };
        Ok(vec![draft])
    }

    fn finish(&self, ops: Range<usize>, draft: Draft) -> Result<Dispatch, DeviceError> {
        let (gpu, name) = (self.gpu, self.program.ops[ops.start].name.as_str());
        let params = uniform(gpu, name, &draft.params)?;
        let params_bytes = match draft.windows {
            None => params.size(),
            Some(_) => 4 * matmul::PARAMS as u64,
        };
        let part_of = |buffer, bytes| {
            let size = NonZeroU64::new(bytes);
            wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset: 0, size })
        };
        let mut entries = vec![
            wgpu::BindGroupEntry { binding: 0, resource: part_of(&params, params_bytes) },
            wgpu::BindGroupEntry { binding: 1, resource: part_of(&self.plan.step, 4 * HEADER_WORDS as u64) },
            wgpu::BindGroupEntry { binding: 2, resource: self.plan.step.as_entire_binding() },
        ];
        for (binding, bound) in (3..).zip(&draft.bound) {
            let resource = match bound {
                Bound::Buffer(buffer) => buffer.as_entire_binding(),
                Bound::Window(buffer, bytes) => part_of(buffer, *bytes as u64),
                Bound::Texels(view) => wgpu::BindingResource::TextureView(view),
            };
            entries.push(wgpu::BindGroupEntry { binding, resource });
        }
        // All variants of an op bind the same buffers in the same way.
        let storage: &'static [Access] = draft.variants[0].kernel.storage;
        let bind_group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(name),
            layout: &gpu.layout(storage),
            entries: &entries,
        });
        let mut variants = Vec::with_capacity(draft.variants.len());
        let at_once = draft.windows.map_or(u64::MAX, |windows| windows.rows as u64);
        let capacity = row_capacity(draft.rows, self.limits).min(at_once);
        for (index, variant) in draft.variants.iter().enumerate() {
            let next = draft.variants.get(index + 1).map_or(u64::MAX, |next| next.min_rows - 1);
            self.plan.fold(name, variant.work.workgroups(capacity.min(next)))?;
            variants.push((variant.min_rows, gpu.pipeline(&variant.kernel)?, variant.work));
        }
        gpu.check()?;
        let (rows, windows) = (draft.rows, draft.windows);
        Ok(Dispatch { ops, name: name.to_owned(), rows, bind_group, windows, variants })
    }
}

/// Whether keys and values are in textures.
fn cache_in_texels(program: &Program, options: Options) -> bool {
    attention::cache_in_texels(options.mapping, program.head_size, program.value_head_size)
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
                .map(|id| dequantized_vector(&program.weights[id.0], &source.weight(id)))
                .transpose()?;
            tables.push(RopeTable::new(rotation, values.as_deref()));
        }
    }
    Ok(tables)
}
