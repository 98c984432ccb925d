//! A span processor that hands over whole request trees.
//!
//! It sees the same spans as the OTLP exporter. Spans wait, grouped by trace, until the SERVER span above them
//! ends; then the tree goes to a channel. Traces without a SERVER root, the engine's own step traces among
//! them, are dropped when their root ends.
//!
//! Invariant: memory is bounded by [`MAX_TRACES`] · [`MAX_SPANS`] waiting spans and [`MAX_READY`] trees, and
//! a span's end never waits for a reader. What is above the bounds is dropped, oldest trace first.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::{SpanId, SpanKind, TraceId};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use tokio::sync::mpsc;

/// Most traces that wait for their root.
const MAX_TRACES: usize = 256;

/// Most spans kept of one trace.
const MAX_SPANS: usize = 256;

/// Most trees that wait for the reader.
const MAX_READY: usize = 64;

/// One request's spans in the order of their ends; the SERVER span is the last.
pub(super) type Trace = Vec<SpanData>;

/// The processor; see the module.
#[derive(Debug)]
pub(super) struct TraceCollector {
    waiting: Mutex<Waiting>,
    ready: mpsc::Sender<Trace>,
}

/// A collector, and where its trees come out.
pub(super) fn collector() -> (TraceCollector, mpsc::Receiver<Trace>) {
    let (ready, trees) = mpsc::channel(MAX_READY);
    (TraceCollector { waiting: Mutex::default(), ready }, trees)
}

#[derive(Debug, Default)]
struct Waiting {
    traces: HashMap<TraceId, WaitingTrace>,
    opened: u64,
}

#[derive(Debug)]
struct WaitingTrace {
    /// Orders traces by their first span's end.
    number: u64,
    spans: Vec<SpanData>,
}

impl Waiting {
    /// Takes a span in and returns the tree that it completes.
    fn ended(&mut self, span: SpanData) -> Option<Trace> {
        let trace_id = span.span_context.trace_id();
        let is_root = span.parent_span_id == SpanId::INVALID || span.parent_span_is_remote;
        if !is_root {
            self.keep(trace_id, span);
            return None;
        }
        let below = self.traces.remove(&trace_id);
        if span.span_kind != SpanKind::Server {
            return None;
        }
        let mut tree = Vec::new();
        if let Some(mut below) = below {
            tree = take_descendants(&mut below.spans, span.span_context.span_id());
            // A caller may run several requests in one trace; the others' spans stay.
            if !below.spans.is_empty() {
                self.traces.insert(trace_id, below);
            }
        }
        tree.push(span);
        Some(tree)
    }

    fn keep(&mut self, trace_id: TraceId, span: SpanData) {
        if !self.traces.contains_key(&trace_id) && self.traces.len() >= MAX_TRACES {
            let oldest = self.traces.iter().min_by_key(|(_, trace)| trace.number).map(|(id, _)| *id);
            oldest.map(|id| self.traces.remove(&id));
        }
        let number = self.opened;
        self.opened += 1;
        let trace = self.traces.entry(trace_id).or_insert_with(|| WaitingTrace { number, spans: Vec::new() });
        if trace.spans.len() < MAX_SPANS {
            trace.spans.push(span);
        }
    }
}

fn take_descendants(spans: &mut Vec<SpanData>, root: SpanId) -> Vec<SpanData> {
    let mut ids = HashSet::from([root]);
    // Children usually end before their parents, so a pass from the last to the first finds nearly all.
    loop {
        let before = ids.len();
        for span in spans.iter().rev() {
            if ids.contains(&span.parent_span_id) {
                ids.insert(span.span_context.span_id());
            }
        }
        if ids.len() == before {
            break;
        }
    }
    spans.extract_if(.., |span| ids.contains(&span.span_context.span_id())).collect()
}

impl SpanProcessor for TraceCollector {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        let tree = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).ended(span);
        if let Some(tree) = tree {
            // A reader that is slow or gone loses trees; requests do not wait for it.
            let _ = self.ready.try_send(tree);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::fixtures::{SpanSpec, span};

    /// A span of trace `trace` with the kind that its name says.
    fn spec(trace: u128, id: u64, parent: u64, name: &'static str) -> SpanData {
        let kind = if name == "server" { SpanKind::Server } else { SpanKind::Internal };
        span(SpanSpec { trace, id, parent, name, kind, ..SpanSpec::default() })
    }

    fn names(tree: &Trace) -> Vec<&str> {
        tree.iter().map(|span| span.name.as_ref()).collect()
    }

    #[test]
    fn a_tree_is_ready_when_its_server_span_ends() {
        let mut waiting = Waiting::default();
        assert!(waiting.ended(spec(1, 3, 2, "queue")).is_none());
        assert!(waiting.ended(spec(1, 2, 1, "chat")).is_none());
        let tree = waiting.ended(spec(1, 1, 0, "server")).unwrap();
        assert_eq!(names(&tree), ["queue", "chat", "server"]);
        assert!(waiting.traces.is_empty());
    }

    #[test]
    fn a_server_span_with_a_remote_parent_is_a_root_and_takes_only_its_own() {
        let mut waiting = Waiting::default();
        for span in [spec(1, 3, 2, "a"), spec(1, 13, 12, "b"), spec(1, 12, 11, "c"), spec(1, 2, 1, "d")] {
            assert!(waiting.ended(span).is_none());
        }
        let root = SpanData { parent_span_is_remote: true, ..spec(1, 1, 99, "server") };
        assert_eq!(names(&waiting.ended(root).unwrap()), ["a", "d", "server"]);
        let root = SpanData { parent_span_is_remote: true, ..spec(1, 11, 99, "server") };
        assert_eq!(names(&waiting.ended(root).unwrap()), ["b", "c", "server"]);
        assert!(waiting.traces.is_empty());
    }

    #[test]
    fn a_lonely_server_span_is_a_tree() {
        let mut waiting = Waiting::default();
        assert_eq!(names(&waiting.ended(spec(1, 1, 0, "server")).unwrap()), ["server"]);
    }

    #[test]
    fn a_trace_with_another_root_is_dropped() {
        let mut waiting = Waiting::default();
        assert!(waiting.ended(spec(1, 2, 1, "forward")).is_none());
        assert!(waiting.ended(spec(1, 1, 0, "engine.step")).is_none());
        assert!(waiting.traces.is_empty());
    }

    #[test]
    fn orphans_go_oldest_first_and_long_traces_are_cut() {
        let mut waiting = Waiting::default();
        for trace in 1..=MAX_TRACES as u128 + 10 {
            waiting.ended(spec(trace, 2, 1, "orphan"));
        }
        assert_eq!(waiting.traces.len(), MAX_TRACES);
        assert!(!waiting.traces.contains_key(&TraceId::from(10)));
        assert!(waiting.traces.contains_key(&TraceId::from(11)));
        for id in 0..MAX_SPANS as u64 + 10 {
            waiting.ended(spec(11, id + 3, 1, "many"));
        }
        assert_eq!(waiting.traces[&TraceId::from(11)].spans.len(), MAX_SPANS);
    }

    #[test]
    fn a_reader_that_does_not_read_blocks_nobody() {
        let (collector, mut trees) = collector();
        for trace in 1..=MAX_READY as u128 + 10 {
            collector.on_end(spec(trace, 1, 0, "server"));
        }
        let mut count = 0;
        while trees.try_recv().is_ok() {
            count += 1;
        }
        assert_eq!(count, MAX_READY);
    }
}
