//! The `matmul` op: weights stay in their stored format and become `f32` in registers.
//!
//! Three mappings: `lanes` for software rasterisers, `vector` and `tile` for GPUs with few and with many
//! rows. Invariant: those of a device add in the same order (`common.wgsl`), so which of them runs changes no bit.

use crate::device::wgpu::shader::{
    Access, FOUR, Kernel, Mapping, Place, Texel, Variant, Work, input_source, logits_flag, output_source,
    stride, unrolled,
};
use crate::program::{Activation, Rows};
use crate::tensor_type::TensorType;

pub mod reference;
#[cfg(test)]
mod tests;

/// Most weights whose products one dispatch computes.
pub(crate) const MAX_OUTPUTS: usize = 3;

/// Lanes of a workgroup of `lanes.wgsl`.
const LANES: usize = 8;
/// Output features of a lane.
const FEATURES: usize = 4;
/// Output features of a workgroup of `lanes.wgsl`.
const LANES_FEATURES: usize = FEATURES * LANES;
/// Output features of a workgroup of `vector.wgsl`.
const VECTOR_FEATURES: usize = 8;
/// Output features and rows of a workgroup of `tile.wgsl`.
const TILE: usize = 32;

/// Rows that alternate in a weight made of gate and up.
pub(crate) const GATED_ROWS: usize = FEATURES / 2;
/// Output features of a workgroup of `lanes.wgsl` that come from such a weight.
const GATED_FEATURES: usize = LANES_FEATURES / 2;

/// WGSL that declares the bindings of packed weights and reads them: `value_at` and `scale_at`.
pub(crate) fn stored_source(mapping: Mapping) -> &'static str {
    match mapping {
        Mapping::Software { .. } => include_str!("stored_texels.wgsl"),
        Mapping::Hardware { .. } => include_str!("stored_buffer.wgsl"),
    }
}

/// WGSL that reads blocks of this format with `value_at` and `scale_at`: `load_block`,
/// `block_scale`, `block_values` (the j-th four, unscaled) and `add_block` (scales a sum over a block and adds it).
pub(crate) fn format_source(format: TensorType) -> &'static str {
    macro_rules! with_quanta {
        ($file:literal) => {
            concat!(include_str!("quanta.wgsl"), include_str!($file))
        };
    }
    match format {
        TensorType::F32 => include_str!("format_f32.wgsl"),
        TensorType::F16 => include_str!("format_f16.wgsl"),
        TensorType::Bf16 => include_str!("format_bf16.wgsl"),
        TensorType::Q8_0 => include_str!("format_q8_0.wgsl"),
        TensorType::Q4_0 => with_quanta!("format_q4_0.wgsl"),
        TensorType::Q4_1 => with_quanta!("format_q4_1.wgsl"),
        TensorType::Q5_0 => with_quanta!("format_q5_0.wgsl"),
        TensorType::Q5_1 => with_quanta!("format_q5_1.wgsl"),
        TensorType::Q2_K => with_quanta!("format_q2_k.wgsl"),
        TensorType::Q3_K => with_quanta!("format_q3_k.wgsl"),
        TensorType::Q4_K => with_quanta!("format_q4_k.wgsl"),
        TensorType::Q5_K => with_quanta!("format_q5_k.wgsl"),
        TensorType::Q6_K => with_quanta!("format_q6_k.wgsl"),
        TensorType::IQ4_NL => with_quanta!("format_iq4_nl.wgsl"),
        TensorType::MXFP4 => with_quanta!("format_mxfp4.wgsl"),
    }
}

/// Blocks of 32 values that share scales.
pub(crate) fn unit(format: TensorType) -> usize {
    format.block_elements().div_ceil(32)
}

/// WGSL that loads the blocks of a lane's four neighbouring rows: `load_four`.
fn four_source(format: TensorType) -> &'static str {
    match format {
        TensorType::Q4_0 => include_str!("four_q4_0.wgsl"),
        TensorType::Q4_1 => include_str!("four_q4_1.wgsl"),
        TensorType::Q8_0 => include_str!("four_q8_0.wgsl"),
        _ => include_str!("four_blocks.wgsl"),
    }
}

