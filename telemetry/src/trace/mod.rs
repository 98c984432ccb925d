//! Spans, made with the plain OpenTelemetry API and explicit timestamps.
//!
//! The engine stamps events and knows no spans; the frontend draws queue, prefill and decode afterwards, each
//! back-dated from the stamps. Invariants: every request has exactly one model span, ended exactly once; a
//! child lies inside its parent; the HTTP span ends last. No prompt or answer text goes into any of
//! them but by the opt-in of [`content`].

mod content;
mod http_span;
mod propagation;
mod request_span;
pub(crate) mod step_span;
#[cfg(test)]
pub(crate) mod tests;

use opentelemetry::trace::{SpanBuilder, SpanContext, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};

use crate::clock::Anchor;
use crate::config::Measure;
pub use content::Message;
pub use http_span::{HttpRequestStarted, HttpSpan};
pub(crate) use request_span::RequestSpan;
pub use step_span::RequestLink;

/// What spans are made with.
#[derive(Clone)]
pub(crate) struct Tracing {
    /// `None` if nobody reads spans.
    pub(crate) tracer: Option<SdkTracer>,
    pub(crate) anchor: Anchor,
    pub(crate) measure: Measure,
    pub(crate) vllm_compatible_attributes: bool,
    /// Whether prompts and answers go onto model spans.
    pub(crate) captures_content: bool,
}

fn child_of(parent: Option<&SpanContext>) -> Context {
    match parent {
        Some(parent) if parent.is_valid() => Context::new().with_remote_span_context(parent.clone()),
        _ => Context::new(),
    }
}

fn start(tracer: &SdkTracer, builder: SpanBuilder, parent: Option<&SpanContext>) -> Span {
    tracer.build_with_context(builder, &child_of(parent))
}

/// Longest client text in an attribute, in bytes.
const MAX_CLIENT_TEXT: usize = 512;

fn client_text(key: &'static str, text: &str) -> KeyValue {
    KeyValue::new(key, text[..text.floor_char_boundary(MAX_CLIENT_TEXT)].to_owned())
}
