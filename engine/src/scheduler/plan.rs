//! What one step computes, and what came of it.

use std::sync::Arc;
use std::time::Instant;

use super::Slot;
use crate::kv_cache::BlockTable;
use crate::request::{RequestId, SampledToken, StepTimes};

/// One request's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    pub(super) slot: Slot,
    /// Whose.
    pub id: RequestId,
    /// Position of the first token to compute.
    pub first_position: usize,
    /// Tokens to compute; at least 1.
    pub num_tokens: usize,
    /// Whether these are all tokens known so far, so that the last one's logits choose the next.
    pub samples: bool,
}

/// What a step computes. Made by [`super::Scheduler::plan`], given back to [`super::Scheduler::apply`].
#[derive(Debug)]
#[must_use = "a plan has to be applied"]
pub struct StepPlan {
    pub(super) now: Instant,
    pub(super) scheduled: Vec<Scheduled>,
    pub(super) num_preemptions: usize,
}

impl StepPlan {
    /// The requests of the batch, in batch order.
    pub fn scheduled(&self) -> &[Scheduled] {
        &self.scheduled
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.scheduled.is_empty()
    }

    /// Tokens to compute.
    pub fn num_tokens(&self) -> usize {
        self.scheduled.iter().map(|scheduled| scheduled.num_tokens).sum()
    }

    /// Requests that lost their blocks to make this plan.
    pub fn num_preemptions(&self) -> usize {
        self.num_preemptions
    }
}

/// What a device needs to know about one [`Scheduled`].
#[derive(Clone, Copy, Debug)]
pub struct ScheduledTokens<'a> {
    /// The tokens to compute.
    pub tokens: &'a [u32],
    /// The sequence's blocks, enough for these tokens.
    pub table: &'a BlockTable,
}

/// What came of a step.
#[derive(Debug)]
pub struct ModelOutput<'a> {
    /// The tokens, or why there are none.
    pub outcome: Outcome<'a>,
    /// How long the step's parts took.
    pub times: StepTimes,
}

/// See [`ModelOutput`].
#[derive(Debug)]
pub enum Outcome<'a> {
    /// One result per [`Scheduled`] that samples, in plan order: the token, or why this one request cannot
    /// go on. The vector is emptied.
    Sampled(&'a mut Vec<Result<SampledToken, Arc<str>>>),
    /// Nothing was computed; every request of the batch ends with this error.
    Failed(Arc<str>),
}
