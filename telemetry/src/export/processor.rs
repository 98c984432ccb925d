//! All readers of spans as one processor: the exporting one behind an exact queue bound, and the caller's.
//!
//! The SDK's batch processor drops spans when its queue is full and keeps the number to itself. The bound is
//! therefore held here, in front of it: a span that gets no place is counted, and one that does always finds
//! room behind, because places are freed only when their batch is done.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanProcessor};

use super::counts::{Counts, Place};

#[derive(Debug)]
pub(crate) struct Processors {
    export: Option<Export>,
    others: Vec<Box<dyn SpanProcessor>>,
}

#[derive(Debug)]
struct Export {
    batch: BatchSpanProcessor,
    bound: u64,
    counts: Arc<Counts>,
}

impl Processors {
    /// `export`: the batch processor, its queue's size and where it is counted.
    pub(crate) fn new(
        export: Option<(BatchSpanProcessor, usize, Arc<Counts>)>,
        others: Vec<Box<dyn SpanProcessor>>,
    ) -> Processors {
        let export = export.map(|(batch, bound, counts)| Export { batch, bound: bound as u64, counts });
        Processors { export, others }
    }

    fn all(&self) -> impl Iterator<Item = &dyn SpanProcessor> {
        let export = self.export.iter().map(|export| &export.batch as &dyn SpanProcessor);
        export.chain(self.others.iter().map(|other| other.as_ref()))
    }
}

impl SpanProcessor for Processors {
    fn on_start(&self, span: &mut Span, context: &Context) {
        for other in &self.others {
            other.on_start(span, context);
        }
    }

    fn on_end(&self, span: SpanData) {
        for other in &self.others {
            other.on_end(span.clone());
        }
        let Some(export) = &self.export else { return };
        if !span.span_context.is_sampled() {
            return;
        }
        match export.counts.enqueue(export.bound) {
            Place::Taken => export.batch.on_end(span),
            Place::NoneForTheFirstTime => tracing::warn!(
                queue = export.bound,
                "OTLP traces: the span queue is full, spans are dropped and counted"
            ),
            Place::None => {}
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.all().map(SpanProcessor::force_flush).fold(Ok(()), Result::and)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.all().map(|processor| processor.shutdown_with_timeout(timeout)).fold(Ok(()), Result::and)
    }

    fn set_resource(&mut self, resource: &Resource) {
        if let Some(export) = &mut self.export {
            export.batch.set_resource(resource);
        }
        for other in &mut self.others {
            other.set_resource(resource);
        }
    }
}
