//! The rules one by one. The simulation drives them all at once.

use std::time::Duration;

use super::*;
use crate::request::{RequestEventKind as Kind, SampledToken, SamplingParams, Siblings, StepOutput};

struct Bench {
    scheduler: Scheduler,
    now: Instant,
}

fn config() -> ResolvedConfig {
    ResolvedConfig {
        max_model_len: 32,
        max_num_seqs: 4,
        max_num_batched_tokens: 16,
        block_size: 4,
        num_blocks: 33,
        cache_windows: vec![None],
        enable_prefix_caching: true,
        scheduling_policy: SchedulingPolicy::Fcfs,
        kv_cache_metrics_sample: None,
        cost: Default::default(),
    }
}

impl Bench {
    fn new(config: ResolvedConfig) -> Bench {
        Bench { scheduler: Scheduler::new(&config), now: Instant::now() }
    }

    fn submit_siblings(&mut self, ids: std::ops::Range<u64>, prompt: &[u32], max_tokens: usize) {
        let siblings = Some(Siblings(ids.start));
        for id in ids {
            self.submit_request(EngineRequest { siblings, ..self.request(id, prompt, max_tokens, 0) });
        }
    }

    fn submit(&mut self, id: u64, prompt: &[u32], max_tokens: usize) {
        self.submit_with_priority(id, prompt, max_tokens, 0);
    }

    fn submit_with_priority(&mut self, id: u64, prompt: &[u32], max_tokens: usize, priority: i32) {
        self.submit_request(self.request(id, prompt, max_tokens, priority));
    }

    fn request(&self, id: u64, prompt: &[u32], max_tokens: usize, priority: i32) -> EngineRequest {
        EngineRequest {
            id: RequestId(id),
            prompt: prompt.into(),
            params: SamplingParams { max_tokens, stop_token_ids: vec![0], ..SamplingParams::default() },
            priority,
            arrival: self.now,
            cache_salt: None,
            siblings: None,
        }
    }

    fn submit_request(&mut self, request: EngineRequest) {
        self.now += Duration::from_millis(1);
        assert!(self.scheduler.submit(request, self.now));
    }

    /// One step in which every request that samples gets `token`; answers (id, tokens) of the batch too.
    fn step(&mut self, token: u32) -> (Vec<(u64, usize)>, StepOutput) {
        self.now += Duration::from_millis(1);
        let plan = self.scheduler.plan(self.now);
        let batch = plan.scheduled().iter().map(|share| (share.id.0, share.num_tokens)).collect();
        let mut results: Vec<_> = plan
            .scheduled()
            .iter()
            .filter(|share| share.samples)
            .map(|_| Ok(SampledToken { id: token, logprobs: None }))
            .collect();
        let output = ModelOutput { outcome: Outcome::Sampled(&mut results), times: StepTimes::default() };
        self.now += Duration::from_millis(1);
        let output = self.scheduler.apply(plan, output, self.now);
        self.scheduler.assert_invariants();
        (batch, output)
    }

    fn running(&self) -> Vec<u64> {
        self.scheduler.running().map(|id| id.0).collect()
    }

    fn waiting(&self) -> Vec<u64> {
        self.scheduler.waiting().map(|id| id.0).collect()
    }
}

fn kinds(output: &RequestOutput) -> Vec<Kind> {
    output.events.iter().map(|event| event.kind).collect()
}

#[test]
fn long_prompt_is_computed_in_chunks_beside_decoding_requests() {
    let mut bench = Bench::new(config());
    bench.submit(1, &[1; 3], 9);
    bench.submit(2, &[2; 20], 9);
    assert_eq!(bench.step(5).0, [(1, 3), (2, 13)]);
    let (batch, output) = bench.step(5);
    assert_eq!(batch, [(1, 1), (2, 7)]);
    assert_eq!((output.step.num_prompt_tokens, output.step.num_generation_tokens), (7, 2));
    let second = &output.outputs[1];
    let expected = [
        Kind::Queued,
        Kind::Scheduled { num_cached_tokens: 0 },
        Kind::PrefillChunk { num_tokens: 13 },
        Kind::PrefillChunk { num_tokens: 7 },
    ];
    assert_eq!(kinds(second), expected);
    assert_eq!(second.events[3].at, output.step.finished, "a chunk is done when its step is");
    assert_eq!(bench.step(5).0, [(1, 1), (2, 1)]);
}

