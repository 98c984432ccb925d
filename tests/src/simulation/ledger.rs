//! What a world keeps about its requests, to compare the scheduler's answers with.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use limpid_engine::config::{ResolvedConfig, SchedulingPolicy};
use limpid_engine::kv_cache::{BlockHash, BlockId};
use limpid_engine::request::{
    EngineRequest, FinishReason, RequestEvent, RequestEventKind, RequestId, RequestOutput, StepOutput,
    StepTimes,
};
use limpid_engine::scheduler::{Pause, Scheduler, StepPlan};

use super::Summary;
use super::device::{FakeDevice, History, extend, next_token, root};

/// How a request has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doom {
    /// By what it generates.
    Generates,
    /// It was aborted.
    Aborted,
    /// It was refused, its row was useless, or its step failed.
    Failed,
}

/// A request that has not ended.
pub(super) struct Live {
    request: EngineRequest,
    pub(super) doom: Doom,
    pub(super) tokens: Vec<u32>,
    /// The true history at each position.
    histories: Vec<History>,
    pub(super) root: History,
    last_block: BlockHash,
    events: Vec<RequestEvent>,
    times: StepTimes,
    /// Prompt positions that were computed at least once.
    computed: HashSet<usize>,
    /// Has been admitted at least once.
    admitted: bool,
}

/// See the module.
pub(super) struct Ledger {
    config: ResolvedConfig,
    vocabulary: u32,
    pub(super) live: BTreeMap<RequestId, Live>,
    /// Full texts of requests that ended.
    pub(super) ended: Vec<(RequestId, Vec<u32>)>,
    /// The history at the end of every full block that a request ever had.
    contents: HashMap<BlockHash, History>,
    /// Stamps that events may have.
    plan_stamps: HashSet<Instant>,
    apply_stamps: HashSet<Instant>,
    num_prompt_tokens: u64,
    computed_prompt_tokens: u64,
    queries: u64,
    reported_queries: u64,
    reported_hits: u64,
    cached_tokens: u64,
    preemption_events: u64,
    /// What is not to be scheduled for now.
    pub(super) pause: Pause,
    pub(super) summary: Summary,
}

impl Ledger {
    pub(super) fn new(config: ResolvedConfig, vocabulary: u32) -> Ledger {
        Ledger {
            config,
            vocabulary,
            live: BTreeMap::new(),
            ended: Vec::new(),
            contents: HashMap::new(),
            plan_stamps: HashSet::new(),
            apply_stamps: HashSet::new(),
            num_prompt_tokens: 0,
            computed_prompt_tokens: 0,
            queries: 0,
            reported_queries: 0,
            reported_hits: 0,
            cached_tokens: 0,
            preemption_events: 0,
            pause: Pause::Nothing,
            summary: Summary { worlds: 1, ..Summary::default() },
        }
    }

    /// A request was handed over and taken in, or refused.
    pub(super) fn submitted(&mut self, request: EngineRequest, accepted: bool) {
        let fits = request.prompt.len() < self.config.max_model_len;
        assert_eq!(accepted, fits, "a prompt of {} tokens", request.prompt.len());
        let root = root(request.cache_salt.as_deref());
        let mut live = Live {
            doom: if accepted { Doom::Generates } else { Doom::Failed },
            tokens: Vec::new(),
            histories: Vec::new(),
            root,
            last_block: match request.siblings.filter(|_| !self.config.enable_prefix_caching) {
                Some(siblings) => BlockHash::root_of_siblings(siblings),
                None => BlockHash::root(request.cache_salt.as_deref()),
            },
            events: Vec::new(),
            times: StepTimes::default(),
            computed: HashSet::new(),
            admitted: false,
            request: request.clone(),
        };
        for token in request.prompt.iter() {
            live.push(*token, &self.config, &mut self.contents);
        }
        assert!(self.live.insert(request.id, live).is_none(), "ids are unique");
    }

