//! The model span of one generation request, and the queue, prefill, decode and preempted spans below it.
//!
//! The children are drawn when the request ends, from the stamps the engine gave: a phase that a request
//! ended in is drawn up to that end, but has no `gen_ai.latency.*` attribute, because its interval does not
//! exist.

use std::sync::Arc;
use std::time::Instant;

use opentelemetry::trace::{Event, Span as _, SpanBuilder, SpanContext, SpanKind, Status};
use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::Span;

use super::{HttpSpan, RequestLink, Tracing, content, start};
use crate::exemplar::SpanLink;
use crate::lifecycle::{Lifecycle, RequestFinished};
use crate::observation::{FinishReason, RequestEvent, RequestEventKind};
use crate::request::{RequestOutcome, RequestParams, RequestStarted};
use crate::semconv::{self, event, integer, key, span};

/// An open model span that is being recorded.
pub(crate) struct RequestSpan {
    tracing: Tracing,
    span: Span,
    context: SpanContext,
    started: Instant,
    num_prompt_tokens: u64,
    stream: bool,
    vllm_request_n: u64,
    /// The answer so far, if content is captured.
    answer: Option<String>,
}

impl RequestSpan {
    /// `None` if nobody records the request.
    pub(crate) fn start(
        tracing: &Tracing,
        parent: Option<&Arc<HttpSpan>>,
        model_name: &str,
        engine: u32,
        request: &RequestStarted,
    ) -> Option<RequestSpan> {
        let tracer = tracing.tracer.as_ref()?;
        let started = parent.map_or(request.arrival, |parent| parent.started().max(request.arrival));
        let operation = request.operation.as_str();
        // Those a sampler may look at; the rest follows only if the span is recorded.
        let builder = SpanBuilder::from_name(format!("{operation} {model_name}"))
            .with_kind(SpanKind::Internal)
            .with_start_time(tracing.anchor.wall(started))
            .with_attributes([
                KeyValue::new(key::OPERATION_NAME, operation),
                KeyValue::new(key::PROVIDER_NAME, semconv::PROVIDER),
                KeyValue::new(key::REQUEST_MODEL, model_name.to_owned()),
            ]);
        let mut span = start(tracer, builder, parent.map(|parent| parent.context()));
        if !span.is_recording() {
            return None;
        }
        span.set_attribute(KeyValue::new(key::RESPONSE_MODEL, model_name.to_owned()));
        span.set_attribute(integer(key::ENGINE_INDEX, u64::from(engine)));
        span.set_attribute(KeyValue::new(key::REQUEST_ID, request.id.clone()));
        span.set_attribute(KeyValue::new(key::RESPONSE_ID, request.id.clone()));
        span.set_attribute(integer(key::USAGE_INPUT_TOKENS, request.num_prompt_tokens));
        span.set_attributes(parameters(&request.params));
        if tracing.captures_content && !request.params.messages.is_empty() {
            let messages = content::input(&request.params.messages);
            span.set_attribute(KeyValue::new(key::INPUT_MESSAGES, messages));
        }
        let context = span.span_context().clone();
        Some(RequestSpan {
            tracing: tracing.clone(),
            span,
            context,
            started,
            num_prompt_tokens: request.num_prompt_tokens,
            stream: request.params.stream,
            vllm_request_n: request.params.n.unwrap_or(1),
            answer: tracing.captures_content.then(String::new),
        })
    }

    /// For exemplars: this span, if it is sampled.
    pub(crate) fn link(&self) -> Option<SpanLink> {
        let context = &self.context;
        context.is_sampled().then(|| SpanLink { trace_id: context.trace_id(), span_id: context.span_id() })
    }

    /// For the steps it is part of: this span, if it is sampled.
    pub(crate) fn request_link(&self) -> Option<RequestLink> {
        self.context.is_sampled().then(|| RequestLink(self.context.clone()))
    }

    /// Text of the answer, which is kept only if content is captured.
    pub(crate) fn text(&mut self, text: &str) {
        if let Some(answer) = &mut self.answer {
            content::append(answer, text);
        }
    }

