//! What holds for every trace that limpid sends, whatever the request came to.
//!
//! Payloads are compared with the spans that `limpid_telemetry::semconv` declares: names, kinds, attributes that
//! are always there, attributes that may be there, events. All gaps are noted, so that one run shows them all.

use std::collections::HashSet;

use limpid_telemetry::semconv::SpanSpec;
use opentelemetry_proto::tonic::common::v1::KeyValue;

use crate::gaps::Gaps;
use crate::spans::{Span, SpanKind, Trace};

/// Checks one request's trace: one SERVER span that outlasts everything, `models` model spans right below it, every
/// other span inside its parent, nothing undeclared, nothing twice.
pub fn check_request(gaps: &mut Gaps, what: &str, trace: &Trace, models: usize) {
    let servers = trace.of_kind(SpanKind::Server);
    gaps.equal(format_args!("{what}: SERVER spans"), servers.len(), 1);
    gaps.equal(format_args!("{what}: model spans"), trace.models().len(), models);
    for model in trace.models() {
        let parent = servers.first().map(|server| &server.inner.span_id);
        gaps.equal(
            format_args!("{what}: parent of {}", model.name()),
            Some(&model.inner.parent_span_id),
            parent,
        );
    }
    check_tree(gaps, what, trace, servers.first().copied());
    if let Some(server) = servers.first() {
        let last = trace.spans.iter().map(|span| span.inner.end_time_unix_nano).max();
        gaps.equal(format_args!("{what}: end of the trace"), Some(server.inner.end_time_unix_nano), last);
    }
}

/// Checks a trace of any kind, whose root is `root`.
pub fn check_tree(gaps: &mut Gaps, what: &str, trace: &Trace, root: Option<&Span>) {
    let mut ids = HashSet::new();
    for span in &trace.spans {
        let what = format!("{what}: {}", span.name());
        gaps.expect(ids.insert(span.inner.span_id.clone()), format_args!("{what} was sent twice"));
        gaps.expect(
            span.inner.start_time_unix_nano <= span.inner.end_time_unix_nano,
            format_args!("{what} ends before it starts"),
        );
        let dropped = [
            span.inner.dropped_attributes_count,
            span.inner.dropped_events_count,
            span.inner.dropped_links_count,
        ];
        gaps.equal(format_args!("{what}: dropped attributes, events and links"), dropped, [0; 3]);
        check_declared(gaps, &what, span);
        if root.is_some_and(|root| root.inner.span_id == span.inner.span_id) {
            continue;
        }
        match trace.spans.iter().find(|parent| parent.inner.span_id == span.inner.parent_span_id) {
            Some(parent) => {
                gaps.expect(parent.encloses(span), format_args!("{what} is not inside {}", parent.name()))
            }
            None => gaps.note(format_args!("{what} is an orphan")),
        }
    }
}

fn keys(attributes: &[KeyValue]) -> Vec<&str> {
    attributes.iter().map(|attribute| attribute.key.as_str()).collect()
}

fn check_declared(gaps: &mut Gaps, what: &str, span: &Span) {
    let kind = if span.inner.kind() == SpanKind::Server { "SERVER" } else { "INTERNAL" };
    let keys_found = keys(&span.inner.attributes);
    let Some(spec) = SpanSpec::of(span.name(), kind, &keys_found) else {
        gaps.note(format_args!("{what} is not declared"));
        return;
    };
    gaps.equal(format_args!("{what}: kind"), kind, spec.kind);
    for (index, key) in keys_found.iter().enumerate() {
        let declared = spec.attributes.iter().any(|(declared, _)| declared == key);
        gaps.expect(declared, format_args!("{what}: {key} is not declared"));
        gaps.expect(!keys_found[..index].contains(key), format_args!("{what}: {key} is there twice"));
    }
    for (key, when) in spec.attributes {
        let present = !when.starts_with("always") || keys_found.contains(key);
        gaps.expect(present, format_args!("{what}: {key} is missing"));
    }
    for event in &span.inner.events {
        let inside =
            (span.inner.start_time_unix_nano..=span.inner.end_time_unix_nano).contains(&event.time_unix_nano);
        gaps.expect(inside, format_args!("{what}: event {} lies outside", event.name));
        match spec.events.iter().find(|(name, _)| *name == event.name) {
            Some((_, declared)) => {
                let found = keys(&event.attributes);
                gaps.equal(format_args!("{what}: keys of event {}", event.name), &found[..], declared);
            }
            None => gaps.note(format_args!("{what}: event {} is not declared", event.name)),
        }
    }
}
