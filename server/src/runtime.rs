//! Runs a command's asynchronous part to its end, on threads of its own.

use anyhow::Context;
use tokio::runtime::Runtime;

/// Runs `work` on a runtime of its own. Blocks, but not longer than `work`: what it leaves behind is dropped when it
/// next waits.
///
/// # Errors
/// The runtime cannot start, or `work` fails.
pub(crate) fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = Runtime::new().context("the async runtime cannot start")?;
    let result = runtime.block_on(work);
    // An engine that hangs in a driver must not keep the process, nor a collector that never answers.
    runtime.shutdown_background();
    result
}
