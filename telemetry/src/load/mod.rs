//! How loaded an engine is, measured from its own steps: saturation, and the largest batch that keeps an SLO.
//!
//! `docs/concepts/saturation.md` has the definitions. Readers ask at any time and wait for nobody: an update
//! holds the lock for some arithmetic.

mod fit;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::observation::StepFinished;
use fit::StepTimeFit;

/// Time over which the past fades to a third.
const MEMORY: Duration = Duration::from_secs(10);

/// The load of one engine.
#[derive(Debug)]
pub(crate) struct EngineLoad {
    max_num_seqs: f64,
    slo_inter_token: Option<Duration>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// As of `at`.
    saturation: f64,
    at: Option<Instant>,
    /// Level of the latest step.
    level: f64,
    /// Whether requests run, so that the time since `at` is a step under way.
    stepping: bool,
    /// Step time over tokens computed, all steps.
    steps: StepTimeFit,
    /// Step time over sequences, steps without prompt tokens.
    decode_steps: StepTimeFit,
}

impl EngineLoad {
    pub(crate) fn new(max_num_seqs: usize, slo_inter_token: Option<Duration>) -> EngineLoad {
        EngineLoad { max_num_seqs: max_num_seqs.max(1) as f64, slo_inter_token, state: Mutex::default() }
    }

    /// Takes a step in.
    pub(crate) fn step_finished(&self, step: &StepFinished) {
        let scheduler = &step.scheduler;
        let tokens = (step.num_prompt_tokens + step.num_generation_tokens) as f64;
        let mut state = self.lock();
        if tokens > 0.0 {
            let end = step.finished + step.apply;
            let seconds = end.saturating_duration_since(step.started).as_secs_f64();
            state.steps.add(tokens, seconds);
            if step.num_prompt_tokens == 0 {
                state.decode_steps.add(step.num_generation_tokens as f64, seconds);
            }
            state.level = if scheduler.num_waiting_capacity > 0 {
                1.0
            } else {
                let sequences = scheduler.num_running.max(step.num_generation_tokens) as f64;
                let slots = (sequences / self.max_num_seqs).min(1.0);
                slots.max(scheduler.kv_cache_usage).max(state.steps.growing_share(tokens))
            };
            state.fade(step.started, 0.0);
            let level = state.level;
            state.fade(end, level);
        }
        state.stepping = scheduler.num_running > 0;
    }

    /// 0: more load is more throughput. 1: more load is only more latency.
    pub(crate) fn saturation(&self, now: Instant) -> f64 {
        let state = self.lock();
        let level = if state.stepping { state.level } else { 0.0 };
        state.faded(now, level).clamp(0.0, 1.0)
    }

    /// The most sequences that can run at once with a time between tokens within the SLO, as far as steps have
    /// told; `None` without an SLO.
    pub(crate) fn largest_batch_within_slo(&self) -> Option<f64> {
        let slo = self.slo_inter_token?.as_secs_f64();
        let largest = self.lock().decode_steps.largest_within(slo).unwrap_or(self.max_num_seqs);
        Some((largest + 1e-6).floor().min(self.max_num_seqs))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The saturation at `until`, with this level since `at`.
    fn faded(&self, until: Instant, level: f64) -> f64 {
        let Some(at) = self.at else { return 0.0 };
        let keep = (-(until.saturating_duration_since(at).as_secs_f64() / MEMORY.as_secs_f64())).exp();
        self.saturation * keep + level * (1.0 - keep)
    }

    fn fade(&mut self, until: Instant, level: f64) {
        self.saturation = self.faded(until, level);
        self.at = self.at.max(Some(until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{SchedulerStats, StepTimes, StepWork};

    struct Engine {
        load: EngineLoad,
        now: Instant,
    }

    impl Engine {
        fn new(slo_milliseconds: Option<u64>) -> Engine {
            let slo = slo_milliseconds.map(Duration::from_millis);
            Engine { load: EngineLoad::new(64, slo), now: Instant::now() }
        }

        /// A decode step of `sequences` that takes this long.
        fn step(&mut self, sequences: u64, milliseconds: f64, waiting: u64) {
            let started = self.now;
            self.now += Duration::from_secs_f64(milliseconds / 1e3);
            self.load.step_finished(&StepFinished {
                started,
                finished: self.now,
                scheduler: SchedulerStats {
                    num_running: sequences,
                    num_waiting_capacity: waiting,
                    ..SchedulerStats::default()
                },
                times: StepTimes::default(),
                num_prompt_tokens: 0,
                num_generation_tokens: sequences,
                work: StepWork::default(),
                apply: Duration::ZERO,
            });
        }

        fn saturation(&self) -> f64 {
            self.load.saturation(self.now)
        }
    }

    #[test]
    fn an_engine_whose_steps_do_not_grow_with_the_batch_is_hardly_saturated() {
        let mut engine = Engine::new(None);
        for index in 0..3000 {
            engine.step(1 + index % 4, 20.0, 0);
        }
        assert!(engine.saturation() < 0.1, "{}", engine.saturation());
    }

    #[test]
    fn an_engine_whose_steps_grow_with_the_batch_gains_only_latency() {
        let mut engine = Engine::new(None);
        for index in 0..3000 {
            let sequences = 1 + index % 4;
            engine.step(sequences, 20.0 * sequences as f64, 0);
        }
        assert!(engine.saturation() > 0.95, "{}", engine.saturation());
    }

    #[test]
    fn waiting_for_capacity_is_saturation_and_idleness_ends_it() {
        let mut engine = Engine::new(None);
        for _ in 0..2000 {
            engine.step(8, 20.0, 5);
        }
        assert!(engine.saturation() > 0.97, "{}", engine.saturation());
        engine.step(0, 0.0, 0);
        engine.now += Duration::from_secs(30);
        assert!(engine.saturation() < 0.06, "{}", engine.saturation());
    }

    #[test]
    fn a_long_step_under_way_counts_as_its_predecessor_did() {
        let mut engine = Engine::new(None);
        for _ in 0..2000 {
            engine.step(64, 20.0, 0);
        }
        engine.now += Duration::from_secs(30);
        assert!(engine.saturation() > 0.97, "{}", engine.saturation());
    }

    #[test]
    fn the_largest_batch_within_the_slo_is_learnt_and_bounded_by_the_slots() {
        let mut engine = Engine::new(Some(50));
        assert_eq!(engine.load.largest_batch_within_slo(), Some(64.0), "nothing speaks against it yet");
        for index in 0..400 {
            let sequences = 1 + index % 8;
            engine.step(sequences, 10.0 + 2.0 * sequences as f64, 0);
        }
        assert_eq!(engine.load.largest_batch_within_slo(), Some(20.0));
        assert_eq!(Engine::new(None).load.largest_batch_within_slo(), None);
    }
}
