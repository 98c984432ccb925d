//! The `embed` op: rows of a table, from its stored format to `f32`.

use crate::device::wgpu::shader::{
    Access, ELEMENTS, FOUR, Kernel, Mapping, Place, Texel, Variant, Work, output_source,
};
use crate::kernels::matmul;
use crate::tensor_type::TensorType;

pub mod reference;
#[cfg(test)]
mod tests;

/// The dispatch for a table of this format and width. Binds the packed values, the scales and the output.
pub(crate) fn variants(format: TensorType, width: usize, mapping: Mapping, out: Place) -> Vec<Variant> {
    let packed = if mapping.is_software() { Access::Texels(Texel::Words) } else { Access::Read };
    let kernel = Kernel::new(
        "embed",
        &[packed, packed, out.written()],
        &[("WORKGROUP", ELEMENTS), ("UNIT", matmul::unit(format))],
        &[
            matmul::stored_source(mapping),
            matmul::format_source(format),
            &output_source("out", 5, out, FOUR),
            include_str!("embed.wgsl"),
        ],
    );
    let per_row = 8 * width.div_ceil(32) as u64;
    Variant::only(kernel, Work::Elements { per_row, workgroup: ELEMENTS as u64 })
}

/// Parameters for the part of the table that starts at `first_entry`.
pub(crate) fn params(first_entry: u32, entries: u32, width: usize, scale: f32) -> Vec<u32> {
    vec![first_entry, entries, width.div_ceil(32) as u32, scale.to_bits()]
}
