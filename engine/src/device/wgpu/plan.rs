//! A program turned into dispatches: buffers allocated, kernels chosen; [`super::dispatch`] makes them ready.
//!
//! Invariant: after [`Plan::build`] nothing about the program is left to decide but the number of rows.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Instant;

use limpid_telemetry::observation::Phase;
use wgpu::BufferUsages;

use super::candidates::{Candidates, Picking};
use super::dispatch::{Dispatch, Draft, Extent};
use super::gpu::{Array, Gpu, Options};
use super::groups::{Group, How, Norm, groups};
use super::shader::{Texel, Variant};
use super::split::Split;
use super::step::capacity;
use super::texels::{self, Activations};
use super::weights::{Part, Weights, dequantized_vector};
use crate::cache_layout::{CacheLayout, CachePlace};
use crate::device::{Batch, DeviceError, DeviceLimits, WeightSource};
use crate::kernels::attention::reference::AttentionShape;
use crate::kernels::rope::RopeTable;
use crate::kernels::{
    add, add_bias, attention, embed, gate_mul, gather_rows, matmul, rms_norm, rope, store_kv,
};
use crate::program::{Activation, BufferId, OpKind, Program, Rotation, Rows, WeightId};

/// Everything that a step needs on the device.
pub(super) struct Plan {
    /// In the order of their ops.
    pub(super) dispatches: Vec<Dispatch>,
    /// Places in the program of ops that are computed together, and of their dispatches.
    groups: Vec<(Range<usize>, Range<usize>)>,
    pub(super) candidates: Option<Candidates>,
    /// The program's buffers, rows [`stride`] values apart.
    pub(super) activations: Activations,
    /// How layers share the cache.
    pub(super) layout: CacheLayout,
    /// One pair of keys and values per memory of the layout.
    pub(super) cache: Vec<[Array; 2]>,
    /// `None` where no past is ever split.
    pub(super) split: Option<Split>,
    /// The step's words.
    pub(super) step: wgpu::Buffer,
    pub(super) ropes: Vec<RopeTable>,
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
        let groups = groups(program, options.mapping);
        let activations = texels::allocate(gpu, program, &groups, limits, options)?;
        let slots = (limits.num_blocks * limits.block_size) as u64;
        let in_texels = cache_in_texels(program, options);
        let mut cache = Vec::with_capacity(layout.num_memories);
        for number in 0..layout.num_memories {
            let half = |what, width: usize| -> Result<Array, DeviceError> {
                let name = format!("the {what} of cache {number}");
                let bytes = 4 * slots * width as u64;
                Ok(if in_texels {
                    Array::Texels(gpu.texels(&name, bytes / 16, Texel::Floats, options)?)
                } else {
                    Array::Buffer(gpu.storage(&name, bytes, options)?)
                })
            };
            cache.push([half("keys", program.key_width())?, half("values", program.value_width())?]);
        }
        let plan = Plan {
            dispatches: Vec::new(),
            groups: Vec::new(),
            candidates: None,
            activations,
            layout,
            cache,
            split: Split::new(gpu, program, limits, options)?,
            step,
            ropes,
        };
        let weights = Weights::new(gpu, options, &program.weights, source);
        let products = RefCell::default();
        let mut builder = Builder { program, limits, options, weights, products, plan };
        let mut drafts = Vec::with_capacity(program.ops.len());
        for group in groups {
            let of_group = builder.group_drafts(&group)?;
            drafts.push((group.ops, of_group));
        }
        let uploaded = Phase::since("upload_weights", started);
        let mut plan = builder.plan;
        let all = drafts.iter().flat_map(|(_, drafts)| drafts).flat_map(|draft| &draft.variants);
        gpu.build_pipelines(all.map(|variant| &variant.kernel))?;
        for (ops, drafts) in drafts {
            let first = plan.dispatches.len();
            for draft in drafts {
                let name = &program.ops[ops.start].name;
                plan.dispatches.push(draft.finish(gpu, name, &plan.step, limits, options)?);
            }
            plan.groups.push((ops, first..plan.dispatches.len()));
        }
        let logits = plan.activations.now(program.logits).buffer();
        plan.candidates = Candidates::build(gpu, logits, program.vocabulary(), &plan.step, limits, options)?;
        let compiled = Phase::since("build_pipelines", uploaded.to);
        Ok((plan, [uploaded, compiled]))
    }

    /// The dispatches group by group, those of ops that a batch of this many rows does not need left out.
    pub(super) fn groups(&self, logits_rows: usize) -> impl Iterator<Item = (Range<usize>, &[Dispatch])> {
        let of_group = move |(ops, places): &(Range<usize>, Range<usize>)| {
            (ops.clone(), &self.dispatches[places.clone()])
        };
        let needed = move |dispatch: &Dispatch| dispatch.rows == Rows::Tokens || logits_rows > 0;
        self.groups.iter().map(of_group).filter(move |(_, dispatches)| dispatches.first().is_some_and(needed))
    }

    /// How large a step with this batch is.
    pub(super) fn extent(&self, batch: &Batch) -> Extent {
        Extent {
            tokens: batch.tokens.len(),
            logits_rows: batch.logits_rows.len(),
            partitions: self.split.as_ref().and_then(|split| split.partitions(batch)),
        }
    }

    /// How a batch's candidates are picked; `None` if it asks for none.
    pub(super) fn picking(&self, batch: &Batch) -> Option<&Picking> {
        self.candidates.as_ref()?.picking(batch)
    }

    /// Records one workgroup of everything. On a step of no rows they do nothing, and the driver has compiled
    /// every pipeline and touched every buffer.
    pub(super) fn record_warm_up(&self, pass: &mut wgpu::ComputePass<'_>) {
        self.dispatches.iter().for_each(|dispatch| dispatch.record_warm_up(pass));
        if let Some(candidates) = &self.candidates {
            candidates.record_warm_up(pass);
        }
    }
}

