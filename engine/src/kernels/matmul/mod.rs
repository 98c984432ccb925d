//! The `matmul` op: weights stay in their stored format and become `f32` in registers.
//!
//! Three mappings: `lanes` for software rasterisers, `vector` and `tile` for GPUs with few and with many
//! rows. Invariant: they add in the same order (`common.wgsl`), so which of them runs changes no bit.

use crate::device::wgpu::shader::{Access, Kernel, Mapping, Variant, Work, logits_flag, stride};
use crate::program::Rows;
use crate::tensor_type::TensorType;

pub mod reference;
#[cfg(test)]
mod tests;

const STORAGE: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::Write];

/// Lanes of a workgroup of `lanes.wgsl`.
const LANES: usize = 8;
/// Output features of a workgroup of `vector.wgsl`.
const VECTOR_FEATURES: usize = 8;
/// Output features and rows of a workgroup of `tile.wgsl`.
const TILE: usize = 32;

/// WGSL that reads blocks of this format from the bindings `values` and `scales`: `load_block`,
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

/// The dispatches for a part of a weight with this many output features. Binds packed values, scales, input
/// and output.
pub(crate) fn variants(format: TensorType, features: usize, mapping: Mapping) -> Vec<Variant> {
    let variant = |min_rows: usize, rows: usize, group: usize, kernel: Kernel| Variant {
        min_rows: min_rows as u64,
        kernel,
        work: Work::Groups { per_rows: features.div_ceil(group) as u64, rows: rows as u64 },
    };
    match mapping {
        Mapping::Software { shuffle } => {
            // More rows reuse a weight's load; fewer features then keep the sums in registers.
            let of = |min_rows, rows, each| {
                variant(min_rows, rows, LANES * each, lanes(format, rows, each, shuffle))
            };
            vec![of(0, 1, 8), of(2, 4, 8), of(5, 8, 4)]
        }
        Mapping::Hardware => {
            let of = |min_rows, rows| variant(min_rows, rows, VECTOR_FEATURES, vector(format, rows));
            vec![of(0, 1), of(2, 4), variant(9, TILE, TILE, tile(format))]
        }
    }
}

/// What the kernels are told about a part of a weight.
pub(crate) struct Params {
    /// Output features of the part.
    pub(crate) features: usize,
    /// Where they start in a row of the output.
    pub(crate) first_feature: usize,
    /// Input features.
    pub(crate) columns: usize,
    /// Width of the output buffer.
    pub(crate) out_width: usize,
    /// What input and output have rows for.
    pub(crate) rows: Rows,
    /// Add to what is in the output.
    pub(crate) accumulate: bool,
}

impl Params {
    /// As `common.wgsl` reads them.
    pub(crate) fn words(&self) -> Vec<u32> {
        vec![
            self.features as u32,
            self.first_feature as u32,
            self.columns.div_ceil(32) as u32,
            stride(self.out_width) as u32,
            logits_flag(self.rows),
            u32::from(self.accumulate),
        ]
    }
}

fn lanes(format: TensorType, rows: usize, features: usize, shuffle: bool) -> Kernel {
    let (inputs, parameter, lane) = if shuffle {
        let parameter = "@builtin(subgroup_invocation_id) lane: u32,";
        (include_str!("lanes_shuffle.wgsl"), parameter, "lane")
    } else {
        (include_str!("lanes_plain.wgsl"), "", "local")
    };
    let main = include_str!("lanes.wgsl").replace("LANE_PARAMETER", parameter).replace("LANE_INDEX", lane);
    let parts = [include_str!("common.wgsl"), format_source(format), inputs, &main];
    Kernel::new("matmul", STORAGE, &[("ROWS", rows), ("FEATURES", features)], &parts)
}

fn vector(format: TensorType, rows: usize) -> Kernel {
    let parts = [include_str!("common.wgsl"), format_source(format), include_str!("vector.wgsl")];
    Kernel::new("matmul", STORAGE, &[("ROWS", rows)], &parts)
}

fn tile(format: TensorType) -> Kernel {
    let parts = [include_str!("common.wgsl"), format_source(format), include_str!("tile.wgsl")];
    Kernel::new("matmul", STORAGE, &[], &parts)
}
