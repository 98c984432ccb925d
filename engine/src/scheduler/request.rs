//! A live request as the scheduler keeps it.

use std::sync::Arc;
use std::time::Instant;

use super::queue::Rank;
use crate::kv_cache::BlockTable;
use crate::request::{
    EngineRequest, FinishReason, RequestEvent, RequestEventKind, RequestId, RequestOutput, SampledToken,
    StepTimes,
};

/// Where a live request is. It is in exactly one of the two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Running,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: RequestId,
    pub(super) state: State,
    pub(super) rank: Rank,
    /// Prompt, then output.
    pub(super) tokens: Vec<u32>,
    pub(super) num_prompt_tokens: usize,
    /// Leading tokens whose KV is in the request's blocks.
    pub(super) num_computed_tokens: usize,
    /// Prompt tokens computed so far, by the furthest attempt: what is computed again after a preemption
    /// is no new prompt work.
    num_prompt_tokens_reported: usize,
    pub(super) table: BlockTable,
    pub(super) num_preemptions: usize,
    /// Sequence length at which generation ends: `max_tokens` or the longest sequence.
    max_num_tokens: usize,
    stop_token_ids: Vec<u32>,
    events: Vec<RequestEvent>,
    times: StepTimes,
}

impl Request {
    pub(super) fn new(
        request: EngineRequest,
        rank: Rank,
        table: BlockTable,
        max_model_len: usize,
        now: Instant,
    ) -> Request {
        let num_prompt_tokens = request.prompt.len();
        let mut queued = Request {
            id: request.id,
            state: State::Waiting,
            rank,
            tokens: request.prompt.to_vec(),
            num_prompt_tokens,
            num_computed_tokens: 0,
            num_prompt_tokens_reported: 0,
            table,
            num_preemptions: 0,
            max_num_tokens: num_prompt_tokens.saturating_add(request.params.max_tokens).min(max_model_len),
            stop_token_ids: request.params.stop_token_ids,
            events: Vec::new(),
            times: StepTimes::default(),
        };
        queued.record(now, RequestEventKind::Queued);
        queued
    }

    pub(super) fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn record(&mut self, at: Instant, kind: RequestEventKind) {
        self.events.push(RequestEvent { at, kind });
    }

    /// Takes in that a step computed `num_tokens` more tokens; answers how many prompt tokens among them
    /// had never been computed for this request.
    pub(super) fn computed(&mut self, num_tokens: usize, times: StepTimes, now: Instant) -> usize {
        self.times.add(times);
        let before = self.num_computed_tokens;
        self.num_computed_tokens += num_tokens;
        // The first output ends prefilling for good: what a preemption makes the engine compute again
        // after it is part of decoding.
        if self.num_tokens() == self.num_prompt_tokens {
            self.record(now, RequestEventKind::PrefillChunk { num_tokens: num_tokens as u32 });
        }
        let from = before.max(self.num_prompt_tokens_reported);
        let to = self.num_computed_tokens.min(self.num_prompt_tokens);
        self.num_prompt_tokens_reported = self.num_prompt_tokens_reported.max(to);
        to.saturating_sub(from)
    }

    /// The time of a step that had the request in its batch and came to nothing.
    pub(super) fn spent(&mut self, times: StepTimes) {
        self.times.add(times);
    }

    /// Appends a sampled token; answers why generation ends here, if it does. A stop token wins over a
    /// length limit reached by the same token.
    pub(super) fn append(&mut self, token: u32) -> Option<FinishReason> {
        self.tokens.push(token);
        if self.stop_token_ids.contains(&token) {
            Some(FinishReason::Stop)
        } else if self.num_tokens() >= self.max_num_tokens {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// What the request has to tell since its last output.
    pub(super) fn output(
        &mut self,
        tokens: Vec<SampledToken>,
        finish: Option<FinishReason>,
        error: Option<Arc<str>>,
    ) -> RequestOutput {
        RequestOutput {
            id: self.id,
            events: std::mem::take(&mut self.events),
            tokens,
            finish,
            times: self.times,
            error,
        }
    }
}
