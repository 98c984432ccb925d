//! The `rms_norm` op: a workgroup for each row, or for each of the runs that a row is normed in.

use crate::device::wgpu::shader::{
    Access, Kernel, Mapping, Variant, Work, chunk, chunk_type, logits_flag, output_source, stride,
};
use crate::kernels::reduce;
use crate::program::Rows;

pub mod reference;
#[cfg(test)]
mod tests;

/// The dispatch for rows of as many runs of this width. Binds the input, the weight as `f32` and the output, which may
/// be the input if it is not in texels.
pub(crate) fn variants(mapping: Mapping, width: usize, runs: usize, out_in_texels: bool) -> Vec<Variant> {
    const BUFFERS: &[Access] = &[Access::Write, Access::Read, Access::Write];
    const TEXELS: &[Access] = &[Access::Write, Access::Read, Access::WriteTexels];
    let threads = if mapping.is_software() { 8 } else { 128 };
    let across = if chunk(width) == 4 { "(chunk.x + chunk.y) + (chunk.z + chunk.w)" } else { "chunk" };
    let chunks = format!(
        "alias Chunk = {};\nfn across(chunk: Chunk) -> f32 {{\n    return {across};\n}}\n",
        chunk_type(width)
    );
    let kernel = Kernel::new(
        "rms_norm",
        if out_in_texels { TEXELS } else { BUFFERS },
        &[("THREADS", threads), ("VALUES", 1), ("CHUNK", chunk(width))],
        &[
            &chunks,
            &output_source("out", 5, out_in_texels, "Chunk"),
            &reduce::source(mapping, include_str!("rms_norm.wgsl")),
        ],
    );
    Variant::only(kernel, Work::Groups { per_rows: runs as u64, rows: 1 })
}

/// Parameters for rows of as many runs of this width.
pub(crate) fn params(width: usize, runs: usize, rows: Rows, epsilon: f32) -> Vec<u32> {
    vec![width as u32, stride(runs * width) as u32, logits_flag(rows), epsilon.to_bits(), runs as u32]
}
