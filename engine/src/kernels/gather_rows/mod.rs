//! The `gather_rows` op: a thread for each four values.

use crate::device::wgpu::shader::{Access, ELEMENTS, Kernel, Variant, Work, stride};

pub mod reference;
#[cfg(test)]
mod tests;

/// The dispatch. Binds input and output.
pub(crate) fn variants(width: usize) -> Vec<Variant> {
    let kernel = Kernel::new(
        "gather_rows",
        &[Access::Read, Access::Write],
        &[("WORKGROUP", ELEMENTS)],
        &[include_str!("gather_rows.wgsl")],
    );
    let per_row = stride(width) as u64 / 4;
    Variant::only(kernel, Work::Elements { per_row, workgroup: ELEMENTS as u64 })
}

/// Parameters for rows of this width.
pub(crate) fn params(width: usize) -> Vec<u32> {
    vec![stride(width) as u32 / 4]
}
