//! What the threads of a workgroup tell each other: `workgroup_max` and `workgroup_sum`, which kernels include.
//!
//! Where a device has subgroups they take one barrier, elsewhere one for each halving of the threads. Invariant: the
//! order of a sum depends on the device and the kernel, never on the batch.

use crate::device::wgpu::shader::Mapping;

/// WGSL for a kernel with the constants `THREADS`, a power of two, and `VALUES`, numbers that are reduced at once:
/// `Thread` and the functions, and behind them `main`, where `THREAD_PARAMETERS` becomes what an entry point has to ask
/// for and `THREAD` the thread it runs on.
pub(crate) fn source(mapping: Mapping, main: &str) -> String {
    let (functions, parameters, thread) = match mapping.has_subgroups() {
        true => (
            include_str!("subgroups.wgsl"),
            "@builtin(local_invocation_index) local: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) num_subgroups: u32,",
            "Thread(local, subgroup, num_subgroups)",
        ),
        false => (include_str!("tree.wgsl"), "@builtin(local_invocation_index) local: u32,", "Thread(local)"),
    };
    format!(
        "{functions}{}",
        main.replace("THREAD_PARAMETERS", parameters).replace("= THREAD;", &format!("= {thread};"))
    )
}
