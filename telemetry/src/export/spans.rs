//! Spans to OTLP.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::SpanData;

use super::ExportRuntime;
use super::deliver::Delivery;
use super::signal::Traces;

/// Sends the SDK's batches. It answers Ok whatever happens: losses are counted and told by [`Delivery`], once,
/// rather than by the SDK for every batch.
#[derive(Debug)]
pub(crate) struct SpanExporter {
    runtime: ExportRuntime,
    delivery: Delivery,
    resource: ResourceAttributesWithSchema,
}

impl SpanExporter {
    pub(crate) fn new(runtime: ExportRuntime, delivery: Delivery, resource: &Resource) -> SpanExporter {
        SpanExporter { runtime, delivery, resource: resource.into() }
    }
}

impl opentelemetry_sdk::trace::SpanExporter for SpanExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len() as u64;
        let message = ExportTraceServiceRequest {
            resource_spans: group_spans_by_resource_and_scope(batch, &self.resource),
        };
        let delivery = self.delivery.clone();
        let sent = match self.runtime.handle() {
            Some(handle) => handle.spawn(async move { delivery.deliver::<Traces>(message, count).await }).await,
            None => Ok(()),
        };
        if sent.is_err() {
            self.delivery.counts().gave_up(count);
        }
        self.delivery.counts().dequeue(count);
        Ok(())
    }
}