/// A product, or several of the same input, as kernels tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Format of the weights.
    pub(crate) format: TensorType,
    /// Output features of the part.
    pub(crate) features: usize,
    /// Outputs, at most [`MAX_OUTPUTS`].
    pub(crate) outputs: usize,
    /// The weight is gate and up, [`GATED_ROWS`] of each in turn, and the output is `activation(gate) · up`.
    pub(crate) gated: Option<Activation>,
    /// Add to what is in the output; only with one output.
    pub(crate) accumulate: bool,
    /// Norm the input first; only on software adapters, and where nothing is added to.
    pub(crate) normed: bool,
    /// Outputs begin and end at multiples of this.
    pub(crate) aligned: usize,
    /// A texture only where lanes can be handed round.
    pub(crate) input: Place,
    /// Textures only where lanes can be handed round, and if they are aligned to 4.
    pub(crate) output: Place,
}

impl Shape {
    /// What it adds to is another texture than its output.
    fn adds_to_texels(&self) -> bool {
        self.accumulate && self.output == Place::Texels
    }

    /// What the kernels bind where weights are bound like this.
    fn storage(&self, weights: Access) -> Vec<Access> {
        let mut storage = vec![weights, weights, self.input.read()];
        storage.resize(3 + self.outputs, self.output.written());
        if self.normed {
            storage.push(self.input.read());
        }
        if self.adds_to_texels() {
            storage.push(Place::Texels.read());
        }
        storage
    }
}

/// The dispatches for a part of a weight. Binds packed values, scales, input and outputs, and behind them the weights of
/// the norm, if there is one, which are where the input is, or behind an output that is a texture what it is added to,
/// another one.
pub(crate) fn variants(shape: Shape, mapping: Mapping) -> Vec<Variant> {
    let variant = |min_rows: usize, rows: usize, group: usize, kernel: Kernel| Variant {
        min_rows: min_rows as u64,
        kernel,
        work: Work::Groups { per_rows: shape.features.div_ceil(group) as u64, rows: rows as u64 },
    };
    match mapping {
        Mapping::Software { shuffle } => {
            // More rows reuse a weight's load.
            let group = if shape.gated.is_some() { GATED_FEATURES } else { LANES_FEATURES };
            let of = |min_rows, rows| variant(min_rows, rows, group, lanes(shape, rows, shuffle));
            vec![of(0, 1), of(2, 4), of(5, 8)]
        }
        Mapping::Hardware { .. } => {
            let of = |min_rows, rows| variant(min_rows, rows, VECTOR_FEATURES, vector(shape, rows));
            vec![of(0, 1), of(2, 4), variant(9, TILE, TILE, tile(shape))]
        }
    }
}

/// Words of [`Params`], as `common.wgsl` has them.
const PARAMS: usize = 6 + 2 * MAX_OUTPUTS;

/// What the kernels are told about a part of a weight.
pub(crate) struct Params {
    /// Output features of the part.
    pub(crate) features: usize,
    /// Where they start among the features of all outputs.
    pub(crate) first_feature: usize,
    /// Input features.
    pub(crate) columns: usize,
    /// Widths of the output buffers.
    pub(crate) out_widths: Vec<usize>,
    /// What input and outputs have rows for.
    pub(crate) rows: Rows,
    /// Of the norm, if there is one.
    pub(crate) epsilon: Option<f32>,
}

impl Params {
    /// As `common.wgsl` reads them.
    pub(crate) fn words(&self) -> Vec<u32> {
        let mut words = vec![
            self.features as u32,
            self.first_feature as u32,
            self.columns as u32,
            self.columns.div_ceil(32) as u32,
            logits_flag(self.rows),
            self.epsilon.unwrap_or_default().to_bits(),
        ];
        let mut end = 0;
        for width in &self.out_widths {
            end += width;
            words.extend([end as u32, stride(*width) as u32]);
        }
        words.resize(PARAMS, 0);
        words
    }
}

/// WGSL that writes the results.
fn store_source(shape: Shape, wide: usize) -> String {
    let store = match shape.outputs {
        1 if shape.accumulate && shape.output == Place::Texels => include_str!("store_added_texels.wgsl"),
        1 if shape.accumulate => include_str!("store_added.wgsl"),
        1 => include_str!("store_1.wgsl"),
        2 => include_str!("store_2.wgsl"),
        _ => include_str!("store_3.wgsl"),
    };
    let out = if wide == 1 { "f32".to_owned() } else { format!("vec{wide}<f32>") };
    let mut bound: String = (0..shape.outputs)
        .map(|index| output_source(&format!("out_{index}"), 6 + index, shape.output, "Out"))
        .collect();
    if shape.adds_to_texels() {
        bound.push_str(&input_source("before", 7, Place::Texels, FOUR));
    }
    format!("alias Out = {out};\nconst WIDE: u32 = {wide}u;\n{bound}{store}")
}

