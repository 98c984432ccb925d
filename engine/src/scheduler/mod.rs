//! Decides what each step computes: which requests run, how many tokens of each, who gives way.
//!
//! The scheduler is synchronous and owns no clock, thread, device or randomness. [`Scheduler::plan`] says
//! what to compute; whoever runs the step gives the plan back with its results to [`Scheduler::apply`].
//! Submissions and aborts come between the two calls of different steps. The rules are vLLM's:
//!
//! - Running requests come first, in the order of admission, then the waiting queue while the token budget
//!   and the sequence slots last. A prompt longer than the budget is computed in chunks.
//! - A running request that finds no free block takes those of the last one running (or, under the priority
//!   policy, of the worst by priority and arrival). The victim loses its blocks and computes everything again
//!   later, from what the prefix cache still has. A step that preempted admits nobody.
//! - Prefix-cache statistics count a request once, when it is admitted for the first time.
//!
//! The choices of one request are requests with one prompt, submitted one after the other. All but the first
//! are admitted behind it and find its full blocks, those of the same step included, so the prompt is computed
//! once; what does not fill a block is computed by each of them.
//!
//! Nothing is deferred for other reasons than capacity here, so that gauge is always 0.
//!
//! Invariants, asserted by [`Scheduler::assert_invariants`]: a live request is waiting or running, not both;
//! only running ones hold blocks, exactly as many as their computed tokens need, and for layers with a window as their
//! next token sees; every request that was submitted gets exactly one output with a finish reason.

mod apply;
mod plan;
mod queue;
mod request;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use limpid_telemetry::observation::PrefixCacheStats;

use crate::cache_layout::blocks_per_sequence;
use crate::config::{ResolvedConfig, SchedulingPolicy};
use crate::kv_cache::{BlockId, BlockTable, KvCache, Prefix};
use crate::request::{EngineRequest, FinishReason, RequestEventKind, RequestId, RequestOutput, StepTimes};

pub use plan::{ModelOutput, Outcome, Scheduled, ScheduledTokens, StepPlan};
use queue::WaitingQueue;
use request::{Request, State};

/// Index of a live request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot(usize);

/// See the module.
#[derive(Debug)]
pub struct Scheduler {
    max_model_len: usize,
    max_num_seqs: usize,
    max_num_batched_tokens: usize,
    policy: SchedulingPolicy,
    cache: KvCache,
    requests: Vec<Option<Request>>,
    vacant: Vec<Slot>,
    by_id: HashMap<RequestId, Slot>,
    waiting: WaitingQueue,
    running: Vec<Slot>,
    /// Last outputs of requests that ended outside a step.
    ended: Vec<RequestOutput>,
    prefix_cache: PrefixCacheStats,
    /// Preemptions outside steps since the last report.
    num_forced_preemptions: usize,
    pause: Pause,
    /// A plan is out and has to come back before anything else.
    planned: bool,
    prefix: Prefix,
    spare: Vec<Scheduled>,
}

/// What is not scheduled for now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pause {
    /// Everything is.
    #[default]
    Nothing,
    /// Waiting requests are not admitted.
    Waiting,
    /// Running requests stand still as well.
    All,
}

/// Why a scheduler is not idle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Requests running.
    pub num_running: usize,
    /// Requests waiting.
    pub num_waiting: usize,
    /// Free blocks in the pool.
    pub num_free_blocks: usize,
    /// Next in the waiting queue, and how many tokens it has to hold.
    pub next: Option<(RequestId, usize)>,
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pending { num_running, num_waiting, num_free_blocks, next } = self;
        write!(f, "{num_running} running, {num_waiting} waiting, {num_free_blocks} blocks free")?;
        match next {
            Some((id, tokens)) => write!(f, "; next is request {} with {tokens} tokens", id.0),
            None => Ok(()),
        }
    }
}

impl Scheduler {
    /// A scheduler without requests.
    ///
    /// # Panics
    /// If the pool cannot hold one sequence of `max_model_len` tokens: such a sequence would preempt itself
    /// for ever. [`crate::config::EngineConfig::resolve`] makes sure of it.
    pub fn new(config: &ResolvedConfig) -> Scheduler {
        let needed = blocks_per_sequence(
            &config.cache_windows,
            config.block_size,
            config.max_model_len,
            config.max_num_batched_tokens,
        );
        assert!(config.num_blocks > needed, "{} blocks, {needed} and a null block needed", config.num_blocks);
        assert!(config.max_num_seqs > 0 && config.max_num_batched_tokens > 0, "nothing could ever run");
        let mut cache = KvCache::new(
            &config.cache_windows,
            config.num_blocks,
            config.block_size,
            config.enable_prefix_caching,
        );
        if let Some(share) = config.kv_cache_metrics_sample {
            cache.sample_residency(share);
        }
        Scheduler {
            max_model_len: config.max_model_len,
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            policy: config.scheduling_policy,
            cache,
            requests: Vec::new(),
            vacant: Vec::new(),
            by_id: HashMap::new(),
            waiting: WaitingQueue::new(config.scheduling_policy),
            running: Vec::with_capacity(config.max_num_seqs),
            ended: Vec::new(),
            prefix_cache: PrefixCacheStats::default(),
            num_forced_preemptions: 0,
            pause: Pause::default(),
            planned: false,
            prefix: Prefix::default(),
            spare: Vec::new(),
        }
    }