    /// Compares a plan with the state it was made from: `before` are the requests that were running.
    pub(super) fn planned(
        &mut self,
        scheduler: &Scheduler,
        plan: &StepPlan,
        before: &[RequestId],
        now: Instant,
    ) {
        self.plan_stamps.insert(now);
        let config = &self.config;
        assert!(plan.num_tokens() <= config.max_num_batched_tokens, "the token budget is kept");
        let is_still = plan.is_empty() && plan.num_preemptions() == 0;
        assert!(self.pause != Pause::All || is_still, "everything stands still");
        let mut ids = HashSet::new();
        for share in plan.scheduled() {
            assert!(ids.insert(share.id), "request {} is scheduled twice", share.id.0);
            assert!(share.num_tokens > 0);
            let live = &self.live[&share.id];
            let end = share.first_position + share.num_tokens;
            assert!(end <= live.tokens.len(), "only known tokens are computed");
            assert_eq!(share.samples, end == live.tokens.len());
            let tokens = scheduler.scheduled_tokens(share);
            assert_eq!(tokens.tokens, &live.tokens[share.first_position..end]);
            let blocks = end.div_ceil(config.block_size);
            assert_eq!(tokens.table.num_blocks(), blocks, "blocks for exactly these tokens");
            for (group, window) in config.cache_windows.iter().enumerate() {
                let seen = window.map_or(0, |window| (share.first_position + 1).saturating_sub(window));
                let passed = tokens.table.blocks(group).iter().filter(|id| **id == BlockId::NULL).count();
                assert_eq!(
                    passed,
                    seen / config.block_size,
                    "blocks of group {group} that the window passed"
                );
            }
        }
        let running: Vec<_> = scheduler.running().collect();
        assert!(running.len() <= config.max_num_seqs);
        let admitted: Vec<_> = running.iter().filter(|id| !before.contains(id)).copied().collect();
        assert!(plan.num_preemptions() == 0 || admitted.is_empty(), "a step that preempted admits nobody");
        assert!(self.pause == Pause::Nothing || admitted.is_empty(), "nobody is admitted meanwhile");
        for id in &admitted {
            let first = !std::mem::replace(
                &mut self.live.get_mut(id).expect("admitted requests live").admitted,
                true,
            );
            let live = &self.live[id];
            if first && config.enable_prefix_caching {
                self.queries += live.request.prompt.len() as u64;
            }
            if first && config.scheduling_policy == SchedulingPolicy::Fcfs {
                let overtaken = scheduler.waiting().find(|other| other < id && !self.live[other].admitted);
                assert_eq!(overtaken, None, "request {} was admitted first", id.0);
            }
        }
        if config.scheduling_policy == SchedulingPolicy::Fcfs {
            let new = |id: &RequestId| !self.live[id].admitted;
            assert!(
                scheduler.waiting().is_sorted_by_key(|id| new(&id)),
                "preempted requests are served first"
            );
        }
        let left = config.max_num_batched_tokens - plan.num_tokens();
        if let Some((pending, (_, tokens))) =
            scheduler.pending().and_then(|pending| Some((pending.clone(), pending.next?)))
            && left > 0
            && self.pause == Pause::Nothing
            && plan.num_preemptions() == 0
            && running.len() < config.max_num_seqs
        {
            let enough = config.cache_windows.len() * tokens.div_ceil(config.block_size);
            assert!(pending.num_free_blocks < enough, "nobody waits for what is there: {pending}");
        }
    }

    /// All running requests were preempted outside a step.
    pub(super) fn preempted_all(&mut self, now: Instant) {
        self.plan_stamps.insert(now);
    }

    /// All requests are aborted.
    pub(super) fn aborted_all(&mut self) {
        for live in self.live.values_mut().filter(|live| live.doom == Doom::Generates) {
            live.doom = Doom::Aborted;
        }
    }

    /// The truth at a position of a live request.
    pub(super) fn history(&self, id: RequestId, position: usize) -> History {
        self.live[&id].histories[position]
    }