#[test]
fn second_request_computes_three_tokens_of_a_prompt_of_four_blocks_and_three() {
    let mut bench = Bench::new(ResolvedConfig { max_num_batched_tokens: 64, ..config() });
    let prompt: Vec<u32> = (1..=19).collect();
    bench.submit(1, &prompt, 1);
    let (_, output) = bench.step(5);
    let stats = output.step.scheduler.prefix_cache;
    assert_eq!((stats.requests, stats.queries, stats.hits), (1, 19, 0));
    bench.submit(2, &prompt, 1);
    let (batch, output) = bench.step(5);
    assert_eq!(batch, [(2, 3)]);
    let stats = output.step.scheduler.prefix_cache;
    assert_eq!((stats.requests, stats.queries, stats.hits), (1, 19, 16));
    assert_eq!(output.step.num_prompt_tokens, 3);
    assert_eq!(kinds(&output.outputs[0])[1], Kind::Scheduled { num_cached_tokens: 16 });
}

#[test]
fn equal_prompts_admitted_in_one_step_share_blocks_before_they_are_computed() {
    let mut bench = Bench::new(config());
    bench.submit(1, &[7; 9], 4);
    bench.submit(2, &[7; 9], 4);
    assert_eq!(bench.step(5).0, [(1, 9), (2, 1)]);
    let blocks = |id| bench.scheduler.table(RequestId(id)).unwrap().blocks(0).to_vec();
    assert_eq!(blocks(1)[..2], blocks(2)[..2]);
}

#[test]
fn siblings_compute_their_prompt_once_with_and_without_prefix_caching() {
    for enable_prefix_caching in [true, false] {
        let mut bench = Bench::new(ResolvedConfig { enable_prefix_caching, ..config() });
        // 18 tokens are two chunks under the budget of 16; the others come in behind the second.
        bench.submit_siblings(1..4, &[7; 18], 9);
        bench.submit(9, &[7; 18], 9);
        assert_eq!(bench.step(5).0, [(1, 16)]);
        let (batch, output) = bench.step(5);
        let mut expected = vec![(1, 2), (2, 2), (3, 2)];
        expected.push((9, if enable_prefix_caching { 2 } else { 10 }));
        assert_eq!(batch, expected, "prefix caching: {enable_prefix_caching}");
        let blocks = |id| bench.scheduler.table(RequestId(id)).unwrap().blocks(0).to_vec();
        assert_eq!(blocks(1)[..4], blocks(2)[..4]);
        assert_eq!(blocks(1)[..4], blocks(3)[..4]);
        assert_ne!(blocks(1)[4], blocks(2)[4], "what does not fill a block is each one's own");
        assert_eq!(blocks(1)[..2] == blocks(9)[..2], enable_prefix_caching);
        let cached = Kind::Scheduled { num_cached_tokens: 16 };
        assert_eq!(kinds(&output.outputs[1])[1], cached);
        let stats = output.step.scheduler.prefix_cache;
        let expected = if enable_prefix_caching { (3, 54, 48) } else { (0, 0, 0) };
        assert_eq!((stats.requests, stats.queries, stats.hits), expected);
        for id in [1, 2, 3, 9] {
            assert!(bench.scheduler.abort(RequestId(id)));
        }
        bench.step(5);
        assert!(bench.scheduler.reset_prefix_cache());
    }
}

#[test]
fn forced_preemption_frees_all_blocks_and_keeps_the_order() {
    let mut bench = Bench::new(config());
    for id in 1..4 {
        bench.submit(id, &[id as u32; 4], 9);
    }
    bench.submit(4, &[4; 20], 9);
    bench.step(5);
    bench.submit(5, &[5; 4], 9);
    assert!(!bench.scheduler.reset_prefix_cache(), "blocks are held");
    bench.now += Duration::from_millis(1);
    bench.scheduler.preempt_all(bench.now);
    bench.scheduler.assert_invariants();
    assert_eq!((bench.running(), bench.waiting()), (vec![], vec![1, 2, 3, 4, 5]));
    assert!(bench.scheduler.reset_prefix_cache());
    let (batch, output) = bench.step(6);
    assert_eq!(batch, [(1, 5), (2, 5), (3, 5), (4, 1)]);
    let stats = output.step.scheduler;
    assert_eq!((stats.num_preemptions, stats.prefix_cache.requests), (4, 0));
    assert_eq!(kinds(&output.outputs[0]), [Kind::Preempted, Kind::Scheduled { num_cached_tokens: 0 }]);
    let (_, output) = bench.step(6);
    assert_eq!(output.step.scheduler.num_preemptions, 0, "counted once");
}

