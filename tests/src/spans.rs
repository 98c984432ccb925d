//! Spans as they arrived, flattened, with readers for attributes and the tree.

use std::collections::HashMap;
use std::time::Duration;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1 as proto;

use crate::otlp_receiver::Received;

pub use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
pub use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

/// One span with its resource.
#[derive(Clone, Debug)]
pub struct Span {
    /// Attributes of the resource it came from.
    pub resource: Vec<KeyValue>,
    /// Name of the instrumentation scope.
    pub scope: String,
    /// The span as sent.
    pub inner: proto::Span,
}

/// Every span that arrived.
pub fn all(received: &Received) -> Vec<Span> {
    let mut spans = Vec::new();
    for resource in received.traces.iter().flat_map(|export| &export.message.resource_spans) {
        let attributes =
            resource.resource.as_ref().map_or_else(Vec::new, |resource| resource.attributes.clone());
        for scope in &resource.scope_spans {
            for inner in &scope.spans {
                spans.push(Span {
                    resource: attributes.clone(),
                    scope: scope.scope.as_ref().map_or_else(String::new, |scope| scope.name.clone()),
                    inner: inner.clone(),
                });
            }
        }
    }
    spans
}

/// Reads one value out of a list of attributes.
pub fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?.value.as_ref()
}

/// A string value.
pub fn string<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    match attribute(attributes, key)? {
        Value::StringValue(value) => Some(value),
        _ => None,
    }
}

impl Span {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// An attribute's value.
    pub fn attribute(&self, key: &str) -> Option<&Value> {
        attribute(&self.inner.attributes, key)
    }

    /// A string attribute; `None` if absent or of another type.
    pub fn string(&self, key: &str) -> Option<&str> {
        string(&self.inner.attributes, key)
    }

    /// An integer attribute; `None` if absent or of another type.
    pub fn int(&self, key: &str) -> Option<i64> {
        match self.attribute(key)? {
            Value::IntValue(value) => Some(*value),
            _ => None,
        }
    }

    /// A double attribute; `None` if absent or of another type.
    pub fn double(&self, key: &str) -> Option<f64> {
        match self.attribute(key)? {
            Value::DoubleValue(value) => Some(*value),
            _ => None,
        }
    }

    /// An attribute that is an array of strings; `None` if absent or of another type.
    pub fn strings(&self, key: &str) -> Option<Vec<String>> {
        let Value::ArrayValue(array) = self.attribute(key)? else { return None };
        array
            .values
            .iter()
            .map(|value| match value.value.as_ref()? {
                Value::StringValue(value) => Some(value.clone()),
                _ => None,
            })
            .collect()
    }

    /// Start to end.
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.inner.end_time_unix_nano - self.inner.start_time_unix_nano)
    }

    /// Whether `other` lies inside this span.
    pub fn encloses(&self, other: &Span) -> bool {
        self.inner.start_time_unix_nano <= other.inner.start_time_unix_nano
            && other.inner.end_time_unix_nano <= self.inner.end_time_unix_nano
    }

    /// Its status code.
    pub fn status(&self) -> StatusCode {
        self.inner.status.as_ref().map_or(StatusCode::Unset, |status| status.code())
    }

    /// One line for people: ids, name, kind, duration.
    pub fn line(&self) -> String {
        format!(
            "{} {} parent={} {:?} {} {:?}",
            hex(&self.inner.trace_id),
            hex(&self.inner.span_id),
            hex(&self.inner.parent_span_id),
            self.inner.kind(),
            self.inner.name,
            self.duration()
        )
    }
}

/// The spans of one trace as a tree.
#[derive(Clone, Debug)]
pub struct Trace {
    /// All of them.
    pub spans: Vec<Span>,
}

/// Groups spans by trace id.
pub fn traces(spans: &[Span]) -> Vec<Trace> {
    let mut order: Vec<Vec<u8>> = Vec::new();
    let mut by_id: HashMap<Vec<u8>, Vec<Span>> = HashMap::new();
    for span in spans {
        let id = span.inner.trace_id.clone();
        by_id
            .entry(id.clone())
            .or_insert_with(|| {
                order.push(id);
                Vec::new()
            })
            .push(span.clone());
    }
    order.into_iter().map(|id| Trace { spans: by_id.remove(&id).unwrap() }).collect()
}

/// The traces of requests, whole or in part: not those of engine steps and of the start.
pub fn request_traces(spans: &[Span]) -> Vec<Trace> {
    let is_of_request = |span: &Span| {
        span.inner.kind() == SpanKind::Server
            || span.attribute("gen_ai.operation.name").is_some()
            || ["queue", "prefill", "decode", "preempted"].contains(&span.name())
    };
    traces(spans).into_iter().filter(|trace| trace.spans.iter().any(is_of_request)).collect()
}

impl Trace {
    /// Its id in hex.
    pub fn id(&self) -> String {
        hex(&self.spans[0].inner.trace_id)
    }

    /// Spans of a kind.
    pub fn of_kind(&self, kind: SpanKind) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.inner.kind() == kind).collect()
    }

    /// Spans of a name.
    pub fn named(&self, name: &str) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.name() == name).collect()
    }

    /// The SERVER span.
    ///
    /// # Panics
    /// If there is not exactly one.
    #[track_caller]
    pub fn server(&self) -> &Span {
        let servers = self.of_kind(SpanKind::Server);
        assert_eq!(servers.len(), 1, "one SERVER span in:\n{}", self.text());
        servers[0]
    }

    /// The span that carries the `gen_ai` attributes, if there is one.
    pub fn model(&self) -> Option<&Span> {
        self.models().first().copied()
    }

    /// The spans that carry the `gen_ai` attributes: one per choice.
    pub fn models(&self) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.attribute("gen_ai.operation.name").is_some()).collect()
    }

    /// Children of a span, by start time.
    pub fn children(&self, parent: &Span) -> Vec<&Span> {
        let mut children: Vec<&Span> =
            self.spans.iter().filter(|span| span.inner.parent_span_id == parent.inner.span_id).collect();
        children.sort_by_key(|span| (span.inner.start_time_unix_nano, span.inner.end_time_unix_nano));
        children
    }

    /// The tree as text, for failures.
    pub fn text(&self) -> String {
        self.spans.iter().map(Span::line).collect::<Vec<_>>().join("\n")
    }
}

/// Bytes in lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
