//! Push: OTLP over gRPC and HTTP/protobuf.
//!
//! The SDK batches spans and collects metrics on threads of its own; this module turns a batch into one OTLP
//! request and delivers it. It is our own thin exporter over the published protobuf types rather than the
//! SDK's, because it has to do what that one cannot: put exemplars into histograms, count exactly what
//! arrived and what did not (partial success included), keep a batch while a collector restarts, end within
//! a bound, and take nothing from the process environment behind the back of [`crate::config`].
//!
//! Everything runs on a one-thread runtime of this module's own, so that neither a busy server nor the
//! server's shutdown reaches it, and it never runs on a request or engine thread. Invariant: sampled spans
//! that ended = exported + failed + dropped + pending, at any moment.

mod closing;
mod counts;
mod deliver;
mod grpc;
mod http;
mod logs;
mod metrics;
mod processor;
mod signal;
mod spans;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::runtime::{Handle, Runtime};

pub(crate) use closing::Closing;
pub(crate) use counts::{Counts, Totals};
pub(crate) use deliver::Delivery;
pub(crate) use logs::LogQueue;
pub(crate) use metrics::MetricsExporter;
pub(crate) use processor::Processors;
pub(crate) use spans::SpanExporter;

/// The exporters' runtime. Dropping it, from wherever, never waits.
#[derive(Clone, Debug)]
pub(crate) struct ExportRuntime(Arc<Owned>);

#[derive(Debug)]
struct Owned(Option<Runtime>);

impl ExportRuntime {
    pub(crate) fn start() -> std::io::Result<ExportRuntime> {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("limpid-otlp")
            .enable_all()
            .build()
            .map(|runtime| ExportRuntime(Arc::new(Owned(Some(runtime)))))
    }

    pub(crate) fn handle(&self) -> Option<&Handle> {
        self.0.0.as_ref().map(Runtime::handle)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
