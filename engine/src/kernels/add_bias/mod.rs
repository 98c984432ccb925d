//! The `add_bias` op: a thread for each value.

use crate::device::wgpu::shader::{Access, ELEMENTS, Kernel, Variant, Work, logits_flag, stride};
use crate::program::Rows;

pub mod reference;
#[cfg(test)]
mod tests;

/// The dispatch. Binds the values and the bias as `f32`.
pub(crate) fn variants(width: usize) -> Vec<Variant> {
    let kernel = Kernel::new(
        "add_bias",
        &[Access::Write, Access::Read],
        &[("WORKGROUP", ELEMENTS)],
        &[include_str!("add_bias.wgsl")],
    );
    Variant::only(kernel, Work::Elements { per_row: width as u64, workgroup: ELEMENTS as u64 })
}

/// Parameters for rows of this width.
pub(crate) fn params(width: usize, rows: Rows) -> Vec<u32> {
    vec![width as u32, stride(width) as u32, logits_flag(rows)]
}
