//! One world: what is drawn from the seed, and the loop that drives the scheduler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use limpid_engine::cache_layout::blocks_per_sequence;
use limpid_engine::config::{ResolvedConfig, SchedulingPolicy};
use limpid_engine::device::Batch;
use limpid_engine::engine::fill_batch;
use limpid_engine::request::{EngineRequest, RequestId, SampledToken, SamplingParams, Siblings, StepTimes};
use limpid_engine::scheduler::{ModelOutput, Outcome, Scheduler, StepPlan};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::device::{FakeDevice, next_token};
use super::ledger::{Doom, Ledger};
use super::rest::Rest;
use super::{Fault, Options, Summary};

/// The windows of a model's groups of layers: a third of the models have some, a few of those no other layers.
fn windows(rng: &mut ChaCha8Rng, max_model_len: usize) -> Vec<Option<usize>> {
    let window = Some(rng.random_range(2..=max_model_len));
    match rng.random_range(0..9) {
        0 => vec![window],
        1 => vec![None, window],
        2 => vec![None, window, window],
        _ => vec![None],
    }
}

/// See the module.
pub(super) struct World {
    pub(super) rng: ChaCha8Rng,
    options: Options,
    pub(super) config: ResolvedConfig,
    vocabulary: u32,
    pub(super) scheduler: Scheduler,
    pub(super) device: FakeDevice,
    pub(super) ledger: Ledger,
    pub(super) now: Instant,
    pub(super) rest: Rest,
    next_id: u64,
    /// Requests still to come.
    arrivals: usize,
    /// Chance of an arrival before a step.
    arrival_rate: f64,
    /// Beginnings that prompts share.
    prefixes: Vec<Vec<u32>>,
    /// Chance of a failed step, and of a useless row.
    failure_rate: f64,
    fault: Option<Fault>,
    batch: Batch,
}

impl World {
    pub(super) fn new(seed: u64, options: Options) -> World {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // A fifth of the worlds are crowded: many requests of all priorities fight for few small blocks.
        let crowded = rng.random_bool(0.2);
        let block_size = [1, 2, 3, 4, 8][rng.random_range(0..if crowded { 2 } else { 5 })];
        let max_model_len = rng.random_range(4..=48_usize);
        let max_num_seqs = if crowded { 8 } else { rng.random_range(1..=8) };
        let max_num_batched_tokens = rng.random_range(if crowded { 12..=48 } else { 1..=32 });
        let cache_windows = windows(&mut ChaCha8Rng::seed_from_u64(!seed), max_model_len);
        let least =
            1 + blocks_per_sequence(&cache_windows, block_size, max_model_len, max_num_batched_tokens);
        let config = ResolvedConfig {
            cost: Default::default(),
            max_model_len,
            max_num_seqs,
            max_num_batched_tokens,
            block_size,
            num_blocks: least + rng.random_range(0..=if crowded { least / 4 } else { 2 * least }),
            enable_prefix_caching: rng.random_bool(0.85),
            scheduling_policy: match !crowded && rng.random_bool(0.5) {
                true => SchedulingPolicy::Fcfs,
                false => SchedulingPolicy::Priority,
            },
            kv_cache_metrics_sample: rng.random_bool(0.5).then(|| rng.random_range(0.1..=1.0)),
            cache_windows,
        };
        let vocabulary = rng.random_range(2..=12);
        let prefixes = (0..rng.random_range(1..=3))
            .map(|_| (0..max_model_len).map(|_| rng.random_range(0..vocabulary)).collect())
            .collect();
        World {
            scheduler: Scheduler::new(&config),
            device: FakeDevice::new(config.num_blocks, block_size, config.cache_windows.len()),
            ledger: Ledger::new(config.clone(), vocabulary),
            options,
            vocabulary,
            now: Instant::now(),
            rest: Rest::Awake,
            next_id: 0,
            arrivals: rng.random_range(3..=40),
            arrival_rate: if crowded { 0.8 } else { rng.random_range(0.05..0.9) },
            prefixes,
            failure_rate: if rng.random_bool(0.3) { 0.03 } else { 0.0 },
            fault: options.fault,
            batch: Batch::default(),
            config,
            rng,
        }
    }

