//! Traces of what belongs to no single request: a sampled engine step, and the start of the process.
//!
//! Both are roots of their own and drawn afterwards from stamps. A step links to the model spans of the
//! requests in its batch, because it cannot be a child of all of them.

use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry::trace::{Link, Span as _, SpanBuilder, SpanContext, SpanKind};

use super::{Tracing, start};
use crate::observation::{OpDetail, Phase, StepDetail, StepPart};
use crate::semconv::{integer, key, span};

/// The model span of a request, for a step to link to. Only sampled ones are.
#[derive(Clone, Debug)]
pub struct RequestLink(pub(super) SpanContext);

/// Draws a step and what is inside it.
pub(crate) fn step(tracing: &Tracing, engine: u32, detail: &StepDetail, requests: Vec<RequestLink>) {
    let (Some(first), Some(last)) = (
        detail.parts.iter().map(|(_, from, _)| *from).min(),
        detail.parts.iter().map(|(_, _, to)| *to).max(),
    ) else {
        return;
    };
    let attributes = vec![
        integer(key::ENGINE_INDEX, u64::from(engine)),
        integer(key::STEP_REQUESTS, detail.num_requests),
        integer(key::STEP_TOKENS, detail.num_tokens),
        integer(key::STEP_GENERATION_TOKENS, detail.num_generation_tokens),
    ];
    let links = requests.into_iter().map(|RequestLink(context)| Link::new(context, Vec::new(), 0)).collect();
    let Some(root) = Drawn::root(tracing, span::STEP, first, last, attributes, links) else { return };
    for (part, from, to) in &detail.parts {
        let total = match part {
            StepPart::Forward => detail.ops.iter().map(Work::of).reduce(Work::add),
            _ => None,
        };
        let attributes = total.map_or_else(Vec::new, |work| work.attributes(to.duration_since(*from)));
        let drawn = root.child(part.as_str(), *from, *to, attributes);
        if *part == StepPart::Forward {
            for op in &detail.ops {
                let attributes = Work::of(op).attributes(op.duration);
                drawn.child(op.name.clone(), op.started, op.started + op.duration, attributes).end();
            }
        }
        drawn.end();
    }
    root.end();
}

/// Draws the start of the process.
pub(crate) fn startup(tracing: &Tracing, phases: &[Phase], from: Instant, to: Instant) {
    let Some(root) = Drawn::root(tracing, span::STARTUP, from, to, Vec::new(), Vec::new()) else { return };
    for phase in phases {
        root.child(phase.name, phase.from, phase.to, Vec::new()).end();
    }
    root.end();
}

/// A span with its bounds, inside which its children are kept.
struct Drawn<'a> {
    tracing: &'a Tracing,
    span: opentelemetry_sdk::trace::Span,
    from: Instant,
    to: Instant,
}

impl<'a> Drawn<'a> {
    /// `None` if nobody records it.
    fn root(
        tracing: &'a Tracing,
        name: &'static str,
        from: Instant,
        to: Instant,
        attributes: Vec<KeyValue>,
        links: Vec<Link>,
    ) -> Option<Drawn<'a>> {
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Internal)
            .with_start_time(tracing.anchor.wall(from))
            .with_attributes(attributes)
            .with_links(links);
        let span = start(tracing.tracer.as_ref()?, builder, None);
        span.is_recording().then_some(Drawn { tracing, span, from, to })
    }

    fn child(
        &self,
        name: impl Into<std::borrow::Cow<'static, str>>,
        from: Instant,
        to: Instant,
        attributes: Vec<KeyValue>,
    ) -> Drawn<'a> {
        let from = from.clamp(self.from, self.to);
        let to = to.clamp(from, self.to);
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Internal)
            .with_start_time(self.tracing.anchor.wall(from))
            .with_attributes(attributes);
        let tracer = self.tracing.tracer.as_ref().expect("the root was made with it");
        let span = start(tracer, builder, Some(self.span.span_context()));
        Drawn { tracing: self.tracing, span, from, to }
    }

    fn end(mut self) {
        self.span.end_with_timestamp(self.tracing.anchor.wall(self.to));
    }
}

/// What an op, or all of them, had to do.
#[derive(Clone, Copy)]
struct Work {
    flops: u64,
    bytes_read: u64,
    bytes_written: u64,
}

impl Work {
    fn of(op: &OpDetail) -> Work {
        Work { flops: op.flops, bytes_read: op.bytes_read, bytes_written: op.bytes_written }
    }

    fn add(self, other: Work) -> Work {
        Work {
            flops: self.flops + other.flops,
            bytes_read: self.bytes_read + other.bytes_read,
            bytes_written: self.bytes_written + other.bytes_written,
        }
    }

