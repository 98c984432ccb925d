//! The `add` op: a thread for each four values.

use crate::device::wgpu::shader::{Access, ELEMENTS, Kernel, Variant, Work, logits_flag, stride};
use crate::program::Rows;

pub mod reference;
#[cfg(test)]
mod tests;

/// The dispatch. Binds the input and the values it is added to.
pub(crate) fn variants(width: usize) -> Vec<Variant> {
    let kernel = Kernel::new(
        "add",
        &[Access::Read, Access::Write],
        &[("WORKGROUP", ELEMENTS)],
        &[include_str!("add.wgsl")],
    );
    let per_row = stride(width) as u64 / 4;
    Variant::only(kernel, Work::Elements { per_row, workgroup: ELEMENTS as u64 })
}

/// Parameters for rows of this width.
pub(crate) fn params(width: usize, rows: Rows) -> Vec<u32> {
    vec![stride(width) as u32 / 4, logits_flag(rows)]
}
