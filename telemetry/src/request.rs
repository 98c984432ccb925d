//! One generation request: the guard that ends its span and counts it, whatever happens.

use std::sync::Arc;
use std::time::Instant;

use crate::lifecycle::Lifecycle;
use crate::observation::{FinishReason, RequestEvent, StepTimes};
use crate::pipeline::ModelTelemetry;
use crate::semconv;
use crate::trace::{HttpSpan, Message, RequestLink, RequestSpan};

/// `gen_ai.operation.name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    TextCompletion,
}

impl Operation {
    /// All values.
    pub const ALL: [Operation; 2] = [Operation::Chat, Operation::TextCompletion];

    /// The attribute value.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Chat => "chat",
            Operation::TextCompletion => "text_completion",
        }
    }
}

/// Parameters as the client gave them; what was not given is not recorded.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct RequestParams {
    pub max_tokens: Option<u64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub seed: Option<i64>,
    pub frequency_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub stop_sequences: Vec<String>,
    pub n: Option<u64>,
    pub stream: bool,
    /// The prompt as messages. Fill it only if [`Telemetry::captures_content`](crate::Telemetry) says so.
    pub messages: Vec<Message>,
}

/// A request that is about to be handed to the engine.
#[derive(Clone, Debug)]
pub struct RequestStarted {
    /// When it reached the frontend, before tokenisation: the zero of TTFT and e2e.
    pub arrival: Instant,
    /// Kind of request.
    pub operation: Operation,
    /// `gen_ai.request.id`, also `gen_ai.response.id`: `chatcmpl-…`.
    pub id: String,
    /// Prompt length.
    pub num_prompt_tokens: u64,
    /// The effective `max_tokens`.
    pub max_tokens: u64,
    /// What the client set.
    pub params: RequestParams,
}

/// What one step brought the request. Without new tokens only the events and times are taken in, so the last
/// output of an aborted request is reported the same way.
#[derive(Clone, Copy, Debug)]
pub struct RequestProgress<'a> {
    /// The step's NEW_TOKENS stamp.
    pub new_tokens_at: Instant,
    /// When the frontend began to process the step's outputs.
    pub now: Instant,
    /// Engine events since the previous progress.
    pub events: &'a [RequestEvent],
    /// Tokens generated in this step for this request.
    pub num_new_tokens: u64,
    /// Sums over all steps so far.
    pub times: StepTimes,
}

/// How the request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOutcome {
    /// When the frontend saw it.
    pub now: Instant,
    /// Why.
    pub reason: FinishReason,
    /// Low-cardinality `error.type`, with [`FinishReason::Error`].
    pub error_type: Option<&'static str>,
}

/// An open request. Dropping it without [`RequestGuard::finish`] ends it as aborted; there is no path on
/// which a request disappears.
pub struct RequestGuard {
    model: ModelTelemetry,
    lifecycle: Lifecycle,
    /// `None` if nobody records it, or once it has ended.
    span: Option<RequestSpan>,
    ended: bool,
    /// Dropped after the model span ended, so that the HTTP span ends last.
    parent: Option<Arc<HttpSpan>>,
}

impl RequestGuard {
    pub(crate) fn new(
        model: ModelTelemetry,
        span: Option<RequestSpan>,
        parent: Option<Arc<HttpSpan>>,
        started: &RequestStarted,
    ) -> RequestGuard {
        let lifecycle = Lifecycle::new(started, span.is_some());
        RequestGuard { model, lifecycle, span, ended: false, parent }
    }

    /// Text that was handed to the client. It goes nowhere unless content is captured.
    pub fn text(&mut self, text: &str) {
        if let Some(span) = &mut self.span {
            span.text(text);
        }
    }

    /// What a trace of a step links to; `None` if the request is not sampled.
    pub fn link(&self) -> Option<RequestLink> {
        self.span.as_ref().and_then(RequestSpan::request_link)
    }

    /// Takes one step's news in.
    pub fn progress(&mut self, progress: RequestProgress<'_>) {
        let link = self.span.as_ref().and_then(RequestSpan::link);
        let progressed = self.lifecycle.progress(&progress, link);
        for dialect in self.model.dialects() {
            if let Some(preempted) = &progressed.preempted {
                dialect.preempted(preempted);
            }
            if let Some(tokens) = &progressed.tokens {
                dialect.new_tokens(tokens);
            }
        }
    }

    /// Ends the request.
    pub fn finish(mut self, outcome: RequestOutcome) {
        self.end(&outcome);
    }

    fn end(&mut self, outcome: &RequestOutcome) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let span = self.span.take();
        let finished = self.lifecycle.finish(outcome, span.as_ref().and_then(RequestSpan::link));
        for dialect in self.model.dialects() {
            dialect.request_finished(&finished);
        }
        if let Some(span) = span {
            span.end(outcome, &finished, &self.lifecycle);
        }
        if outcome.reason == FinishReason::Error
            && let Some(parent) = &self.parent
        {
            // A stream's status code was sent long ago and says nothing of it.
            parent.failed(outcome.error_type.unwrap_or(semconv::ERROR_OTHER));
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.end(&RequestOutcome { now: Instant::now(), reason: FinishReason::Abort, error_type: None });
    }
}
