//! What the scheduler costs a step: `plan` and `apply` for 256 sequences that decode.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::sync::Arc;
use std::time::Instant;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use limpid_engine::config::{ResolvedConfig, SchedulingPolicy};
use limpid_engine::request::{EngineRequest, RequestId, SampledToken, SamplingParams, StepTimes};
use limpid_engine::scheduler::{ModelOutput, Outcome, Scheduler};

const SEQUENCES: usize = 256;
const MAX_MODEL_LEN: usize = 1 << 20;

/// 256 sequences past their prompts of 512 tokens.
fn decoding() -> Scheduler {
    let mut scheduler = Scheduler::new(&ResolvedConfig {
        max_model_len: MAX_MODEL_LEN,
        max_num_seqs: SEQUENCES,
        max_num_batched_tokens: SEQUENCES * 512,
        block_size: 16,
        num_blocks: 2 * MAX_MODEL_LEN / 16,
        enable_prefix_caching: true,
        scheduling_policy: SchedulingPolicy::Fcfs,
        kv_cache_metrics_sample: None,
        cost: Default::default(),
        cache_windows: vec![None],
    });
    for id in 0..SEQUENCES as u64 {
        let request = EngineRequest {
            id: RequestId(id),
            prompt: (0..512).map(|token| token + id as u32).collect(),
            params: SamplingParams { max_tokens: MAX_MODEL_LEN, ..SamplingParams::default() },
            priority: 0,
            arrival: Instant::now(),
            cache_salt: None,
            siblings: None,
        };
        scheduler.submit(request, Instant::now());
    }
    step(&mut scheduler, &mut results());
    scheduler
}

fn results() -> Vec<Result<SampledToken, Arc<str>>> {
    (0..SEQUENCES as u32).map(|id| Ok(SampledToken { id, logprobs: None })).collect()
}

fn step(scheduler: &mut Scheduler, results: &mut Vec<Result<SampledToken, Arc<str>>>) -> usize {
    let plan = scheduler.plan(Instant::now());
    let output = ModelOutput { outcome: Outcome::Sampled(results), times: StepTimes::default() };
    scheduler.apply(plan, output, Instant::now()).outputs.len()
}

fn plan_and_apply(criterion: &mut Criterion) {
    let mut scheduler = decoding();
    criterion.bench_function("plan_and_apply/256_decoding", |bencher| {
        bencher.iter_batched_ref(
            results,
            |results| {
                // The sequences grow by a token each time; before the pool is full they start again.
                if scheduler.pending().is_some_and(|pending| pending.num_free_blocks < 2 * SEQUENCES) {
                    scheduler = decoding();
                }
                assert_eq!(step(&mut scheduler, results), SEQUENCES);
            },
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, plan_and_apply);
criterion_main!(benches);