/// WGSL that norms the input, or does not.
fn norm_source(shape: Shape) -> String {
    if shape.normed {
        input_source("norm", 6 + shape.outputs, shape.input, FOUR) + include_str!("normed.wgsl")
    } else {
        include_str!("not_normed.wgsl").to_owned()
    }
}

fn lanes(shape: Shape, rows: usize, shuffle: bool) -> Kernel {
    let (inputs, parameter, lane) = if shuffle {
        let parameter = "@builtin(subgroup_invocation_id) lane: u32,";
        (include_str!("lanes_shuffle.wgsl"), parameter, "lane")
    } else {
        (include_str!("lanes_plain.wgsl"), "", "local")
    };
    // A lane's features are neighbours, and are written at once if they can be.
    let finished = if shape.gated.is_some() { GATED_ROWS } else { FEATURES };
    let wide = if shape.aligned.is_multiple_of(finished) { finished } else { 1 };
    let values: Vec<String> = (0..wide)
        .map(|i| {
            let total = |f: usize| format!("finished[FINISHED_FEATURE * WIDE + {f}u]");
            match shape.gated {
                Some(_) => format!("gated({}, {})", total(i), total(i + GATED_ROWS)),
                None => total(i),
            }
        })
        .collect();
    let values = values.join(", ");
    let (wide, value) = if shape.output == Place::Texels && wide < FEATURES {
        // Two lanes have a texel; the first of them writes it.
        let own = format!("let own = vec2<f32>({values});");
        (FEATURES, format!("{own} let value = Out(own, subgroupShuffle(own, lane ^ 1u));"))
    } else {
        (wide, format!("let value = Out({values});"))
    };
    let rows_source = match shape.gated {
        Some(_) => concat!(include_str!("../gate_mul/slope.wgsl"), include_str!("lanes_gated.wgsl")),
        None => include_str!("lanes_one.wgsl"),
    };
    let main = include_str!("lanes.wgsl")
        .replace("LANE_PARAMETER", parameter)
        .replace("LANE_INDEX", lane)
        .replace("FINISHED_VALUE", &value);
    // Several rows find the weights of the whole block on the stack, from where a multiplication takes them as fast as
    // from a register; a lone row uses them once.
    let is_lone = rows == 1;
    let loops = [
        ("ahead", if is_lone { 0 } else { 8 }),
        ("step", 8),
        ("in_time", usize::from(is_lone)),
        ("this_feature", FEATURES),
        ("finished_feature", finished.div_ceil(wide)),
        ("this_row", rows),
    ];
    let parts = [
        include_str!("common.wgsl"),
        &store_source(shape, wide),
        stored_source(Mapping::Software { shuffle }),
        format_source(shape.format),
        four_source(shape.format),
        &input_source("input", 5, shape.input, FOUR),
        &norm_source(shape),
        rows_source,
        inputs,
        &unrolled(&main, &loops),
    ];
    let gelu = usize::from(shape.gated == Some(Activation::Gelu));
    let constants = [("ROWS", rows), ("UNIT", unit(shape.format)), ("GELU", gelu)];
    Kernel::new("matmul", &shape.storage(Access::Texels(Texel::Words)), &constants, &parts)
}

fn vector(shape: Shape, rows: usize) -> Kernel {
    hardware(shape, &[("ROWS", rows)], include_str!("vector.wgsl"))
}

fn tile(shape: Shape) -> Kernel {
    hardware(shape, &[], include_str!("tile.wgsl"))
}

fn hardware(shape: Shape, constants: &[(&str, usize)], main: &str) -> Kernel {
    let parts = [
        include_str!("common.wgsl"),
        &store_source(shape, 1),
        include_str!("stored_buffer.wgsl"),
        format_source(shape.format),
        &input_source("input", 5, Place::Buffer, FOUR),
        main,
    ];
    Kernel::new("matmul", &shape.storage(Access::Read), constants, &parts)
}
