//! The life of one request as arithmetic: from events and stamps to intervals and counts.
//!
//! | interval | from | to |
//! |---|---|---|
//! | queue | QUEUED | first SCHEDULED |
//! | prefill | first SCHEDULED | first NEW_TOKENS |
//! | decode | first NEW_TOKENS | last NEW_TOKENS |
//! | inference | first SCHEDULED | last NEW_TOKENS |
//! | preempted | each PREEMPTED | the SCHEDULED after it |
//! | inter-token | NEW_TOKENS | the request's next NEW_TOKENS |
//! | time to first token | arrival at the frontend | first token at the frontend |
//! | e2e | arrival at the frontend | the frontend's sight of the end |
//!
//! The *first* SCHEDULED counts, as in vLLM's code: so a preemption lengthens prefill, decode and inference
//! and not the queue. Invariant: an interval exists only if both its ends happened, and is never negative.
//! Every request that ends, however, has an e2e.

use std::time::{Duration, Instant};

use crate::exemplar::SpanLink;
use crate::observation::{FinishReason, RequestEvent, RequestEventKind, StepTimes};
use crate::request::{Operation, RequestOutcome, RequestProgress, RequestStarted};

/// A request got tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NewTokens {
    pub(crate) num_new_tokens: u64,
    /// Present the first time.
    pub(crate) first: Option<FirstTokens>,
    /// Present every other time.
    pub(crate) inter_token: Option<Duration>,
    /// Whether the client asked for a stream.
    pub(crate) is_streaming: bool,
    pub(crate) link: Option<SpanLink>,
}

/// A request lost its blocks, once or more often since the previous progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Preempted {
    pub(crate) num_preemptions: u64,
    /// Prompt tokens whose KV was lost, each preemption counted.
    pub(crate) num_prompt_tokens: u64,
    /// Generated tokens whose KV was lost, each preemption counted.
    pub(crate) num_generation_tokens: u64,
}

/// What one step's news came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Progressed {
    pub(crate) preempted: Option<Preempted>,
    pub(crate) tokens: Option<NewTokens>,
}

/// A request got its first tokens: its prompt is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstTokens {
    pub(crate) num_prompt_tokens: u64,
    /// At most `num_prompt_tokens`.
    pub(crate) num_cached_tokens: u64,
    pub(crate) time_to_first_token: Duration,
}

/// A request ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RequestFinished {
    pub(crate) operation: Operation,
    pub(crate) reason: FinishReason,
    pub(crate) error_type: Option<&'static str>,
    /// The whole prompt once the first token came, 0 before.
    pub(crate) num_processed_prompt_tokens: u64,
    /// Prompt tokens whose KV was computed for this request.
    pub(crate) num_prefill_computed_tokens: u64,
    /// Prompt tokens whose KV was cached; `None` if it never was scheduled.
    pub(crate) num_cached_tokens: Option<u64>,
    pub(crate) num_generation_tokens: u64,
    pub(crate) max_tokens: u64,
    pub(crate) n: u64,
    pub(crate) num_preemptions: u64,
    pub(crate) e2e: Duration,
    pub(crate) time_to_first_token: Option<Duration>,
    pub(crate) queue: Option<Duration>,
    pub(crate) prefill: Option<Duration>,
    pub(crate) decode: Option<Duration>,
    pub(crate) inference: Option<Duration>,
    /// Σ of each PREEMPTED to the SCHEDULED after it; `None` without such a pair.
    pub(crate) preempted: Option<Duration>,
    /// Whether the client asked for a stream.
    pub(crate) is_streaming: bool,
    pub(crate) num_prompt_tokens: u64,
    /// From its arrival until it was queued.
    pub(crate) before_queue: Option<Duration>,
    pub(crate) time_per_output_token: Option<Duration>,
    /// `None` if it never was in a batch.
    pub(crate) times: Option<StepTimes>,
    pub(crate) link: Option<SpanLink>,
}

/// Longest list of events kept for the spans of one request. Counts and intervals do not depend on it.
const MAX_EVENTS: usize = 256;

/// What is known of an open request.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    operation: Operation,
    arrival: Instant,
    num_prompt_tokens: u64,
    max_tokens: u64,
    n: u64,
    queued: Option<Instant>,
    first_scheduled: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    time_to_first_token: Option<Duration>,
    num_cached_tokens: Option<u64>,
    num_prefilled_tokens: u64,
    num_generation_tokens: u64,
    num_preemptions: u64,
    preempted_at: Option<Instant>,
    preempted: Option<Duration>,
    is_streaming: bool,
    times: StepTimes,
    keeps_events: bool,
    events: Vec<RequestEvent>,
}

impl Lifecycle {
    /// `keeps_events`: whether somebody will draw the timeline.
    pub(crate) fn new(started: &RequestStarted, keeps_events: bool) -> Lifecycle {
        Lifecycle {
            operation: started.operation,
            arrival: started.arrival,
            num_prompt_tokens: started.num_prompt_tokens,
            max_tokens: started.max_tokens,
            n: started.params.n.unwrap_or(1),
            queued: None,
            first_scheduled: None,
            first_token: None,
            last_token: None,
            time_to_first_token: None,
            num_cached_tokens: None,
            num_prefilled_tokens: 0,
            num_generation_tokens: 0,
            num_preemptions: 0,
            preempted_at: None,
            preempted: None,
            is_streaming: started.params.stream,
            times: StepTimes::default(),
            keeps_events,
            events: Vec::new(),
        }
    }