    /// Runs until arrivals have stopped and everything has drained.
    pub(super) fn run(mut self) -> Summary {
        while self.arrivals > 0 {
            self.happen();
            self.rest();
            self.step();
        }
        self.wake_up();
        // The best request progresses in every step that preempts nobody, and in one that does, whoever it
        // makes room for does; each can be thrown back only by better ones.
        let mut steps_left = 100 + 20 * self.ledger.live.len() * self.config.max_model_len;
        while !self.scheduler.is_idle() {
            let pending = self.scheduler.pending();
            assert!(steps_left > 0, "not drained: {}", pending.expect("not idle"));
            steps_left -= 1;
            self.step();
        }
        self.ledger.check_drained();
        assert!(self.scheduler.reset_prefix_cache(), "nothing is held when everything has ended");
        self.ledger.summary
    }

    /// What comes from outside between two steps.
    fn happen(&mut self) {
        while self.arrivals > 0 && self.rng.random_bool(self.arrival_rate) {
            self.arrivals -= 1;
            self.arrive();
        }
        if self.rng.random_bool(0.04) && self.next_id > 0 {
            let id = RequestId(self.rng.random_range(0..self.next_id + 1));
            let live = self.ledger.live.get_mut(&id).filter(|live| live.doom == Doom::Generates);
            let expected = live.is_some();
            if let Some(live) = live {
                live.doom = Doom::Aborted;
            }
            assert_eq!(self.scheduler.abort(id), expected, "abort of request {}", id.0);
        }
        if self.rng.random_bool(0.02) {
            let idle = self.scheduler.running().next().is_none();
            assert_eq!(self.scheduler.reset_prefix_cache(), idle);
        }
        if self.rng.random_bool(0.005) {
            self.preempt_all();
        }
        self.plant();
    }

    fn arrive(&mut self) {
        let most = self.config.max_model_len - 1;
        let length = match self.rng.random_range(0..20) {
            0 => self.rng.random_range(most + 1..=most + 3),
            1..=9 => self.rng.random_range(1..=most),
            _ => self.rng.random_range(1..=most.div_ceil(2)),
        };
        let mut prompt = match self.rng.random_range(0..10) {
            0..6 => self.prefixes[self.rng.random_range(0..self.prefixes.len())].clone(),
            // A conversation goes on.
            6..8 if !self.ledger.ended.is_empty() => {
                let index = self.rng.random_range(0..self.ledger.ended.len());
                self.ledger.ended[index].1.clone()
            }
            _ => Vec::new(),
        };
        prompt.truncate(if self.rng.random_bool(0.5) { length } else { self.rng.random_range(0..=length) });
        while prompt.len() < length {
            prompt.push(self.rng.random_range(0..self.vocabulary));
        }
        let salts = [None, None, None, Some("a"), Some("b")];
        self.tick(3);
        // An eighth of the prompts has several choices.
        let choices = if self.rng.random_bool(0.125) { self.rng.random_range(2..=4) } else { 1 };
        let request = EngineRequest {
            id: RequestId(self.next_id),
            prompt: prompt.into(),
            params: SamplingParams {
                max_tokens: self.rng.random_range(1..=self.config.max_model_len),
                stop_token_ids: if self.rng.random_bool(0.5) { vec![0] } else { Vec::new() },
                ..SamplingParams::default()
            },
            priority: self.rng.random_range(-1..=1),
            arrival: self.now,
            cache_salt: salts[self.rng.random_range(0..salts.len())].map(Arc::from),
            siblings: (choices > 1).then_some(Siblings(self.next_id)),
        };
        for _ in 0..choices {
            let request = EngineRequest { id: RequestId(self.next_id), ..request.clone() };
            self.next_id += 1;
            let accepted = self.scheduler.submit(request.clone(), self.now);
            self.ledger.submitted(request, accepted);
        }
    }

    /// Plants the fault, once there is something to plant it in.
    fn plant(&mut self) {
        let held: Vec<_> =
            self.scheduler.running().flat_map(|id| self.scheduler.table(id).unwrap().held()).collect();
        if held.is_empty() || !self.rng.random_bool(0.2) {
            return;
        }
        let block = held[self.rng.random_range(0..held.len())];
        let pool = self.scheduler.cache_mut().pool_mut();
        match self.fault {
            Some(Fault::BlockFreedTwice) => pool.release(&[block]),
            Some(Fault::WrongBlockFound) => {
                let known = held.iter().find_map(|id| Some((*id, pool.hash(*id)?)));
                let Some((known, hash)) = known.filter(|_| pool.hash(block).is_none()) else { return };
                pool.forget(known);
                pool.register(block, hash);
            }
            Some(Fault::StoreLost) | None => return,
        }
        self.fault = None;
    }