    /// The rates are left out where the clock saw no time pass.
    fn attributes(self, duration: Duration) -> Vec<KeyValue> {
        let mut attributes = vec![
            integer(key::FLOPS, self.flops),
            integer(key::BYTES_READ, self.bytes_read),
            integer(key::BYTES_WRITTEN, self.bytes_written),
        ];
        let seconds = duration.as_secs_f64();
        if seconds > 0.0 {
            let bytes = self.bytes_read + self.bytes_written;
            attributes.push(KeyValue::new(key::FLOPS_PER_SECOND, self.flops as f64 / seconds));
            attributes.push(KeyValue::new(key::BYTES_PER_SECOND, bytes as f64 / seconds));
        }
        attributes
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::trace::SpanData;

    use super::*;
    use crate::ModelIdentity;
    use crate::fixtures::{Script, attribute, http, identity, in_memory};
    use crate::observation::FinishReason;

    fn detail(base: Instant) -> StepDetail {
        let at = |milliseconds| base + Duration::from_millis(milliseconds);
        let op = |name: &str, from, milliseconds| OpDetail {
            name: name.to_owned(),
            started: at(from),
            duration: Duration::from_millis(milliseconds),
            flops: 4_000,
            bytes_read: 300,
            bytes_written: 100,
        };
        StepDetail {
            parts: vec![
                (StepPart::Plan, at(0), at(1)),
                (StepPart::Upload, at(1), at(2)),
                (StepPart::Forward, at(2), at(8)),
                (StepPart::ReadBack, at(8), at(9)),
                (StepPart::Sample, at(9), at(10)),
            ],
            ops: vec![op("embed", 2, 2), op("layer.0.attention", 4, 4)],
            num_requests: 1,
            num_tokens: 5,
            num_generation_tokens: 1,
        }
    }

    fn named<'a>(spans: &'a [SpanData], name: &str) -> &'a SpanData {
        spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    #[test]
    fn a_step_is_a_trace_of_its_own_that_links_to_its_requests_and_holds_its_ops() {
        let (telemetry, exporter) = in_memory(Default::default(), &[]);
        let model = telemetry.model(ModelIdentity { engine: 3, ..identity() });
        let base = Instant::now() - Duration::from_secs(1);
        let mut script = Script::new(&model, Some(http(&telemetry, base, &http::HeaderMap::new())), base);
        let link = script.link().expect("sampled");
        script.three_tokens();
        model.step_traced(&detail(base), vec![link]);
        script.finish(51, FinishReason::Stop, None);
        let spans = exporter.get_finished_spans().unwrap();
        crate::trace::tests::check(&spans);
        let (step, request) = (named(&spans, "engine.step"), named(&spans, "chat tiny"));
        assert_ne!(step.span_context.trace_id(), request.span_context.trace_id());
        assert_eq!(step.links.links.len(), 1);
        assert_eq!(step.links.links[0].span_context, request.span_context);
        for part in ["plan", "upload", "forward", "read_back", "sample"] {
            assert_eq!(named(&spans, part).parent_span_id, step.span_context.span_id(), "{part}");
        }
        let (forward, op) = (named(&spans, "forward"), named(&spans, "layer.0.attention"));
        assert_eq!(op.parent_span_id, forward.span_context.span_id());
        for (span, key, value) in [
            (op, key::FLOPS, "4000"),
            (op, key::FLOPS_PER_SECOND, "1000000"),
            (op, key::BYTES_PER_SECOND, "100000"),
            (forward, key::FLOPS, "8000"),
            (forward, key::BYTES_READ, "600"),
            (step, key::STEP_TOKENS, "5"),
            (step, key::ENGINE_INDEX, "3"),
            (request, key::ENGINE_INDEX, "3"),
        ] {
            assert_eq!(attribute(span, key).as_deref(), Some(value), "{}: {key}", span.name);
        }
    }

    #[test]
    fn a_start_is_one_trace_with_its_phases_inside() {
        let (telemetry, exporter) = in_memory(Default::default(), &[]);
        let from = Instant::now() - Duration::from_secs(1);
        let phase = |name, start| Phase {
            name,
            from: from + Duration::from_millis(start),
            to: from + Duration::from_millis(start + 100),
        };
        telemetry.started_up(&[phase("open_model", 0), phase("warm_up", 300)], from);
        let spans = exporter.get_finished_spans().unwrap();
        crate::trace::tests::check(&spans);
        let names: Vec<&str> = spans.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["open_model", "warm_up", "startup"]);
    }

    #[test]
    fn nobody_who_reads_means_nothing_drawn() {
        let config = crate::fixtures::resolve(Default::default(), &[]).unwrap();
        let telemetry = crate::Telemetry::start(config, Vec::new()).unwrap();
        telemetry.model(identity()).step_traced(&detail(Instant::now()), Vec::new());
        assert_eq!(telemetry.step_trace_ratio(), 0.0);
    }
}