    /// Compares a step's report with what the plan asked for; `computed` says whether the step came about.
    pub(super) fn applied(
        &mut self,
        shares: &[(RequestId, usize, usize)],
        computed: bool,
        output: &StepOutput,
    ) {
        self.apply_stamps.insert(output.step.finished);
        assert!(output.step.started <= output.step.finished);
        for (id, first, count) in shares {
            let live = self.live.get_mut(id).expect("scheduled requests live");
            live.times.add(output.step.times);
            if computed {
                let prompt_part = *first..(first + count).min(live.request.prompt.len());
                for position in prompt_part {
                    self.computed_prompt_tokens += u64::from(live.computed.insert(position));
                }
            }
        }
        let mut generated = 0;
        let mut seen = HashSet::new();
        for output in &output.outputs {
            assert!(seen.insert(output.id), "request {} has two outputs in one report", output.id.0);
            generated += output.tokens.len() as u64;
            self.output(output);
        }
        assert_eq!(output.step.num_generation_tokens, generated);
        self.num_prompt_tokens += output.step.num_prompt_tokens;
        let stats = output.step.scheduler;
        self.reported_queries += stats.prefix_cache.queries;
        self.reported_hits += stats.prefix_cache.hits;
        self.summary.steps += 1;
        for seen in &output.evicted {
            assert!(seen.idle <= seen.lifetime && seen.reuse_gaps.len() < 4, "{seen:?}");
            let gaps: std::time::Duration = seen.reuse_gaps.iter().sum();
            assert!(gaps + seen.idle <= seen.lifetime, "{seen:?}");
        }
        self.summary.preemptions += stats.num_preemptions;
        self.summary.tokens += generated;
        self.summary.hits = self.reported_hits;
        // What a preempted request computes again is not counted again.
        assert!(self.num_prompt_tokens <= self.computed_prompt_tokens);
        assert!(self.summary.preemptions > 0 || self.num_prompt_tokens == self.computed_prompt_tokens);
    }

    fn output(&mut self, output: &RequestOutput) {
        let id = output.id;
        let live = self
            .live
            .get_mut(&id)
            .unwrap_or_else(|| panic!("output for request {}, which is not live", id.0));
        assert!(!output.tokens.is_empty() || output.finish.is_some(), "an output has something to say");
        assert_eq!(output.error.is_some(), output.finish == Some(FinishReason::Error));
        assert_eq!(output.times, live.times, "times of request {}", id.0);
        live.events.extend(&output.events);
        for token in &output.tokens {
            let expected =
                next_token(*live.histories.last().expect("prompts are not empty"), self.vocabulary);
            assert_eq!(token.id, expected, "request {} says what it says alone", id.0);
            live.push(token.id, &self.config, &mut self.contents);
        }
        let prompt = live.request.prompt.len();
        let stops = live.tokens.len() > prompt
            && live.request.params.stop_token_ids.contains(live.tokens.last().expect("not empty"));
        let full = live.tokens.len() - prompt == live.request.params.max_tokens
            || live.tokens.len() == self.config.max_model_len;
        let expected = match live.doom {
            Doom::Aborted => Some(FinishReason::Abort),
            Doom::Failed => Some(FinishReason::Error),
            Doom::Generates if stops => Some(FinishReason::Stop),
            Doom::Generates if full => Some(FinishReason::Length),
            Doom::Generates => None,
        };
        assert_eq!(output.finish, expected, "end of request {}", id.0);
        if output.finish.is_some() {
            let live = self.live.remove(&id).expect("looked up above");
            self.check_events(id, &live);
            self.summary.requests += 1;
            self.ended.push((id, live.tokens));
        }
    }