#[test]
fn watched_blocks_are_reported_with_the_step_that_overwrites_them() {
    let mut bench =
        Bench::new(ResolvedConfig { num_blocks: 10, kv_cache_metrics_sample: Some(1.0), ..config() });
    bench.submit(1, &[1; 14], 1);
    assert_eq!(bench.step(5).1.evicted, []);
    // The block that did not become full is the first to be used again, by the second and by the third.
    for id in [2, 3] {
        bench.submit(id, &[id as u32 - 1; 14], 1);
        let evicted = bench.step(5).1.evicted;
        assert_eq!(evicted.len(), 1);
        assert_eq!(evicted[0].idle, evicted[0].lifetime, "nobody found it");
    }
    // Two more fill the pool, the three blocks that the second found among it.
    bench.submit(4, &[4; 16], 9);
    let mut evicted = bench.step(5).1.evicted;
    bench.submit(5, &[5; 16], 9);
    evicted.extend(bench.step(5).1.evicted);
    assert_eq!(evicted.iter().filter(|seen| seen.idle < seen.lifetime).count(), 3, "{evicted:?}");
}

#[test]
fn preempted_request_keeps_its_tokens_loses_its_blocks_and_is_first_in_the_queue() {
    // Eight blocks besides the null block; two requests of 12 tokens take six.
    let mut bench = Bench::new(ResolvedConfig { num_blocks: 9, max_num_batched_tokens: 64, ..config() });
    bench.submit(1, &[1; 12], 20);
    bench.submit(2, &[2; 12], 20);
    bench.submit(3, &[3; 12], 20);
    assert_eq!(bench.step(5).0, [(1, 12), (2, 12)], "no block is left for the third");
    let mut preempted = None;
    for _ in 0..8 {
        let (batch, output) = bench.step(5);
        if output.step.scheduler.num_preemptions > 0 {
            preempted = Some((batch, output));
            break;
        }
    }
    let (batch, output) = preempted.expect("the pool runs out");
    assert_eq!(batch, [(1, 1)]);
    assert_eq!((bench.running(), bench.waiting()), (vec![1], vec![2, 3]));
    assert_eq!(bench.scheduler.table(RequestId(2)).unwrap().num_blocks(), 0);
    assert!(
        output.outputs.iter().all(|output| output.id == RequestId(1)),
        "its events ride on its next output"
    );
    bench.scheduler.abort(RequestId(1));
    // Two of its full blocks were not overwritten: they hit, and count nowhere.
    let (batch, output) = bench.step(5);
    assert_eq!(batch[0].0, 2);
    let resumed = output.outputs.iter().find(|output| output.id == RequestId(2)).unwrap();
    let stamps: Vec<_> = resumed.events.iter().map(|event| event.at).collect();
    let events = kinds(resumed);
    assert_eq!(events[0], Kind::Preempted);
    assert!(
        matches!(events[1], Kind::Scheduled { num_cached_tokens } if num_cached_tokens >= 8),
        "{events:?}"
    );
    assert_eq!(events.len(), 2, "computing again after the first token is no prefill chunk");
    assert!(stamps[0] < stamps[1]);
    let stats = output.step.scheduler.prefix_cache;
    assert_eq!((stats.requests, stats.hits), (1, 0), "the third request, not the resumed one");
    assert_eq!(output.step.num_prompt_tokens, 12, "the third's; the resumed one's were counted before");
}

#[test]
fn priority_policy_serves_the_lowest_number_and_preempts_the_highest() {
    let mut bench = Bench::new(ResolvedConfig {
        num_blocks: 11,
        max_num_seqs: 3,
        max_num_batched_tokens: 64,
        scheduling_policy: SchedulingPolicy::Priority,
        ..config()
    });
    bench.submit_with_priority(1, &[1; 12], 20, 5);
    bench.submit_with_priority(2, &[2; 12], 20, 1);
    assert_eq!(bench.waiting(), [2, 1]);
    bench.step(5);
    bench.submit_with_priority(4, &[4; 4], 20, 0);
    bench.step(5);
    bench.submit_with_priority(3, &[3; 12], 20, 9);
    assert_eq!((bench.running(), bench.waiting()), (vec![2, 1, 4], vec![3]));
    while bench.running().len() > 2 {
        bench.step(5);
    }
    assert_eq!(bench.running(), [2, 4], "the worst of the three gave way, not the last");
    assert_eq!(bench.waiting(), [1, 3]);
}

