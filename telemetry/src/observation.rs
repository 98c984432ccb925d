//! What an engine reports: plain data, no behaviour beyond arithmetic, no OpenTelemetry.
//!
//! Instants are stamps of one process's monotonic clock. The moments are vLLM V1's: `Queued`,
//! `Scheduled` and `Preempted` are stamped by the scheduler, new tokens by the end of the step that
//! made them. What is derived from them (intervals, counters, spans) is the frontend's business.

use std::time::{Duration, Instant};

mod detail;

pub use detail::{OpDetail, Phase, StepDetail, StepPart};

/// Why a request ended. The closed value set of vLLM's `finished_reason` label, in vLLM's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// End-of-sequence token, stop token or stop string.
    Stop,
    /// `max_tokens` or the model's context length.
    Length,
    /// The client went away, or the engine ended the request (shutdown, sleep).
    Abort,
    /// The engine could not go on with the request.
    Error,
    /// A repetition detector fired.
    Repetition,
}

impl FinishReason {
    /// All values, in vLLM's order; every one has a series from the start.
    pub const ALL: [FinishReason; 5] = [
        FinishReason::Stop,
        FinishReason::Length,
        FinishReason::Abort,
        FinishReason::Error,
        FinishReason::Repetition,
    ];

    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Abort => "abort",
            FinishReason::Error => "error",
            FinishReason::Repetition => "repetition",
        }
    }
}

/// Something that happened to one request inside the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestEvent {
    /// Monotonic stamp. Events of one scheduling step share one stamp.
    pub at: Instant,
    /// What happened.
    pub kind: RequestEventKind,
}

/// The kinds of [`RequestEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEventKind {
    /// Put into the scheduler's waiting queue.
    Queued,
    /// Moved from waiting to running; again after every preemption.
    Scheduled {
        /// Prompt tokens whose KV came from the prefix cache at this admission.
        num_cached_tokens: u32,
    },
    /// One chunk of the prompt was computed (the stamp is the end of its step).
    PrefillChunk {
        /// Tokens computed in this chunk.
        num_tokens: u32,
    },
    /// Lost its blocks; goes back to the front of the waiting queue.
    Preempted,
}

/// Time spent on behalf of a request (or a step). For a request each field is the sum over the steps
/// that had it in the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Scheduler time: `plan`.
    pub scheduler: Duration,
    /// Forward pass on the device, by the device's own timestamps; `None` where it cannot measure.
    pub forward: Option<Duration>,
    /// From handing the batch to the device until its tokens are on the host: upload, forward,
    /// synchronisation, read-back, sampling.
    pub execute: Duration,
}

impl StepTimes {
    /// Adds the times of one more step. A step without forward time leaves the sum as it is.
    pub fn add(&mut self, step: StepTimes) {
        self.scheduler += step.scheduler;
        self.execute += step.execute;
        if let Some(forward) = step.forward {
            self.forward = Some(self.forward.unwrap_or_default() + forward);
        }
    }
}

/// Prefix-cache activity since the previous step's report. The unit is tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCacheStats {
    /// Requests admitted for the first time.
    pub requests: u64,
    /// Tokens looked up (the whole prompt of each of those requests).
    pub queries: u64,
    /// Tokens found.
    pub hits: u64,
}

/// The scheduler's state at the end of a step, after finished requests were removed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SchedulerStats {
    /// Requests in the running list, scheduled this step or not.
    pub num_running: u64,
    /// Requests waiting for capacity (budget, sequence slots, blocks).
    pub num_waiting_capacity: u64,
    /// Requests waiting for something else than capacity.
    pub num_waiting_deferred: u64,
    /// Share of KV blocks held by live requests, 0 to 1; cached but unreferenced blocks are free.
    pub kv_cache_usage: f64,
    /// Share of KV blocks held for layers that attend to a window; part of `kv_cache_usage`.
    pub windowed_kv_cache_usage: f64,
    /// Prefix-cache activity of this step.
    pub prefix_cache: PrefixCacheStats,
    /// Preemptions in this step.
    pub num_preemptions: u64,
    /// KV blocks that nobody holds and whose contents a prefix could still hit.
    pub num_evictable_blocks: u64,
    /// Such blocks that were overwritten in this step.
    pub num_evicted_blocks: u64,
    /// Requests that ended in this step because their logits were not numbers.
    pub num_corrupted_requests: u64,
}

/// What the ops of one step state about themselves, and how long its sequences are. All 0 for a report
/// without a step behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepWork {
    /// Floating-point operations; a multiply-add is two.
    pub flops: u64,
    /// Bytes read: weights once a step, activations and cache.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Σ over the batch's sequences of their length in tokens.
    pub num_context_tokens: u64,
}

/// One engine step ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepFinished {
    /// When `plan` began.
    pub started: Instant,
    /// When the step's results were applied: the NEW_TOKENS stamp.
    pub finished: Instant,
    /// Scheduler state at `finished`.
    pub scheduler: SchedulerStats,
    /// How long the step's parts took.
    pub times: StepTimes,
    /// Prompt tokens computed in this step (cached ones excluded).
    pub num_prompt_tokens: u64,
    /// Tokens generated in this step.
    pub num_generation_tokens: u64,
    /// What the step had to compute.
    pub work: StepWork,
    /// From `finished` until the results were taken in.
    pub apply: Duration,
}

/// A KV block that was chosen for residency sampling lost its contents: it is handed out again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockResidency {
    /// From its allocation to now.
    pub lifetime: Duration,
    /// From its last prefix-cache hit, or its allocation if it never had one, to now.
    pub idle: Duration,
    /// Times between its latest prefix-cache hits, oldest first; at most 3.
    pub reuse_gaps: Vec<Duration>,
}

/// The limit for whose sake a request was not admitted. The closed value set of the `reason` label of vLLM's
/// `admission_rejections`, in vLLM's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdmissionLimit {
    /// `--max-num-queued-reqs`.
    MaxNumQueuedReqs,
    /// `--max-num-queued-tokens`.
    MaxNumQueuedTokens,
}

impl AdmissionLimit {
    /// All values; every one has a series from the start.
    pub const ALL: [AdmissionLimit; 2] =
        [AdmissionLimit::MaxNumQueuedReqs, AdmissionLimit::MaxNumQueuedTokens];

    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            AdmissionLimit::MaxNumQueuedReqs => "max_num_queued_reqs",
            AdmissionLimit::MaxNumQueuedTokens => "max_num_queued_tokens",
        }
    }
}

/// What an engine that can sleep is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SleepOperation {
    /// Go to sleep, at whatever level.
    Sleep,
    /// Wake up.
    Wake,
}

impl SleepOperation {
    /// All values; every one has a series from the start.
    pub const ALL: [SleepOperation; 2] = [SleepOperation::Sleep, SleepOperation::Wake];

    /// The value of vLLM's `operation` label.
    pub fn as_str(self) -> &'static str {
        match self {
            SleepOperation::Sleep => "sleep",
            SleepOperation::Wake => "wake",
        }
    }
}

/// What of an engine is resident. An engine starts awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SleepState {
    /// Everything is there and requests run. vLLM's `awake`.
    Awake,
    /// Everything is there and nothing runs; vLLM has no series for it, all of its three are 0.
    Paused,
    /// The weights are in the host's memory only, the KV cache is gone. vLLM's `weights_offloaded`.
    WeightsOffloaded,
    /// Nothing is in any memory. vLLM's `discard_all`.
    DiscardAll,
}