    /// Queued, then any number of admissions that a preemption separates; chunks while admitted and before
    /// the first token.
    fn check_events(&mut self, id: RequestId, live: &Live) {
        use RequestEventKind::{Preempted, PrefillChunk, Queued, Scheduled};
        let events = &live.events;
        assert!(events.is_sorted_by_key(|event| event.at), "events of request {}: {events:?}", id.0);
        let (mut previous, mut chunks, mut preempted, mut cached) = (None, 0, false, None);
        for event in events {
            let stamps = match event.kind {
                Queued => None,
                Scheduled { .. } | Preempted => Some(&self.plan_stamps),
                PrefillChunk { .. } => Some(&self.apply_stamps),
            };
            assert!(stamps.is_none_or(|stamps| stamps.contains(&event.at)), "stamp of {event:?}");
            let follows = match event.kind {
                Queued => previous.is_none(),
                Scheduled { num_cached_tokens } => {
                    let cached_now = num_cached_tokens as usize;
                    assert!(cached_now <= live.request.prompt.len());
                    if cached.is_none() {
                        cached = Some(cached_now);
                        let limit = (live.request.prompt.len() - 1) / self.config.block_size;
                        assert!(cached_now.is_multiple_of(self.config.block_size));
                        assert!(cached_now <= limit * self.config.block_size, "one token is left to compute");
                    }
                    matches!(previous, Some(Queued | Preempted))
                }
                PrefillChunk { num_tokens } => {
                    chunks += num_tokens as usize;
                    matches!(previous, Some(Scheduled { .. } | PrefillChunk { .. }))
                }
                Preempted => {
                    preempted = true;
                    self.preemption_events += 1;
                    matches!(previous, Some(Scheduled { .. } | PrefillChunk { .. }))
                }
            };
            assert!(follows, "{event:?} after {previous:?}");
            previous = Some(event.kind);
        }
        assert_eq!(
            events.is_empty(),
            live.request.prompt.len() >= self.config.max_model_len,
            "only refusals"
        );
        assert_eq!(cached.is_some(), live.admitted, "admissions of request {}", id.0);
        let prompt = live.request.prompt.len();
        if live.tokens.len() > prompt && !preempted {
            assert_eq!(chunks + cached.unwrap_or_default(), prompt, "chunks of request {}", id.0);
        }
        // Without prefix caching siblings share, and nobody counts it.
        if self.config.enable_prefix_caching {
            self.cached_tokens += cached.unwrap_or_default() as u64;
        }
    }

    /// Compares the gauges with the queues, and the queues with what is live.
    pub(super) fn check_gauges(&self, scheduler: &Scheduler, output: &StepOutput) {
        let stats = output.step.scheduler;
        let (running, waiting) = (scheduler.running().count(), scheduler.waiting().count());
        assert_eq!((stats.num_running, stats.num_waiting_capacity), (running as u64, waiting as u64));
        assert_eq!(running + waiting, self.live.len(), "every live request is in one queue");
        let held: HashSet<_> =
            scheduler.running().flat_map(|id| scheduler.table(id).expect("it lives").held()).collect();
        let windowed: HashSet<_> = (0..self.config.cache_windows.len())
            .filter(|group| self.config.cache_windows[*group].is_some())
            .flat_map(|group| {
                scheduler.running().flat_map(move |id| scheduler.table(id).expect("it lives").blocks(group))
            })
            .filter(|id| **id != BlockId::NULL)
            .collect();
        for (found, held) in
            [(stats.kv_cache_usage, held.len()), (stats.windowed_kv_cache_usage, windowed.len())]
        {
            let usage = held as f64 / (self.config.num_blocks - 1) as f64;
            assert!((found - usage).abs() < 1e-9, "usage {found} is {usage}");
        }
    }

    /// Asserts that whatever could be found in the prefix cache is stored: also in blocks that nobody holds.
    pub(super) fn check_contents(&self, scheduler: &mut Scheduler, device: &FakeDevice) {
        let pool = scheduler.cache_mut().pool_mut();
        for number in 1..pool.num_blocks() {
            if let Some(hash) = pool.hash(BlockId(number as u32)) {
                assert_eq!(
                    device.end_of_block(number),
                    Some(self.contents[&hash]),
                    "contents of block {number}"
                );
            }
        }
    }

    /// Everything has ended: what was counted on the way has to add up.
    pub(super) fn check_drained(&self) {
        assert!(self.live.is_empty(), "{} requests never ended", self.live.len());
        assert_eq!(self.reported_queries, self.queries, "each first admission counts once");
        assert_eq!(
            self.preemption_events, self.summary.preemptions,
            "each preemption is told to its request"
        );
        assert_eq!(self.reported_hits, self.cached_tokens, "hits are those of first admissions");
    }
}

impl Live {
    fn push(&mut self, token: u32, config: &ResolvedConfig, contents: &mut HashMap<BlockHash, History>) {
        let block_size = config.block_size;
        let history = extend(*self.histories.last().unwrap_or(&self.root), token);
        self.histories.push(history);
        self.tokens.push(token);
        if self.tokens.len().is_multiple_of(block_size) {
            self.last_block = self.last_block.child(&self.tokens[self.tokens.len() - block_size..]);
            for group in 0..config.cache_windows.len() {
                contents.insert(self.last_block.in_group(group), history);
            }
        }
    }
}
