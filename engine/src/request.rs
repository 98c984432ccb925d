//! Requests as the engine sees them, and what comes back: plain data.

use std::sync::Arc;
use std::time::Instant;

pub use limpid_telemetry::observation::{
    FinishReason, RequestEvent, RequestEventKind, StepDetail, StepFinished, StepPart, StepTimes,
};

/// Names a request inside the process. The caller makes them unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One sequence to generate.
#[derive(Clone, Debug)]
pub struct EngineRequest {
    /// Unique.
    pub id: RequestId,
    /// The prompt's token ids; not empty.
    pub prompt: Arc<[u32]>,
    /// How to sample and when to stop.
    pub params: SamplingParams,
    /// Lower runs first under the priority policy; ties by arrival.
    pub priority: i32,
    /// When the request reached the server; orders the queue under the priority policy.
    pub arrival: Instant,
    /// Keeps requests with different salts from sharing cached blocks.
    pub cache_salt: Option<Arc<str>>,
}

/// How tokens are chosen and when generation ends. Already validated by whoever builds it.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the k most probable tokens; `None` keeps all.
    pub top_k: Option<usize>,
    /// Keep the smallest set of tokens whose probability reaches p; in (0, 1].
    pub top_p: f32,
    /// Drop tokens less probable than `min_p` times the most probable one; in [0, 1].
    pub min_p: f32,
    /// Makes sampling repeatable.
    pub seed: Option<u64>,
    /// > 1 makes tokens of prompt and output less likely; as in vLLM.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens already generated.
    pub presence_penalty: f32,
    /// Subtracted per occurrence among generated tokens.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Most tokens to generate; at least 1.
    pub max_tokens: usize,
    /// Fewest tokens before an end token may be sampled.
    pub min_tokens: usize,
    /// Tokens that end generation: the model's end tokens and the request's own.
    pub stop_token_ids: Vec<u32>,
    /// Report the chosen token's log-probability and this many best ones.
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            seed: None,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            max_tokens: 16,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            logprobs: None,
        }
    }
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// Token id.
    pub id: u32,
    /// Present if the request asked for log-probabilities.
    pub logprobs: Option<TokenLogprobs>,
}

/// Log-probabilities at one position, from the logits as the model gave them (before penalties and
/// temperature, as in vLLM's default `raw_logprobs`).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The best tokens, most probable first.
    pub top: Vec<(u32, f32)>,
}

/// What one step brought one request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestOutput {
    /// Whose.
    pub id: RequestId,
    /// Events since the request's previous output, oldest first.
    pub events: Vec<RequestEvent>,
    /// New tokens; empty if the request ended without one.
    pub tokens: Vec<SampledToken>,
    /// Set on the last output. A stop token that ended the request is in `tokens`.
    pub finish: Option<FinishReason>,
    /// Sums over all steps so far that had the request in the batch.
    pub times: StepTimes,
    /// Why the engine gave up, with [`FinishReason::Error`].
    pub error: Option<Arc<str>>,
}

/// A step that was chosen to be looked into.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTrace {
    /// The requests of its batch.
    pub requests: Vec<RequestId>,
    /// What it spent its time on.
    pub detail: StepDetail,
}

/// Everything one step produced. Steps that produced nothing for anyone still report their stats.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// State and times.
    pub step: StepFinished,
    /// Outputs of the requests that have any.
    pub outputs: Vec<RequestOutput>,
    /// Present on sampled steps; see [`crate::engine::EngineHandle::trace_steps`].
    pub trace: Option<Box<StepTrace>>,
}
