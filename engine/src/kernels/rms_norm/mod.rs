//! The `rms_norm` op: a workgroup for each row, or for each of the runs that a row is normed in.

use crate::device::wgpu::shader::{
    Kernel, Mapping, Place, Variant, Work, chunk, chunk_type, input_source, logits_flag, output_source,
    stride,
};
use crate::kernels::reduce;
use crate::program::Rows;

pub mod reference;
#[cfg(test)]
mod tests;

/// The dispatch for rows of as many runs of this width. Binds the input, the weight as `f32` and the output, which may
/// be the input if it is no texture. The weight is a texture if the input is one; textures are for software adapters and
/// widths in fours.
pub(crate) fn variants(
    mapping: Mapping,
    width: usize,
    runs: usize,
    [input, out]: [Place; 2],
) -> Vec<Variant> {
    let weight = if input == Place::Texels { input } else { Place::Buffer };
    let threads = if mapping.is_software() { 8 } else { 128 };
    let across = if chunk(width) == 4 { "(chunk.x + chunk.y) + (chunk.z + chunk.w)" } else { "chunk" };
    let chunks = format!(
        "alias Chunk = {};\nfn across(chunk: Chunk) -> f32 {{\n    return {across};\n}}\n",
        chunk_type(width)
    );
    let kernel = Kernel::new(
        "rms_norm",
        &[input.read(), weight.read(), out.written()],
        &[("THREADS", threads), ("VALUES", 1), ("CHUNK", chunk(width))],
        &[
            &chunks,
            &input_source("input", 3, input, "Chunk"),
            &input_source("weight", 4, weight, "Chunk"),
            &output_source("out", 5, out, "Chunk"),
            &reduce::source(mapping, include_str!("rms_norm.wgsl")),
        ],
    );
    Variant::only(kernel, Work::Groups { per_rows: runs as u64, rows: 1 })
}

/// Parameters for rows of as many runs of this width.
pub(crate) fn params(width: usize, runs: usize, rows: Rows, epsilon: f32) -> Vec<u32> {
    vec![width as u32, stride(runs * width) as u32, logits_flag(rows), epsilon.to_bits(), runs as u32]
}
