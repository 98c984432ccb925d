//! The `gate_mul` op: a thread for each four values.

use crate::device::wgpu::shader::{Access, ELEMENTS, Kernel, Variant, Work, logits_flag, stride};
use crate::program::{Activation, Rows};

pub mod reference;
#[cfg(test)]
mod tests;

/// The dispatch. Binds gate, up and the output, which may be the gate.
pub(crate) fn variants(activation: Activation, width: usize) -> Vec<Variant> {
    let kernel = Kernel::new(
        "gate_mul",
        &[Access::Write, Access::Read, Access::Write],
        &[("WORKGROUP", ELEMENTS), ("GELU", usize::from(activation == Activation::Gelu))],
        &[include_str!("slope.wgsl"), include_str!("gate_mul.wgsl")],
    );
    let per_row = stride(width) as u64 / 4;
    Variant::only(kernel, Work::Elements { per_row, workgroup: ELEMENTS as u64 })
}

/// Parameters for rows of this width.
pub(crate) fn params(width: usize, rows: Rows) -> Vec<u32> {
    vec![stride(width) as u32 / 4, logits_flag(rows)]
}