    pub(super) fn tick(&mut self, most: u64) {
        self.now += Duration::from_micros(self.rng.random_range(0..=most));
    }

    fn step(&mut self) {
        self.tick(5);
        let before: Vec<_> = self.scheduler.running().collect();
        let plan = self.scheduler.plan(self.now);
        self.ledger.planned(&self.scheduler, &plan, &before, self.now);
        let shares: Vec<_> =
            plan.scheduled().iter().map(|share| (share.id, share.first_position, share.num_tokens)).collect();
        let fails = !plan.is_empty() && self.rng.random_bool(self.failure_rate);
        let mut results;
        let outcome = if fails {
            self.fail(&plan);
            Outcome::Failed("the step failed".into())
        } else {
            results = self.compute(&plan);
            Outcome::Sampled(&mut results)
        };
        let slow = if self.rng.random_bool(0.05) { 100_000 } else { 100 };
        self.tick(slow);
        let times = StepTimes {
            scheduler: Duration::from_nanos(self.rng.random_range(0..100)),
            forward: self.rng.random_bool(0.8).then(|| Duration::from_nanos(self.rng.random_range(0..100))),
            execute: Duration::from_nanos(self.rng.random_range(0..100)),
        };
        let output = self.scheduler.apply(plan, ModelOutput { outcome, times }, self.now);
        self.ledger.applied(&shares, !fails, &output);
        if !self.options.without_books {
            self.scheduler.assert_invariants();
            self.ledger.check_gauges(&self.scheduler, &output);
            self.ledger.check_contents(&mut self.scheduler, &self.device);
        }
    }

    /// Runs the batch and checks what every scheduled sequence sees.
    fn compute(&mut self, plan: &StepPlan) -> Vec<Result<SampledToken, Arc<str>>> {
        self.store(plan, true);
        let mut results = Vec::new();
        for (index, share) in plan.scheduled().iter().enumerate() {
            let visible = share.first_position + share.num_tokens;
            for (group, window) in self.config.cache_windows.iter().enumerate() {
                let first = window.map_or(0, |window| (share.first_position + 1).saturating_sub(window));
                for position in first..visible {
                    let found = self.device.read(&self.batch, index, group, position);
                    let truth = self.ledger.history(share.id, position);
                    assert_eq!(found, Some(truth), "KV of request {} at position {position}", share.id.0);
                }
            }
            if share.samples {
                let history = self.ledger.history(share.id, visible - 1);
                let token = SampledToken { id: next_token(history, self.vocabulary), logprobs: None };
                results.push(if self.rng.random_bool(self.failure_rate / 2.0) {
                    self.doom(share.id);
                    Err("not a number".into())
                } else {
                    Ok(token)
                });
            }
        }
        results
    }

    /// The step fails somewhere in the middle.
    fn fail(&mut self, plan: &StepPlan) {
        self.store(plan, false);
        for share in plan.scheduled() {
            self.doom(share.id);
        }
    }

    fn store(&mut self, plan: &StepPlan, all: bool) {
        fill_batch(&self.scheduler, plan, self.config.block_size, &mut self.batch);
        let rows = self.batch.tokens.len();
        assert_eq!(rows, plan.num_tokens());
        let roots: Vec<_> = plan.scheduled().iter().map(|share| self.ledger.live[&share.id].root).collect();
        let stored = if all { rows } else { self.rng.random_range(0..rows) };
        let loses = self.fault == Some(Fault::StoreLost) && rows > 0 && self.rng.random_bool(0.1);
        let lost = loses.then(|| self.rng.random_range(0..rows));
        if loses {
            self.fault = None;
        }
        self.device.store(&self.batch, &roots, stored, lost);
    }

    fn doom(&mut self, id: RequestId) {
        self.ledger.live.get_mut(&id).expect("scheduled requests live").doom = Doom::Failed;
    }
}
