//! Spans for tests.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

/// What a test says about a span; times in microseconds.
pub(super) struct SpanSpec {
    pub(super) trace: u128,
    pub(super) id: u64,
    pub(super) parent: u64,
    pub(super) name: &'static str,
    pub(super) kind: SpanKind,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) attributes: Vec<KeyValue>,
    pub(super) status: Status,
}

impl Default for SpanSpec {
    fn default() -> SpanSpec {
        SpanSpec {
            trace: 1,
            id: 1,
            parent: 0,
            name: "",
            kind: SpanKind::Internal,
            start: 0,
            end: 0,
            attributes: Vec::new(),
            status: Status::Unset,
        }
    }
}

pub(super) fn span(spec: SpanSpec) -> SpanData {
    let context = SpanContext::new(
        TraceId::from(spec.trace),
        SpanId::from(spec.id),
        TraceFlags::SAMPLED,
        false,
        TraceState::default(),
    );
    let at = |micros| SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
    SpanData {
        span_context: context,
        parent_span_id: SpanId::from(spec.parent),
        parent_span_is_remote: false,
        span_kind: spec.kind,
        name: spec.name.into(),
        start_time: at(spec.start),
        end_time: at(spec.end),
        attributes: spec.attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: spec.status,
        instrumentation_scope: InstrumentationScope::builder("test").build(),
    }
}
