//! The log line: what an engine did since the previous one, in vLLM's words; nothing while it is idle.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::observation::{PrefixCacheStats, SchedulerStats, StepFinished};

/// Requests over which the prefix cache's hit rate is taken.
const HIT_RATE_REQUESTS: u64 = 1_000;

/// Collects what the line says.
#[derive(Debug)]
pub(crate) struct LogStats {
    engine: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    since: Instant,
    latest: SchedulerStats,
    num_prompt_tokens: u64,
    num_generation_tokens: u64,
    num_preemptions: u64,
    /// Steps that admitted requests, the oldest first, with their sum.
    admissions: VecDeque<PrefixCacheStats>,
    window: PrefixCacheStats,
}

impl LogStats {
    pub(crate) fn new(engine: u32) -> LogStats {
        LogStats {
            engine,
            state: Mutex::new(State {
                since: Instant::now(),
                latest: SchedulerStats::default(),
                num_prompt_tokens: 0,
                num_generation_tokens: 0,
                num_preemptions: 0,
                admissions: VecDeque::new(),
                window: PrefixCacheStats::default(),
            }),
        }
    }

    /// Takes a step in.
    pub(crate) fn step_finished(&self, step: &StepFinished) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.latest = step.scheduler;
        state.num_prompt_tokens += step.num_prompt_tokens;
        state.num_generation_tokens += step.num_generation_tokens;
        state.num_preemptions += step.scheduler.num_preemptions;
        state.admitted(step.scheduler.prefix_cache);
    }

    /// The line for the interval that ends now; `None` if nothing happened in it and nothing is there.
    pub(crate) fn line(&self, now: Instant) -> Option<String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = now.saturating_duration_since(std::mem::replace(&mut state.since, now)).as_secs_f64();
        let prompt = std::mem::take(&mut state.num_prompt_tokens);
        let generation = std::mem::take(&mut state.num_generation_tokens);
        let preemptions = std::mem::take(&mut state.num_preemptions);
        let scheduler = state.latest;
        let waiting = scheduler.num_waiting_capacity + scheduler.num_waiting_deferred;
        if prompt + generation + preemptions + scheduler.num_running + waiting == 0 || seconds <= 0.0 {
            return None;
        }
        let mut line = format!(
            "Engine {:03}: Avg prompt throughput: {:.1} tokens/s, Avg generation throughput: {:.1} tokens/s, \
             Running: {} reqs, Waiting: {waiting} reqs",
            self.engine,
            prompt as f64 / seconds,
            generation as f64 / seconds,
            scheduler.num_running,
        );
        // Writing to a String cannot fail.
        if preemptions > 0 {
            let _ = write!(line, ", Preemptions: {preemptions}");
        }
        let _ = write!(line, ", KV cache usage: {:.1}%", scheduler.kv_cache_usage * 100.0);
        if state.window.queries > 0 {
            let rate = state.window.hits as f64 / state.window.queries as f64;
            let _ = write!(line, ", Prefix cache hit rate: {:.1}%", rate * 100.0);
        }
        Some(line)
    }
}

impl State {
    /// Keeps the latest requests, whole steps of them, the newest step whatever its size.
    fn admitted(&mut self, step: PrefixCacheStats) {
        if step.requests == 0 {
            return;
        }
        self.admissions.push_back(step);
        self.window.requests += step.requests;
        self.window.queries += step.queries;
        self.window.hits += step.hits;
        while self.window.requests > HIT_RATE_REQUESTS && self.admissions.len() > 1 {
            let Some(oldest) = self.admissions.pop_front() else { return };
            self.window.requests -= oldest.requests;
            self.window.queries -= oldest.queries;
            self.window.hits -= oldest.hits;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fixtures::step;

    fn engine() -> (LogStats, Instant) {
        let stats = LogStats::new(0);
        let since = stats.state.lock().unwrap().since;
        (stats, since)
    }

    #[test]
    fn the_line_has_rates_of_the_interval_and_the_state_of_its_end() {
        let (stats, since) = engine();
        for _ in 0..10 {
            stats.step_finished(&step(since));
        }
        assert_eq!(
            stats.line(since + Duration::from_secs(5)).unwrap(),
            "Engine 000: Avg prompt throughput: 8.0 tokens/s, Avg generation throughput: 6.0 tokens/s, \
             Running: 3 reqs, Waiting: 3 reqs, Preemptions: 10, KV cache usage: 25.0%, \
             Prefix cache hit rate: 80.0%"
        );
        let next = stats.line(since + Duration::from_secs(10)).unwrap();
        assert!(next.contains("generation throughput: 0.0") && !next.contains("Preemptions"), "{next}");
    }

    #[test]
    fn an_idle_engine_is_silent() {
        let (stats, since) = engine();
        assert_eq!(stats.line(since + Duration::from_secs(5)), None);
        stats.step_finished(&step(since));
        let idle = StepFinished {
            scheduler: SchedulerStats::default(),
            num_prompt_tokens: 0,
            num_generation_tokens: 0,
            ..step(since)
        };
        stats.step_finished(&idle);
        assert!(stats.line(since + Duration::from_secs(10)).is_some(), "its last interval is told");
        assert_eq!(stats.line(since + Duration::from_secs(15)), None);
    }

    #[test]
    fn the_hit_rate_forgets_all_but_the_latest_thousand_requests() {
        let (stats, since) = engine();
        let admit = |requests, hits| {
            let mut step = step(since);
            step.scheduler.prefix_cache = PrefixCacheStats { requests, queries: requests * 10, hits };
            stats.step_finished(&step);
        };
        admit(1, 0);
        for _ in 0..10 {
            admit(100, 1000);
        }
        let rate = |second| stats.line(since + Duration::from_secs(second)).unwrap();
        assert!(rate(1).ends_with("hit rate: 100.0%"), "the first request is forgotten");
        admit(2000, 0);
        assert!(rate(2).ends_with("hit rate: 0.0%"), "the newest step stays whatever its size");
    }
}
