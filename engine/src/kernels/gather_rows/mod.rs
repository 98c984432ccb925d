//! The `gather_rows` op: a thread for each four values.

use crate::device::wgpu::shader::{
    ELEMENTS, FOUR, Kernel, Place, Variant, Work, input_source, output_source, stride,
};

pub mod reference;
#[cfg(test)]
mod tests;

/// The dispatch. Binds input and output.
pub(crate) fn variants(width: usize, [input, out]: [Place; 2]) -> Vec<Variant> {
    let kernel = Kernel::new(
        "gather_rows",
        &[input.read(), out.written()],
        &[("WORKGROUP", ELEMENTS)],
        &[
            &input_source("input", 3, input, FOUR),
            &output_source("out", 4, out, FOUR),
            include_str!("gather_rows.wgsl"),
        ],
    );
    let per_row = stride(width) as u64 / 4;
    Variant::only(kernel, Work::Elements { per_row, workgroup: ELEMENTS as u64 })
}

/// Parameters for rows of this width.
pub(crate) fn params(width: usize) -> Vec<u32> {
    vec![stride(width) as u32 / 4]
}