#[test]
fn request_preempted_after_it_was_scheduled_leaves_no_uncomputed_prefix() {
    // Under the priority policy the victim may come earlier in the running list than whoever needs a block.
    let mut bench = Bench::new(ResolvedConfig {
        num_blocks: 9,
        scheduling_policy: SchedulingPolicy::Priority,
        ..config()
    });
    bench.submit_with_priority(1, &[3; 9], 20, 0);
    bench.submit_with_priority(2, &[1; 2], 20, 9);
    bench.step(5);
    bench.submit_with_priority(3, &[2; 24], 20, 5);
    assert_eq!(bench.step(5).0, [(1, 1), (2, 1), (3, 14)], "all eight blocks are in use");
    // The second fills its block in this step; then the third needs two, gets that one, and gives up itself.
    let (batch, output) = bench.step(5);
    assert_eq!((batch, output.step.scheduler.num_preemptions), (vec![(1, 1)], 2));
    bench.submit_with_priority(4, &[1, 1, 5, 5, 6], 1, 0);
    assert_eq!(bench.step(5).0[1], (4, 5), "the block that was planned but not computed does not hit");
}

#[test]
fn stop_token_wins_over_a_length_reached_by_the_same_token() {
    let mut bench = Bench::new(config());
    bench.submit(1, &[1], 1);
    bench.submit(2, &[1; 31], 5);
    let (_, output) = bench.step(0);
    assert_eq!((output.outputs[0].finish, output.outputs[0].tokens[0].id), (Some(FinishReason::Stop), 0));
    let (_, output) = bench.step(5);
    assert_eq!(output.outputs[0].finish, Some(FinishReason::Length), "32 tokens are the longest sequence");
}

#[test]
fn abort_in_every_state_ends_with_the_events_so_far() {
    let mut bench = Bench::new(ResolvedConfig { max_num_seqs: 1, ..config() });
    bench.submit(1, &[1; 20], 9);
    bench.submit(2, &[2; 4], 9);
    bench.step(5);
    assert!(bench.scheduler.abort(RequestId(1)) && bench.scheduler.abort(RequestId(2)));
    assert!(!bench.scheduler.abort(RequestId(1)), "it has ended");
    assert!(!bench.scheduler.is_idle(), "there is something to report");
    let (batch, output) = bench.step(5);
    assert!(batch.is_empty());
    let expected =
        vec![Kind::Queued, Kind::Scheduled { num_cached_tokens: 0 }, Kind::PrefillChunk { num_tokens: 16 }];
    assert_eq!(kinds(&output.outputs[0]), expected);
    assert_eq!(kinds(&output.outputs[1]), [Kind::Queued]);
    assert!(output.outputs.iter().all(|output| output.finish == Some(FinishReason::Abort)));
    let stats = output.step.scheduler;
    assert_eq!((stats.num_running, stats.num_waiting_capacity, stats.kv_cache_usage), (0, 0, 0.0));
    assert!(bench.scheduler.is_idle() && bench.scheduler.pending().is_none());
}

#[test]
fn requests_beyond_the_sequence_slots_wait_for_capacity() {
    let mut bench = Bench::new(config());
    for id in 0..6 {
        bench.submit(id, &[1], 9);
    }
    let (batch, output) = bench.step(5);
    assert_eq!(batch.len(), 4);
    assert_eq!((output.step.scheduler.num_running, output.step.scheduler.num_waiting_capacity), (4, 2));
    let pending = bench.scheduler.pending().unwrap();
    assert_eq!(pending.to_string(), "4 running, 2 waiting, 28 blocks free; next is request 4 with 1 tokens");
}

#[test]
fn layers_with_a_window_hold_their_windows_blocks_and_find_their_prefix_again() {
    let config = ResolvedConfig { cache_windows: vec![None, Some(6), Some(6)], num_blocks: 41, ..config() };
    let mut bench = Bench::new(config);
    let prompt: Vec<u32> = (1..=25).collect();
    bench.submit(1, &prompt, 3);
    assert_eq!(bench.step(5).0, [(1, 16)]);
    let (_, output) = bench.step(5);
    // 25 tokens are 7 blocks; the next token sees positions 20 to 25, which are in two blocks of each window.
    let stats = output.step.scheduler;
    assert_eq!(stats.kv_cache_usage, 11.0 / 40.0);
    assert_eq!(stats.windowed_kv_cache_usage, 4.0 / 40.0);
    let table = bench.scheduler.table(RequestId(1)).unwrap();
    assert_eq!(table.blocks(1).iter().filter(|id| **id != BlockId::NULL).count(), 2);
    bench.submit(2, &prompt, 1);
    let (batch, output) = bench.step(5);
    assert_eq!(batch, [(1, 1), (2, 1)]);
    assert_eq!(output.step.scheduler.prefix_cache.hits, 24);
}