    /// Takes one step's news in.
    pub(crate) fn progress(&mut self, progress: &RequestProgress<'_>, link: Option<SpanLink>) -> Progressed {
        self.times = progress.times;
        let before = self.num_preemptions;
        for event in progress.events {
            self.event(event);
        }
        let num_preemptions = self.num_preemptions - before;
        let preempted = (num_preemptions > 0).then(|| Preempted {
            num_preemptions,
            num_prompt_tokens: num_preemptions * self.num_prompt_tokens,
            num_generation_tokens: num_preemptions * self.num_generation_tokens,
        });
        Progressed { preempted, tokens: self.new_tokens(progress, link) }
    }

    fn new_tokens(&mut self, progress: &RequestProgress<'_>, link: Option<SpanLink>) -> Option<NewTokens> {
        if progress.num_new_tokens == 0 {
            return None;
        }
        self.num_generation_tokens += progress.num_new_tokens;
        let at = progress.new_tokens_at;
        let previous = self.last_token.replace(at);
        let mut tokens = NewTokens {
            num_new_tokens: progress.num_new_tokens,
            first: None,
            inter_token: None,
            is_streaming: self.is_streaming,
            link,
        };
        match previous {
            Some(previous) => tokens.inter_token = Some(at.saturating_duration_since(previous)),
            None => {
                self.first_token = Some(at);
                let time_to_first_token = progress.now.saturating_duration_since(self.arrival);
                self.time_to_first_token = Some(time_to_first_token);
                tokens.first = Some(FirstTokens {
                    num_prompt_tokens: self.num_prompt_tokens,
                    num_cached_tokens: self.num_cached_tokens.unwrap_or(0),
                    time_to_first_token,
                });
            }
        }
        Some(tokens)
    }

    fn event(&mut self, event: &RequestEvent) {
        match event.kind {
            RequestEventKind::Queued => {
                self.queued.get_or_insert(event.at);
            }
            RequestEventKind::Scheduled { num_cached_tokens } => {
                self.first_scheduled.get_or_insert(event.at);
                if let Some(preempted_at) = self.preempted_at.take() {
                    let gap = event.at.saturating_duration_since(preempted_at);
                    *self.preempted.get_or_insert_default() += gap;
                }
                self.num_cached_tokens
                    .get_or_insert(u64::from(num_cached_tokens).min(self.num_prompt_tokens));
            }
            RequestEventKind::PrefillChunk { num_tokens } => {
                if self.first_token.is_none() {
                    self.num_prefilled_tokens += u64::from(num_tokens);
                }
            }
            RequestEventKind::Preempted => {
                self.num_preemptions += 1;
                self.preempted_at = Some(event.at);
            }
        }
        if self.keeps_events && self.events.len() < MAX_EVENTS {
            self.events.push(*event);
        }
    }

    /// Adds everything up.
    pub(crate) fn finish(&self, outcome: &RequestOutcome, link: Option<SpanLink>) -> RequestFinished {
        let between = |from: Option<Instant>, to: Option<Instant>| Some(to?.saturating_duration_since(from?));
        let decode = between(self.first_token, self.last_token);
        let cached = self.num_cached_tokens.unwrap_or(0);
        let processed = if self.first_token.is_some() { self.num_prompt_tokens } else { 0 };
        RequestFinished {
            operation: self.operation,
            reason: outcome.reason,
            error_type: outcome.error_type,
            num_processed_prompt_tokens: processed,
            num_prefill_computed_tokens: match self.first_token {
                Some(_) => self.num_prompt_tokens - cached,
                None => self.num_prefilled_tokens,
            },
            num_cached_tokens: self.num_cached_tokens,
            num_generation_tokens: self.num_generation_tokens,
            max_tokens: self.max_tokens,
            n: self.n,
            num_preemptions: self.num_preemptions,
            e2e: outcome.now.saturating_duration_since(self.arrival),
            time_to_first_token: self.time_to_first_token,
            queue: between(self.queued, self.first_scheduled),
            prefill: between(self.first_scheduled, self.first_token),
            decode,
            inference: between(self.first_scheduled, self.last_token),
            preempted: self.preempted,
            is_streaming: self.is_streaming,
            num_prompt_tokens: self.num_prompt_tokens,
            before_queue: between(Some(self.arrival), self.queued),
            time_per_output_token: match self.num_generation_tokens {
                0 | 1 => None,
                tokens => decode.map(|decode| decode.div_f64((tokens - 1) as f64)),
            },
            times: self.first_scheduled.map(|_| self.times),
            link,
        }
    }

    /// The engine's events, oldest first; empty unless kept.
    pub(crate) fn events(&self) -> &[RequestEvent] {
        &self.events
    }

    /// First and last NEW_TOKENS.
    pub(crate) fn tokens(&self) -> Option<(Instant, Instant)> {
        self.first_token.zip(self.last_token)
    }
}

#[cfg(test)]
mod tests;