struct Builder<'a> {
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
    /// What is done to the input first.
    norm: Option<Norm>,
    weight: WeightId,
    parts: &'p [Part],
    /// Of all parts together.
    features: usize,
    outs: Vec<BufferId>,
    gated: Option<Activation>,
    /// Where what it is added to is, if it is.
    added_to: Option<Array>,
}

impl Builder<'_> {
    /// The dispatches of a group: one, but for weights in several parts.
    fn group_drafts(&mut self, group: &Group) -> Result<Vec<Draft>, DeviceError> {
        let (ops, norm) = (group.rest(self.program), group.norm);
        let product = |op: usize| match ops[op].kind {
            OpKind::MatMul { input, weight, out, .. } => (input, weight, out),
            _ => unreachable!("a group of products"),
        };
        match group.how {
            How::Alone => match ops[0].kind {
                OpKind::MatMul { input, weight, out, accumulate } => {
                    self.weights.matrix(weight)?;
                    let added_to =
                        accumulate.then(|| self.plan.activations.update(out)).map(|[before, _]| before);
                    self.product_drafts(Products {
                        input,
                        norm,
                        weight,
                        parts: self.weights.parts(weight),
                        features: self.program.weights[weight.0].rows,
                        outs: vec![out],
                        gated: None,
                        added_to,
                    })
                }
                ref other => self.drafts(other),
            },
            How::Joined => {
                let products: Vec<_> = (0..ops.len()).map(product).collect();
                let ids: Vec<WeightId> = products.iter().map(|(_, weight, _)| *weight).collect();
                let parts = self.weights.joined(&ids)?;
                self.product_drafts(Products {
                    input: products[0].0,
                    norm,
                    weight: ids[0],
                    parts: &parts,
                    features: ids.iter().map(|id| self.program.weights[id.0].rows).sum(),
                    outs: products.iter().map(|(.., out)| *out).collect(),
                    gated: None,
                    added_to: None,
                })
            }
            How::Gated => {
                let ((input, gate, _), (_, up, _)) = (product(0), product(1));
                let OpKind::GateMul { activation, out, .. } = ops[2].kind else { unreachable!("the gating") };
                let parts = self.weights.alternating([gate, up], matmul::GATED_ROWS)?;
                self.product_drafts(Products {
                    input,
                    norm,
                    weight: gate,
                    parts: &parts,
                    features: self.program.weights[gate.0].rows,
                    outs: vec![out],
                    gated: Some(activation),
                    added_to: None,
                })
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
                let [before, turned] = self.plan.activations.update(query);
                let activation = |id: BufferId| self.plan.activations.now(id).into();
                let CachePlace { group, memory } = self.plan.layout.places[layer];
                let [keys, values] = &self.plan.cache[memory];
                let mut bound = vec![(&before).into(), activation(key), activation(value)];
                let variants = if before.is_texels() {
                    bound.push((&turned).into());
                    store_kv::rope_texel_variants(head_size, widths)
                } else {
                    store_kv::rope_variants(num_heads * rotary / 2, widths, in_texels)
                };
                bound.extend([keys.into(), values.into()]);
                Ok(vec![Draft::new(
                    Rows::Tokens,
                    variants,
                    store_kv::rope_params(widths, group, rope),
                    bound,
                )])
            }
        }
    }

    /// Words of rope tables before the one of this rotation, for one row.
    fn words_before(&self, rotation: &Rotation) -> usize {
        let tables = self.plan.ropes.iter().take_while(|table| !table.serves(rotation));
        tables.map(RopeTable::words).sum()
    }

    fn product_drafts(&self, products: Products<'_>) -> Result<Vec<Draft>, DeviceError> {
        let Products { input, norm, weight, parts, features, outs, gated, added_to } = products;
        let Builder { program, plan, weights, .. } = self;
        let input = norm.map_or(input, |norm| norm.input);
        let format = program.weights[weight.0].format;
        let (width, rows) = (program.buffers[input.0].width, program.buffers[input.0].rows);
        let widths = outs.iter().map(|out| program.buffers[out.0].width);
        let aligned = if widths.clone().all(|width| width.is_multiple_of(4)) { 4 } else { 1 };
        let input = plan.activations.now(input);
        let norm_weight = norm.map(|norm| weights.vector_beside(norm.weight, input)).transpose()?;
        let draft = |part: &Part| {
            let features = if gated.is_some() { features } else { part.rows };
            let shape = matmul::Shape {
                format,
                features,
                outputs: outs.len(),
                gated,
                accumulate: added_to.is_some(),
                normed: norm.is_some(),
                aligned,
                input: input.place(false),
                output: plan.activations.now(outs[0]).place(false),
            };
            let params = matmul::Params {
                features,
                first_feature: part.first_row,
                columns: width,
                out_widths: widths.clone().collect(),
                rows,
                epsilon: norm.map(|norm| norm.epsilon),
            };
            let mut bound = vec![(&part.values).into(), (&part.scales).into(), input.into()];
            bound.extend(outs.iter().map(|out| plan.activations.now(*out).into()));
            bound.extend(norm_weight.iter().map(Into::into));
            bound.extend(added_to.iter().filter(|array| array.is_texels()).map(Into::into));
            Draft::new(rows, self.product_variants(shape), params.words(), bound)
        };
        Ok(parts.iter().map(draft).collect())
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

    /// The dispatches of an op that is no product: one, but for weights in several parts.
    fn drafts(&mut self, kind: &OpKind) -> Result<Vec<Draft>, DeviceError> {
        let words_before = match *kind {
            OpKind::Rope { rotation, .. } => self.words_before(&rotation),
            _ => 0,
        };
        let Builder { program, limits, plan, weights, options, .. } = self;
        let mapping = options.mapping;
        let width = |id: BufferId| program.buffers[id.0].width;
        let rows = |id: BufferId| program.buffers[id.0].rows;
        let columns = |id: WeightId| program.weights[id.0].columns;
        let activation = |id: BufferId| plan.activations.now(id);
        let draft = match *kind {
            OpKind::Embed { table, out, scale } => {
                let format = program.weights[table.0].format;
                let parts = weights.matrix(table)?.iter();
                let drafts = parts.map(|part| {
                    Draft::new(
                        Rows::Tokens,
                        embed::variants(format, width(out), mapping, activation(out).place(false)),
                        embed::params(part.first_row as u32, part.rows as u32, width(out), scale),
                        vec![(&part.values).into(), (&part.scales).into(), activation(out).into()],
                    )
                });
                return Ok(drafts.collect());
            }
            OpKind::MatMul { .. } => unreachable!("drafted as a group"),
            OpKind::RmsNorm { input, weight, out, epsilon } => {
                let [from, to] = match input == out {
                    true => plan.activations.update(out),
                    false => [input, out].map(|id| activation(id).clone()),
                };
                let weight_array = weights.vector_beside(weight, &from)?;
                let (run, runs) = (columns(weight), width(input) / columns(weight));
                Draft::new(
                    rows(input),
                    rms_norm::variants(mapping, run, runs, [from.place(true), to.place(true)]),
                    rms_norm::params(run, runs, rows(input), epsilon),
                    vec![(&from).into(), (&weight_array).into(), (&to).into()],
                )
            }
            OpKind::AddBias { buffer, bias } => Draft::new(
                rows(buffer),
                add_bias::variants(width(buffer)),
                add_bias::params(width(buffer), rows(buffer)),
                vec![activation(buffer).into(), weights.vector(bias)?.into()],
            ),
            OpKind::Rope { rotation: Rotation { rotary: 0, .. }, .. } => return Ok(Vec::new()),
            OpKind::Rope { buffer, num_heads, head_size, rotation: Rotation { rotary, .. }, style } => {
                Draft::new(
                    rows(buffer),
                    rope::variants(num_heads, rotary),
                    rope::params(num_heads, head_size, rotary, style, words_before).to_vec(),
                    vec![activation(buffer).into()],
                )
            }
            OpKind::StoreKv { key, value, layer } => {
                let CachePlace { group, memory } = plan.layout.places[layer];
                let [keys, values] = &plan.cache[memory];
                let widths = [key, value].map(width);
                Draft::new(
                    Rows::Tokens,
                    store_kv::variants(widths, cache_in_texels(program, *options)),
                    store_kv::params(widths, group),
                    vec![activation(key).into(), activation(value).into(), keys.into(), values.into()],
                )
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
                let (query, out) = (activation(query), activation(out));
                return Ok(Split::attention(
                    plan.split.as_ref(),
                    shape,
                    mapping,
                    [query, out],
                    [keys, values],
                ));
            }
            OpKind::GateMul { activation: kind, gate, up, out } => Draft::new(
                rows(gate),
                gate_mul::variants(kind, width(gate)),
                gate_mul::params(width(gate), rows(gate)),
                vec![activation(gate).into(), activation(up).into(), activation(out).into()],
            ),
            OpKind::Add { input, out } => {
                let [before, after] = plan.activations.update(out);
                Draft::new(
                    rows(out),
                    add::variants(width(out), after.place(true)),
                    add::params(width(out), rows(out)),
                    vec![plan.activations.now(input).into(), (&before).into(), (&after).into()],
                )
            }
            OpKind::GatherRows { input, out } => Draft::new(
                Rows::Logits,
                gather_rows::variants(width(input), [input, out].map(|id| activation(id).place(false))),
                gather_rows::params(width(input)),
                vec![activation(input).into(), activation(out).into()],
            ),
        };
        Ok(vec![draft])
    }
}

/// Whether keys and values are in textures.
fn cache_in_texels(program: &Program, options: Options) -> bool {
    attention::cache_in_texels(options.mapping, program.head_size, program.value_head_size)
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
