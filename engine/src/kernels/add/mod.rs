//! The `add` op: a thread for each four values.

use crate::device::wgpu::shader::{
    Access, ELEMENTS, FOUR, Kernel, Place, Variant, Work, input_source, logits_flag, output_source, stride,
};
use crate::program::Rows;

pub mod reference;
#[cfg(test)]
mod tests;

/// The dispatch. Binds the input, what it is added to, and the output: the same buffer or another texture.
pub(crate) fn variants(width: usize, out: Place) -> Vec<Variant> {
    let kernel = Kernel::new(
        "add",
        &[Access::Read, out.read(), out.written()],
        &[("WORKGROUP", ELEMENTS)],
        &[
            &input_source("before", 4, out, FOUR),
            &output_source("out", 5, out, FOUR),
            include_str!("add.wgsl"),
        ],
    );
    let per_row = stride(width) as u64 / 4;
    Variant::only(kernel, Work::Elements { per_row, workgroup: ELEMENTS as u64 })
}

/// Parameters for rows of this width.
pub(crate) fn params(width: usize, rows: Rows) -> Vec<u32> {
    vec![stride(width) as u32 / 4, logits_flag(rows)]
}