    /// Writes what the request came to, draws its phases and ends the span.
    pub(crate) fn end(mut self, outcome: &RequestOutcome, finished: &RequestFinished, lifecycle: &Lifecycle) {
        let last_stamp = lifecycle.events().iter().map(|event| event.at).max();
        let last_token = lifecycle.tokens().map(|(_, last)| last);
        let ended = [Some(outcome.now), last_stamp, last_token, Some(self.started)]
            .into_iter()
            .flatten()
            .max()
            .unwrap_or(outcome.now);
        for attribute in self.results(finished) {
            self.span.set_attribute(attribute);
        }
        if let Some(answer) = self.answer.take() {
            let messages = content::output(&answer, outcome.reason);
            self.span.set_attribute(KeyValue::new(key::OUTPUT_MESSAGES, messages));
        }
        if outcome.reason == FinishReason::Error {
            let error_type = outcome.error_type.unwrap_or(semconv::ERROR_OTHER);
            self.span.set_attribute(KeyValue::new(key::ERROR_TYPE, error_type));
            self.span.set_status(Status::error(""));
        }
        self.draw_phases(finished, lifecycle, ended);
        self.span.end_with_timestamp(self.tracing.anchor.wall(ended));
    }

    fn results(&self, finished: &RequestFinished) -> Vec<KeyValue> {
        let reasons = Array::String(vec![StringValue::from(finished.reason.as_str())]);
        let mut attributes = vec![
            KeyValue::new(key::RESPONSE_FINISH_REASONS, Value::Array(reasons)),
            integer(key::USAGE_OUTPUT_TOKENS, finished.num_generation_tokens),
            KeyValue::new(key::LATENCY_E2E, finished.e2e.as_secs_f64()),
        ];
        if let Some(cached) = finished.num_cached_tokens {
            attributes.push(integer(key::USAGE_CACHE_READ, cached));
            attributes.push(integer(key::NUM_PREEMPTIONS, finished.num_preemptions));
        }
        let measure = self.tracing.measure;
        let times = finished.times;
        for (key, interval) in [
            (key::LATENCY_QUEUE, finished.queue),
            (key::LATENCY_FIRST_TOKEN, finished.time_to_first_token),
            (key::RESPONSE_TIME_TO_FIRST_CHUNK, finished.time_to_first_token.filter(|_| self.stream)),
            (key::LATENCY_PREFILL, finished.prefill),
            (key::LATENCY_DECODE, finished.decode),
            (key::LATENCY_INFERENCE, finished.inference),
            (key::LATENCY_SCHEDULER, times.map(|times| times.scheduler)),
            (key::LATENCY_FORWARD, times.and_then(|times| times.forward).filter(|_| measure.forward)),
            (key::LATENCY_EXECUTE, times.map(|times| times.execute).filter(|_| measure.execute)),
        ] {
            attributes.extend(interval.map(|interval| KeyValue::new(key, interval.as_secs_f64())));
        }
        if self.tracing.vllm_compatible_attributes {
            attributes.push(integer(key::VLLM_PROMPT_TOKENS, self.num_prompt_tokens));
            attributes.push(integer(key::VLLM_COMPLETION_TOKENS, finished.num_generation_tokens));
            attributes.push(KeyValue::new(key::VLLM_SYSTEM, semconv::PROVIDER));
            attributes.push(integer(key::VLLM_REQUEST_N, self.vllm_request_n));
        }
        attributes
    }

    fn draw_phases(&self, finished: &RequestFinished, lifecycle: &Lifecycle, ended: Instant) {
        let events = lifecycle.events();
        let first_of = |wanted: fn(&RequestEventKind) -> bool| {
            events.iter().find(|event| wanted(&event.kind)).map(|event| event.at)
        };
        let queued = first_of(|kind| matches!(kind, RequestEventKind::Queued));
        let scheduled = first_of(|kind| matches!(kind, RequestEventKind::Scheduled { .. }));
        let tokens = lifecycle.tokens();
        if let Some(queued) = queued {
            self.draw(span::QUEUE, queued, scheduled.unwrap_or(ended), ended, Vec::new(), Vec::new());
        }
        if let Some(scheduled) = scheduled {
            let first_token = tokens.map(|(first, _)| first);
            let until = first_token.unwrap_or(ended);
            let timeline = self.timeline(events, |at| at <= until);
            let cached = integer(key::CACHED_TOKENS, finished.num_cached_tokens.unwrap_or(0));
            self.draw(span::PREFILL, scheduled, until, ended, vec![cached], timeline);
        }
        if let Some((first, last)) = tokens {
            let timeline = self.timeline(events, |at| at > first);
            // A request that ended while preempted, or while its tokens were recomputed, has later events.
            let until = events.iter().map(|event| event.at).fold(last, Instant::max);
            self.draw(span::DECODE, first, until, ended, Vec::new(), timeline);
        }
        let mut preempted = None;
        for event in events {
            match event.kind {
                RequestEventKind::Preempted => preempted = preempted.or(Some(event.at)),
                RequestEventKind::Scheduled { .. } => {
                    if let Some(since) = preempted.take() {
                        self.draw(span::PREEMPTED, since, event.at, ended, Vec::new(), Vec::new());
                    }
                }
                RequestEventKind::Queued | RequestEventKind::PrefillChunk { .. } => {}
            }
        }
        if let Some(since) = preempted {
            self.draw(span::PREEMPTED, since, ended, ended, Vec::new(), Vec::new());
        }
    }