    /// Takes a request in. One that could never run gets an output with the reason instead; `false` then.
    ///
    /// # Panics
    /// If a request with this id is live.
    pub fn submit(&mut self, request: EngineRequest, now: Instant) -> bool {
        assert!(!self.planned, "a plan is out");
        assert!(!self.by_id.contains_key(&request.id), "request {} is submitted twice", request.id.0);
        let num_prompt_tokens = request.prompt.len();
        if num_prompt_tokens == 0 {
            self.refuse(request.id, "the prompt is empty".into());
            return false;
        }
        if num_prompt_tokens >= self.max_model_len {
            let message = format!(
                "the prompt has {num_prompt_tokens} tokens, and with one generated token the KV cache is made for \
                 sequences of at most {}",
                self.max_model_len
            );
            self.refuse(request.id, message.into());
            return false;
        }
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.requests.push(None);
            Slot(self.requests.len() - 1)
        });
        let rank = self.waiting.push(slot, request.priority, request.arrival);
        let table = self.cache.table(request.cache_salt.as_deref(), request.siblings);
        let mut request = Request::new(request, rank, table, self.max_model_len, now);
        self.cache.extend_hashes(&mut request.table, &request.tokens);
        self.by_id.insert(request.id, slot);
        self.requests[slot.0] = Some(request);
        true
    }

    /// Answers a request that is not taken in.
    pub fn refuse(&mut self, id: RequestId, error: Arc<str>) {
        self.ended.push(RequestOutput {
            id,
            events: Vec::new(),
            tokens: Vec::new(),
            finish: Some(FinishReason::Error),
            times: StepTimes::default(),
            error: Some(error),
        });
    }

    /// Ends a live request; its last output comes with the next [`Scheduler::apply`]. `false` if the id is
    /// unknown or the request has ended.
    pub fn abort(&mut self, id: RequestId) -> bool {
        assert!(!self.planned, "a plan is out");
        let Some(&slot) = self.by_id.get(&id) else { return false };
        if self.request(slot).state == State::Running {
            self.running.retain(|running| *running != slot);
        }
        let output = self.finish(slot, Vec::new(), FinishReason::Abort, None);
        self.ended.push(output);
        true
    }

    /// Ends all live requests, oldest admission first.
    pub fn end_all(&mut self, reason: FinishReason, error: Option<Arc<str>>) {
        assert!(!self.planned, "a plan is out");
        let mut slots = std::mem::take(&mut self.running);
        slots.extend(self.waiting.iter().map(|(_, slot)| slot));
        for slot in slots {
            let output = self.finish(slot, Vec::new(), reason, error.clone());
            self.ended.push(output);
        }
    }

    /// Decides the next step. `now` is the stamp of everything that happens in it.
    pub fn plan(&mut self, now: Instant) -> StepPlan {
        assert!(!std::mem::replace(&mut self.planned, true), "a plan is out");
        let mut plan = StepPlan { now, scheduled: std::mem::take(&mut self.spare), num_preemptions: 0 };
        if self.pause != Pause::All {
            let budget = self.plan_running(&mut plan, self.max_num_batched_tokens);
            if plan.num_preemptions == 0 && self.pause == Pause::Nothing {
                self.plan_waiting(&mut plan, budget);
            }
        }
        let stands_still = self.by_id.is_empty() || self.pause != Pause::Nothing;
        assert!(
            stands_still || !plan.is_empty() || plan.num_preemptions > 0,
            "stalled: {:?}",
            self.pending()
        );
        plan
    }

    /// Schedules running requests and answers the budget that is left.
    fn plan_running(&mut self, plan: &mut StepPlan, mut budget: usize) -> usize {
        let (mut index, nothing) = (0, Prefix::default());
        'requests: while index < self.running.len() && budget > 0 {
            let slot = self.running[index];
            let request = self.request(slot);
            let first_position = request.num_computed_tokens;
            let num_tokens = (request.num_tokens() - first_position).min(budget);
            let target = first_position + num_tokens;
            while !self.cache.can_allocate(&self.request(slot).table, &nothing, target) {
                let victim_index = self.victim_index();
                let victim = self.running.remove(victim_index);
                if victim_index < index {
                    // Every request before this one has its place in the plan, in the same order.
                    let unscheduled = plan.scheduled.remove(victim_index);
                    assert_eq!(unscheduled.slot, victim, "the plan follows the running list");
                    budget += unscheduled.num_tokens;
                    index -= 1;
                }
                self.preempt(victim, plan.now);
                plan.num_preemptions += 1;
                if victim == slot {
                    break 'requests;
                }
            }
            self.schedule(plan, slot, &nothing, num_tokens);
            budget -= num_tokens;
            index += 1;
        }
        budget
    }

    /// Admits waiting requests.
    fn plan_waiting(&mut self, plan: &mut StepPlan, mut budget: usize) {
        let mut prefix = std::mem::take(&mut self.prefix);
        // Whoever is admitted needs a block of its own, so without a free one there is nothing to look up.
        while budget > 0 && self.running.len() < self.max_num_seqs && self.cache.num_free() > 0 {
            let Some(slot) = self.waiting.first() else { break };
            let request = self.request(slot);
            let num_known = request.num_tokens();
            self.cache.find_prefix(&request.table, num_known, &mut prefix);
            let num_cached = prefix.num_blocks() * self.cache.block_size();
            let num_tokens = (num_known - num_cached).min(budget);
            if !self.cache.can_allocate(&request.table, &prefix, num_cached + num_tokens) {
                break;
            }
            let (rank, num_preemptions) = (request.rank, request.num_preemptions);
            if num_preemptions == 0 && self.cache.enable_prefix_caching() {
                self.prefix_cache.requests += 1;
                self.prefix_cache.queries += num_known as u64;
                self.prefix_cache.hits += num_cached as u64;
            }
            self.waiting.remove(rank);
            self.running.push(slot);
            let request = self.request_mut(slot);
            request.state = State::Running;
            request.num_computed_tokens = num_cached;
            let num_cached_tokens = num_cached.min(request.num_prompt_tokens) as u32;
            request.record(plan.now, RequestEventKind::Scheduled { num_cached_tokens });
            self.schedule(plan, slot, &prefix, num_tokens);
            budget -= num_tokens;
        }
        self.prefix = prefix;
    }

    /// Gives a request its blocks and its place in the plan.
    fn schedule(&mut self, plan: &mut StepPlan, slot: Slot, prefix: &Prefix, num_tokens: usize) {
        let request = self.requests[slot.0].as_mut().expect("a live request");
        let first_position = request.num_computed_tokens;
        self.cache.allocate(&mut request.table, prefix, first_position + num_tokens, plan.now);
        let samples = first_position + num_tokens == request.num_tokens();
        plan.scheduled.push(Scheduled { slot, id: request.id, first_position, num_tokens, samples });
    }

    /// Who gives way: an index into the running list, which is not empty.
    fn victim_index(&self) -> usize {
        match self.policy {
            SchedulingPolicy::Fcfs => self.running.len() - 1,
            SchedulingPolicy::Priority => (0..self.running.len())
                .max_by_key(|index| self.request(self.running[*index]).rank)
                .expect("whoever needs a block is running"),
        }
    }

    /// Takes a request that was running back to the waiting queue.
    fn preempt(&mut self, slot: Slot, now: Instant) {
        let request = self.requests[slot.0].as_mut().expect("a live request");
        // If it was already scheduled in this step, blocks were registered that will now not be computed.
        self.cache.forget(&mut request.table, request.num_computed_tokens);
        self.cache.free(&mut request.table);
        request.num_computed_tokens = 0;
        request.num_preemptions += 1;
        request.state = State::Waiting;
        request.record(now, RequestEventKind::Preempted);
        request.rank = self.waiting.push_preempted(slot, request.rank);
    }

    /// Leaves requests where they are from the next step on, until it is called again.
    pub fn pause(&mut self, pause: Pause) {
        self.pause = pause;
    }

    /// Takes all running requests back to the waiting queue, in their order, so that no block is held.
    pub fn preempt_all(&mut self, now: Instant) {
        assert!(!self.planned, "a plan is out");
        while let Some(slot) = self.running.pop() {
            self.preempt(slot, now);
            self.num_forced_preemptions += 1;
        }
    }

    /// Removes a request from everything but the running list and answers its last output.
    fn finish(
        &mut self,
        slot: Slot,
        tokens: Vec<crate::request::SampledToken>,
        reason: FinishReason,
        error: Option<Arc<str>>,
    ) -> RequestOutput {
        let mut request = self.requests[slot.0].take().expect("a live request");
        if request.state == State::Waiting {
            self.waiting.remove(request.rank);
        }
        self.cache.free(&mut request.table);
        self.by_id.remove(&request.id);
        self.vacant.push(slot);
        request.output(tokens, Some(reason), error)
    }

    /// The tokens and blocks of one share of the plan that is out.
    pub fn scheduled_tokens(&self, scheduled: &Scheduled) -> ScheduledTokens<'_> {
        let request = self.request(scheduled.slot);
        let range = scheduled.first_position..scheduled.first_position + scheduled.num_tokens;
        ScheduledTokens { tokens: &request.tokens[range], table: &request.table }
    }

    /// Whether there is nothing to compute and nothing to report.
    pub fn is_idle(&self) -> bool {
        self.by_id.is_empty() && self.ended.is_empty()
    }

    /// What is left to do; `None` if no request is live.
    pub fn pending(&self) -> Option<Pending> {
        (!self.by_id.is_empty()).then(|| Pending {
            num_running: self.running.len(),
            num_waiting: self.waiting.len(),
            num_free_blocks: self.cache.num_free(),
            next: self.waiting.first().map(|slot| (self.request(slot).id, self.request(slot).num_tokens())),
        })
    }

    /// Ids of the running requests, in the order of admission.
    pub fn running(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.running.iter().map(|slot| self.request(*slot).id)
    }

    /// Ids of the waiting requests, next first.
    pub fn waiting(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.waiting.iter().map(|(_, slot)| self.request(slot).id)
    }

    /// The blocks of a live request.
    pub fn table(&self, id: RequestId) -> Option<&BlockTable> {
        self.by_id.get(&id).map(|slot| &self.request(*slot).table)
    }

    /// Groups of layers that have block tables of their own.
    pub fn num_cache_groups(&self) -> usize {
        self.cache.windows().len()
    }

    /// Forgets every cached prefix. `false`, and nothing happens, while a request holds a block.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.cache.reset_prefix_cache()
    }

    /// The cache, for tests that plant faults in it.
    #[doc(hidden)]
    pub fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }

    /// Asserts the invariants in the module's head. To be called while no plan is out.
    ///
    /// # Panics
    /// If one is broken.
    pub fn assert_invariants(&self) {
        assert!(!self.planned, "a plan is out");
        assert!(self.running.len() <= self.max_num_seqs, "more running than --max-num-seqs");
        let mut seen = vec![false; self.requests.len()];
        let mut see = |slot: Slot, state: State| {
            assert!(!std::mem::replace(&mut seen[slot.0], true), "{slot:?} is in two places");
            let request = self.request(slot);
            assert_eq!(request.state, state, "request {}", request.id.0);
            assert_eq!(self.by_id.get(&request.id), Some(&slot), "request {}", request.id.0);
            assert!(request.num_computed_tokens < request.num_tokens(), "{request:?}");
            assert!(request.num_tokens() < self.max_model_len, "{request:?}");
            let blocks = request.num_computed_tokens.div_ceil(self.cache.block_size());
            assert_eq!(request.table.num_blocks(), blocks, "blocks of request {}", request.id.0);
            for (group, window) in self.cache.windows().iter().enumerate() {
                let seen =
                    window.map_or(0, |window| (request.num_computed_tokens + 1).saturating_sub(window));
                let passed =
                    request.table.blocks(group).iter().take_while(|id| **id == BlockId::NULL).count();
                assert_eq!(passed, (seen / self.cache.block_size()).min(blocks), "passed: {request:?}");
            }
        };
        for (rank, slot) in self.waiting.iter() {
            see(slot, State::Waiting);
            assert_eq!(self.request(slot).rank, rank);
            assert_eq!(self.request(slot).num_computed_tokens, 0, "a waiting request has no KV");
        }
        for slot in &self.running {
            see(*slot, State::Running);
        }
        let live = self.running.len() + self.waiting.len();
        assert_eq!(
            (self.by_id.len(), self.requests.len() - self.vacant.len()),
            (live, live),
            "live requests"
        );
        self.cache.assert_invariants(self.requests.iter().flatten().map(|request| &request.table));
    }

    fn request(&self, slot: Slot) -> &Request {
        self.requests[slot.0].as_ref().expect("a live request")
    }

    fn request_mut(&mut self, slot: Slot) -> &mut Request {
        self.requests[slot.0].as_mut().expect("a live request")
    }
}
