//! The `store_kv` op: a thread for each value of a row.

use crate::device::wgpu::shader::{Access, ELEMENTS, Kernel, Variant, Work, stride};

pub mod reference;
#[cfg(test)]
mod tests;

/// The dispatch. Binds the rows' keys and values and the layer's two caches.
pub(crate) fn variants(width: usize) -> Vec<Variant> {
    let kernel = Kernel::new(
        "store_kv",
        &[Access::Read, Access::Read, Access::Write, Access::Write],
        &[("WORKGROUP", ELEMENTS)],
        &[include_str!("store_kv.wgsl")],
    );
    Variant::only(kernel, Work::Elements { per_row: width as u64, workgroup: ELEMENTS as u64 })
}

/// Parameters for rows of this width and a layer of this cache group.
pub(crate) fn params(width: usize, cache_group: usize) -> Vec<u32> {
    vec![width as u32, stride(width) as u32, cache_group as u32]
}