    /// Chunks, preemptions and resumptions of the phase that `inside` selects by their stamps.
    fn timeline(&self, events: &[RequestEvent], inside: impl Fn(Instant) -> bool) -> Vec<Event> {
        let mut preempted = false;
        let mut timeline = Vec::new();
        for event in events {
            let (name, attributes) = match event.kind {
                RequestEventKind::PrefillChunk { num_tokens } => {
                    (event::CHUNK, vec![integer(key::CHUNK_TOKENS, u64::from(num_tokens))])
                }
                RequestEventKind::Preempted => {
                    preempted = true;
                    (event::PREEMPTED, Vec::new())
                }
                RequestEventKind::Scheduled { .. } if preempted => {
                    preempted = false;
                    (event::RESUMED, Vec::new())
                }
                RequestEventKind::Scheduled { .. } | RequestEventKind::Queued => continue,
            };
            if inside(event.at) {
                timeline.push(Event::new(name, self.tracing.anchor.wall(event.at), attributes, 0));
            }
        }
        timeline
    }

    fn draw(
        &self,
        name: &'static str,
        from: Instant,
        to: Instant,
        ended: Instant,
        attributes: Vec<KeyValue>,
        events: Vec<Event>,
    ) {
        let Some(tracer) = &self.tracing.tracer else { return };
        let from = from.clamp(self.started, ended);
        let to = to.clamp(from, ended);
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Internal)
            .with_start_time(self.tracing.anchor.wall(from))
            .with_attributes(attributes)
            .with_events(events);
        start(tracer, builder, Some(&self.context)).end_with_timestamp(self.tracing.anchor.wall(to));
    }
}

/// What the client gave, and nothing it did not give.
fn parameters(params: &RequestParams) -> Vec<KeyValue> {
    let mut attributes = Vec::new();
    if params.stream {
        attributes.push(KeyValue::new(key::REQUEST_STREAM, true));
    }
    attributes.extend(params.max_tokens.map(|value| integer(key::REQUEST_MAX_TOKENS, value)));
    attributes.extend(params.n.filter(|&n| n != 1).map(|n| integer(key::REQUEST_CHOICE_COUNT, n)));
    for (key, value) in [(key::REQUEST_TOP_K, params.top_k), (key::REQUEST_SEED, params.seed)] {
        attributes.extend(value.map(|value| KeyValue::new(key, value)));
    }
    for (key, value) in [
        (key::REQUEST_TEMPERATURE, params.temperature),
        (key::REQUEST_TOP_P, params.top_p),
        (key::REQUEST_MIN_P, params.min_p),
        (key::REQUEST_FREQUENCY_PENALTY, params.frequency_penalty),
        (key::REQUEST_PRESENCE_PENALTY, params.presence_penalty),
        (key::REQUEST_REPETITION_PENALTY, params.repetition_penalty),
    ] {
        attributes.extend(value.map(|value| KeyValue::new(key, value)));
    }
    if !params.stop_sequences.is_empty() {
        let sequences = params.stop_sequences.iter().map(|text| StringValue::from(text.clone())).collect();
        attributes.push(KeyValue::new(key::REQUEST_STOP_SEQUENCES, Value::Array(Array::String(sequences))));
    }
    attributes
}
