//! What the threads of a workgroup tell each other: `workgroup_max` and `workgroup_sum`, which kernels include.
//!
//! Where a device has subgroups they take one barrier, elsewhere one for each halving of the threads. Invariant: the
//! order of a sum depends on the device and the kernel, never on the batch.

use crate::device::wgpu::shader::Mapping;

/// WGSL for a kernel with the constants `THREADS`, a power of two, and `VALUES`, numbers that are reduced at once. Its
/// `main` takes a `thread: Thread`.
pub(crate) fn source(mapping: Mapping) -> &'static str {
    match mapping.has_subgroups() {
        true => include_str!("subgroups.wgsl"),
        false => include_str!("tree.wgsl"),
    }
}
