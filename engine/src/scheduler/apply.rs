//! Takes the results of a step in: new tokens, finished requests, the step's report.

use std::sync::Arc;
use std::time::{Duration, Instant};

use limpid_telemetry::observation::{SchedulerStats, StepWork};

use super::plan::{ModelOutput, Outcome, Scheduled, StepPlan};
use super::{Scheduler, Slot};
use crate::request::{FinishReason, RequestOutput, SampledToken, StepFinished, StepOutput, StepTimes};

impl Scheduler {
    /// Takes the results of the planned step in. `now` is the NEW_TOKENS stamp. The report also has what
    /// happened outside steps since the last one.
    ///
    /// # Panics
    /// If the plan is not the one that is out, or the results are not as many as it asked for.
    pub fn apply(&mut self, plan: StepPlan, output: ModelOutput<'_>, now: Instant) -> StepOutput {
        assert!(std::mem::replace(&mut self.planned, false), "no plan is out");
        let StepPlan { now: started, mut scheduled, num_preemptions } = plan;
        let mut step = StepOutput {
            step: StepFinished {
                started,
                finished: now,
                scheduler: SchedulerStats::default(),
                times: output.times,
                num_prompt_tokens: 0,
                num_generation_tokens: 0,
                work: StepWork::default(),
                apply: Duration::ZERO,
            },
            outputs: std::mem::take(&mut self.ended),
            evicted: self.cache.take_evicted(),
            trace: None,
        };
        let before = step.outputs.len();
        match output.outcome {
            Outcome::Sampled(results) => {
                let mut results = results.drain(..);
                for share in &scheduled {
                    let result =
                        share.samples.then(|| results.next().expect("a result for each that samples"));
                    self.apply_one(share, result, &mut step, now);
                }
                assert!(results.next().is_none(), "more results than were asked for");
            }
            Outcome::Failed(error) => {
                for share in &scheduled {
                    let ended = self.fail(share, output.times, error.clone());
                    step.outputs.push(ended);
                }
            }
        }
        if step.outputs[before..].iter().any(|output| output.finish.is_some()) {
            self.running.retain(|slot| self.requests[slot.0].is_some());
        }
        scheduled.clear();
        self.spare = scheduled;
        let num_corrupted_requests = step.step.scheduler.num_corrupted_requests;
        step.step.scheduler = SchedulerStats { num_corrupted_requests, ..self.stats(num_preemptions) };
        self.prefix_cache = Default::default();
        self.num_forced_preemptions = 0;
        step
    }

    fn apply_one(
        &mut self,
        share: &Scheduled,
        result: Option<Result<SampledToken, Arc<str>>>,
        step: &mut StepOutput,
        now: Instant,
    ) {
        let Slot(index) = share.slot;
        let request = self.requests[index].as_mut().expect("a scheduled request is live");
        step.step.num_prompt_tokens += request.computed(share.num_tokens, step.step.times, now) as u64;
        self.cache.slide(&mut request.table, request.num_computed_tokens);
        let output = match result {
            None => return,
            Some(Ok(token)) => {
                step.step.num_generation_tokens += 1;
                match request.append(token.id) {
                    None => {
                        self.cache.extend_hashes(&mut request.table, &request.tokens);
                        request.output(vec![token], None, None)
                    }
                    Some(reason) => self.finish(share.slot, vec![token], reason, None),
                }
            }
            Some(Err(error)) => {
                step.step.scheduler.num_corrupted_requests += 1;
                // What made the logits useless may sit in the cache; nobody else is to find it there.
                self.cache.forget(&mut request.table, 0);
                self.finish(share.slot, Vec::new(), FinishReason::Error, Some(error))
            }
        };
        step.outputs.push(output);
    }

    fn fail(&mut self, share: &Scheduled, times: StepTimes, error: Arc<str>) -> RequestOutput {
        let request = self.request_mut(share.slot);
        request.spent(times);
        let num_computed = request.num_computed_tokens;
        let request = self.requests[share.slot.0].as_mut().expect("a scheduled request is live");
        self.cache.forget(&mut request.table, num_computed);
        self.finish(share.slot, Vec::new(), FinishReason::Error, Some(error))
    }

    fn stats(&mut self, num_preemptions: usize) -> SchedulerStats {
        SchedulerStats {
            num_running: self.running.len() as u64,
            num_waiting_capacity: self.waiting.len() as u64,
            num_waiting_deferred: 0,
            kv_cache_usage: self.cache.usage(),
            windowed_kv_cache_usage: self.cache.windowed_usage(),
            prefix_cache: self.prefix_cache,
            num_preemptions: (num_preemptions + self.num_forced_preemptions) as u64,
            num_evictable_blocks: self.cache.num_evictable() as u64,
            num_evicted_blocks: self.cache.take_num_evicted(),
            num_corrupted_requests: 0,
        }
    }
}
