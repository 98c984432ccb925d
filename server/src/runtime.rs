//! Runs a command's asynchronous part to its end, on threads of its own.

use std::num::NonZero;
use std::thread::available_parallelism;

use anyhow::Context;
use tokio::runtime::Builder;

/// Runs `work` on a runtime of its own, which has a thread for every two cores: the engine has the others, and on few
/// cores threads that wake each other cost more than they do. Blocks, but not longer than `work`: what it leaves
/// behind is dropped when it next waits.
///
/// # Errors
/// The runtime cannot start, or `work` fails.
pub(crate) fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let threads = available_parallelism().map_or(1, NonZero::get).div_ceil(2);
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .context("the async runtime cannot start")?;
    let result = runtime.block_on(work);
    // An engine that hangs in a driver must not keep the process, nor a collector that never answers.
    runtime.shutdown_background();
    result
}
