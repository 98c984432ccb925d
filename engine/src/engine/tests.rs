//! The thread with a device made of a closure.

mod candidates;

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::*;
use crate::config::SchedulingPolicy;
use crate::device::{Batch, DeviceError, DeviceInfo, ExecuteTimes};
use crate::request::{FinishReason, RequestEventKind, SampledToken, SamplingParams, StepPart};

const VOCABULARY: usize = 8;

type Execute = Box<dyn FnMut(&Batch, &mut Vec<f32>) -> Result<ExecuteTimes, DeviceError> + Send>;

struct ClosureDevice(DeviceInfo, Execute);

impl Device for ClosureDevice {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn execute(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<ExecuteTimes, DeviceError> {
        logits.clear();
        self.1(batch, logits)
    }
}

fn info() -> DeviceInfo {
    DeviceInfo {
        kind: "closure",
        name: String::new(),
        device_type: "Other".to_owned(),
        backend: String::new(),
        driver: String::new(),
    }
}

/// For engines that do not sleep.
struct NoSource;

impl DeviceSource for NoSource {
    fn open(&mut self) -> Result<Box<dyn Device>, DeviceError> {
        Err(DeviceError::Failed("there is no second device".to_owned()))
    }

    fn discard(&mut self) {}
}

/// The next token is the last one plus one.
fn count_up(batch: &Batch, logits: &mut Vec<f32>) -> Result<ExecuteTimes, DeviceError> {
    for row in &batch.logits_rows {
        let next = (batch.tokens[*row as usize] as usize + 1) % VOCABULARY;
        logits.extend((0..VOCABULARY).map(|id| if id == next { 1.0 } else { 0.0 }));
    }
    Ok(ExecuteTimes { forward: Some(Duration::from_micros(5)) })
}

fn config() -> ResolvedConfig {
    ResolvedConfig {
        max_model_len: 64,
        max_num_seqs: 8,
        max_num_batched_tokens: 16,
        block_size: 4,
        num_blocks: 40,
        enable_prefix_caching: true,
        scheduling_policy: SchedulingPolicy::Fcfs,
        kv_cache_metrics_sample: None,
        cost: Default::default(),
        cache_windows: vec![None],
    }
}

fn start(
    execute: impl FnMut(&Batch, &mut Vec<f32>) -> Result<ExecuteTimes, DeviceError> + Send + 'static,
) -> (EngineHandle, Receiver<StepOutput>) {
    let (send, steps) = channel();
    let device = Box::new(ClosureDevice(info(), Box::new(execute)));
    (EngineHandle::start(0, config(), device, Box::new(NoSource), move |step| drop(send.send(step))), steps)
}

fn request(id: u64, prompt: &[u32], max_tokens: usize) -> EngineRequest {
    EngineRequest {
        id: RequestId(id),
        prompt: prompt.into(),
        params: SamplingParams { temperature: 0.0, max_tokens, ..SamplingParams::default() },
        priority: 0,
        arrival: Instant::now(),
        cache_salt: None,
        siblings: None,
    }
}

/// Steps up to the one with this many finished requests in all.
fn until_finished(steps: &Receiver<StepOutput>, mut count: usize) -> Vec<StepOutput> {
    let mut seen = Vec::new();
    while count > 0 {
        let step = steps.recv_timeout(Duration::from_secs(20)).expect("the engine goes on");
        count -= step.outputs.iter().filter(|output| output.finish.is_some()).count();
        seen.push(step);
    }
    seen
}

fn finishes(steps: &[StepOutput]) -> Vec<(u64, FinishReason)> {
    let outputs = steps.iter().flat_map(|step| &step.outputs);
    let mut all: Vec<_> = outputs.filter_map(|output| Some((output.id.0, output.finish?))).collect();
    all.sort_by_key(|(id, _)| *id);
    all
}

#[test]
fn a_request_is_queued_from_its_handing_over_though_a_step_runs() {
    let (entered, has_entered) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let (engine, steps) = start(move |batch, logits| {
        entered.send(()).unwrap();
        let _ = may_go_on.recv_timeout(Duration::from_secs(20));
        count_up(batch, logits)
    });
    assert!(engine.submit(request(1, &[1], 1)));
    has_entered.recv_timeout(Duration::from_secs(20)).unwrap();
    let before = Instant::now();
    assert!(engine.submit(request(2, &[3], 1)));
    let after = Instant::now();
    drop(go_on);
    let seen = until_finished(&steps, 2);
    let outputs = seen.iter().flat_map(|step| &step.outputs).filter(|output| output.id == RequestId(2));
    let queued =
        outputs.flat_map(|output| &output.events).find(|event| event.kind == RequestEventKind::Queued);
    assert!(queued.is_some_and(|event| (before..=after).contains(&event.at)), "{queued:?}");
}

#[test]
fn tokens_events_and_times_of_two_requests_come_back() {
    let (engine, steps) = start(count_up);
    assert!(engine.submit(request(1, &[1; 20], 3)));
    assert!(engine.submit(request(2, &[3], 2)));
    let seen = until_finished(&steps, 2);
    assert_eq!(finishes(&seen), [(1, FinishReason::Length), (2, FinishReason::Length)]);
    let of = |id| seen.iter().flat_map(|step| &step.outputs).filter(move |output| output.id == RequestId(id));
    let text = |id| of(id).flat_map(|output| output.tokens.iter().map(|token| token.id)).collect::<Vec<_>>();
    assert_eq!((text(1), text(2)), (vec![2, 3, 4], vec![4, 5]));
    let first = of(1).next().unwrap();
    let kinds: Vec<_> = first.events.iter().map(|event| event.kind).collect();
    assert_eq!(
        kinds,
        [
            RequestEventKind::Queued,
            RequestEventKind::Scheduled { num_cached_tokens: 0 },
            RequestEventKind::PrefillChunk { num_tokens: 16 },
            RequestEventKind::PrefillChunk { num_tokens: 4 },
        ]
    );
    // Two steps of prefill, two of decode, each measured by the device as 5 µs.
    let last = of(1).next_back().unwrap();
    assert_eq!(last.times.forward, Some(Duration::from_micros(20)));
    assert!(last.times.execute > Duration::ZERO && last.times.scheduler > Duration::ZERO);
    let totals = seen.iter().fold((0, 0), |(prompt, generated), step| {
        (prompt + step.step.num_prompt_tokens, generated + step.step.num_generation_tokens)
    });
    assert_eq!(totals, (21, 5));
    let stats = seen.last().unwrap().step.scheduler;
    assert_eq!((stats.num_running, stats.num_waiting_capacity, stats.kv_cache_usage), (0, 0, 0.0));
    assert!(engine.healthy());
    engine.shutdown();
    assert!(!engine.is_alive() && !engine.healthy() && !engine.submit(request(3, &[1], 1)));
}

#[test]
fn abort_is_reported_and_gauges_return_to_zero() {
    // Each step waits for a permit, so the abort is in the channel before the second step ends.
    let (permits, wait) = channel::<()>();
    let (engine, steps) = start(move |batch, logits| {
        wait.recv().expect("a permit");
        count_up(batch, logits)
    });
    engine.submit(request(1, &[1, 2], 50));
    permits.send(()).unwrap();
    let step = steps.recv().unwrap();
    assert_eq!(step.step.scheduler.num_running, 1);
    engine.abort(RequestId(1));
    engine.abort(RequestId(77));
    permits.send(()).unwrap();
    permits.send(()).unwrap();
    let seen = until_finished(&steps, 1);
    assert_eq!(finishes(&seen), [(1, FinishReason::Abort)]);
    let last = seen.last().unwrap();
    assert_eq!((last.step.scheduler.num_running, last.step.scheduler.kv_cache_usage), (0, 0.0));
    assert!(last.outputs[0].times.execute > Duration::ZERO, "what it cost is told");
}

#[test]
fn failed_step_ends_its_batch_and_leaves_no_wrong_prefix_behind() {
    let mut calls = 0;
    let (engine, steps) = start(move |batch, logits| {
        calls += 1;
        if calls == 1 { Err(DeviceError::Failed("out of luck".to_owned())) } else { count_up(batch, logits) }
    });
    engine.submit(request(1, &[1; 12], 2));
    let seen = until_finished(&steps, 1);
    assert_eq!(finishes(&seen), [(1, FinishReason::Error)]);
    let error = seen.last().unwrap().outputs[0].error.clone().unwrap();
    assert!(error.contains("out of luck"), "{error}");
    assert!(engine.healthy());
    engine.submit(request(2, &[1; 12], 2));
    let seen = until_finished(&steps, 1);
    assert_eq!(finishes(&seen), [(2, FinishReason::Length)]);
    let hits: u64 = seen.iter().map(|step| step.step.scheduler.prefix_cache.hits).sum();
    assert_eq!(hits, 0, "the failed step computed nothing that could be reused");
}

fn assert_all_end_after(
    break_down: impl Fn() -> Result<ExecuteTimes, DeviceError> + Send + 'static,
    expected: &str,
) {
    let (engine, steps) = start(move |_, _| break_down());
    // More than run at once, so that waiting ones are among them.
    for id in 0..12 {
        engine.submit(request(id, &[1; 10], 5));
    }
    let seen = until_finished(&steps, 12);
    assert!(finishes(&seen).iter().all(|(_, reason)| *reason == FinishReason::Error));
    assert!(!engine.healthy() && engine.is_alive());
    assert!(engine.submit(request(99, &[1], 1)), "the engine still answers");
    let seen = until_finished(&steps, 1);
    let output = &seen.last().unwrap().outputs[0];
    assert_eq!((output.id, output.finish), (RequestId(99), Some(FinishReason::Error)));
    assert!(output.error.as_ref().unwrap().contains(expected), "{output:?}");
}

#[test]
fn lost_device_ends_everything_and_answers_later_requests() {
    assert_all_end_after(|| Err(DeviceError::Lost("unplugged".to_owned())), "unplugged");
}

#[test]
fn device_that_panics_counts_as_lost() {
    assert_all_end_after(|| panic!("index out of bounds"), "index out of bounds");
}

#[test]
fn nan_ends_only_the_request_it_belongs_to() {
    let (engine, steps) = start(|batch, logits| {
        count_up(batch, logits)?;
        for (index, row) in batch.logits_rows.iter().enumerate() {
            if batch.tokens[*row as usize] == 5 {
                logits[index * VOCABULARY] = f32::NAN;
            }
        }
        Ok(ExecuteTimes::default())
    });
    engine.submit(request(1, &[3], 6));
    engine.submit(request(2, &[6], 4));
    let seen = until_finished(&steps, 2);
    assert_eq!(finishes(&seen), [(1, FinishReason::Error), (2, FinishReason::Length)]);
    let outputs: Vec<_> = seen.iter().flat_map(|step| &step.outputs).collect();
    let failed = outputs.iter().find(|output| output.finish == Some(FinishReason::Error)).unwrap();
    assert!(failed.error.as_ref().unwrap().contains("NaN") && failed.tokens.is_empty());
    assert_eq!(
        outputs.iter().filter(|output| output.id == RequestId(1)).count(),
        3,
        "tokens 4, 5, then the end"
    );
    assert_eq!(outputs.last().unwrap().times.forward, None, "no timestamps, no time");
}

#[test]
fn prompt_that_can_never_fit_is_refused_with_both_numbers() {
    let (engine, steps) = start(count_up);
    engine.submit(request(1, &[1; 64], 1));
    let seen = until_finished(&steps, 1);
    let error = seen[0].outputs[0].error.clone().unwrap();
    assert!(error.matches("64").count() == 2, "{error}");
    engine.submit(request(2, &[1; 63], 9));
    let seen = until_finished(&steps, 1);
    assert_eq!(finishes(&seen), [(2, FinishReason::Length)]);
}

#[test]
fn panicking_callback_closes_what_it_owns_and_is_seen() {
    let (send, steps) = channel::<()>();
    let (engine, _) = start(count_up);
    engine.shutdown();
    let device = ClosureDevice(
        DeviceInfo {
            kind: "closure",
            name: String::new(),
            device_type: "Other".to_owned(),
            backend: String::new(),
            driver: String::new(),
        },
        Box::new(count_up),
    );
    let engine = EngineHandle::start(0, config(), Box::new(device), Box::new(NoSource), move |_| {
        let _owned = &send;
        panic!("no more");
    });
    engine.submit(request(1, &[1], 5));
    assert!(steps.recv().is_err(), "the channel closes instead of waiting for ever");
    assert!(!engine.is_alive() && !engine.healthy());
    engine.shutdown();
}

#[test]
fn shutdown_and_dropping_the_last_handle_abort_what_is_left() {
    let endless = |batch: &Batch, logits: &mut Vec<f32>| count_up(batch, logits);
    let (engine, steps) = start(endless);
    for id in 0..4 {
        engine.submit(request(id, &[1], 60));
    }
    engine.shutdown();
    let seen: Vec<_> = steps.iter().collect();
    assert_eq!(finishes(&seen).len(), 4, "each got its last output before the thread ended");
    assert_eq!(seen.last().unwrap().step.scheduler.num_running, 0);
    let (engine, steps) = start(endless);
    engine.submit(request(1, &[1], 60));
    drop(engine);
    let seen: Vec<_> = steps.iter().collect();
    assert_eq!(finishes(&seen).len(), 1);
}

#[test]
fn steps_are_looked_into_only_while_that_is_asked_for() {
    let (engine, steps) = start(count_up);
    engine.submit(request(1, &[1, 2], 3));
    assert!(until_finished(&steps, 1).iter().all(|step| step.trace.is_none()));
    engine.trace_steps(1.0);
    engine.submit(request(2, &[3], 2));
    engine.submit(request(3, &[4], 2));
    let traced = until_finished(&steps, 2);
    for step in traced.iter().filter(|step| step.step.num_generation_tokens > 0) {
        let trace = step.trace.as_ref().expect("every step that ran is traced");
        assert_eq!(trace.detail.num_requests, trace.requests.len() as u64);
        assert_eq!(trace.detail.num_generation_tokens, step.step.num_generation_tokens);
        let parts: Vec<StepPart> = trace.detail.parts.iter().map(|(part, ..)| *part).collect();
        assert_eq!(
            parts,
            [StepPart::Plan, StepPart::Sample],
            "a device that cannot tell leaves the rest out"
        );
        assert!(trace.detail.parts.iter().all(|(_, from, to)| from <= to));
    }
    engine.trace_steps(0.0);
    engine.submit(request(4, &[5], 2));
    assert!(until_finished(&steps, 1).iter().all(|step| step.trace.is_none()));
}

#[test]
fn a_step_that_failed_has_no_trace() {
    let (engine, steps) = start(|_, _| Err(DeviceError::Failed("planted".to_owned())));
    engine.trace_steps(1.0);
    engine.submit(request(1, &[1], 1));
    assert!(until_finished(&steps, 1).iter().all(|step| step.trace.is_none()));
}

/// Counts what lives and what was asked for.
#[derive(Default)]
struct Counts {
    devices: AtomicUsize,
    discards: AtomicUsize,
    fails: AtomicBool,
}

/// A device that counts up, counted itself.
struct CountedDevice(DeviceInfo, Arc<Counts>);

impl Device for CountedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn execute(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<ExecuteTimes, DeviceError> {
        logits.clear();
        count_up(batch, logits)
    }
}

impl Drop for CountedDevice {
    fn drop(&mut self) {
        self.1.devices.fetch_sub(1, Ordering::SeqCst);
    }
}

struct CountedSource(Arc<Counts>);

impl DeviceSource for CountedSource {
    fn open(&mut self) -> Result<Box<dyn Device>, DeviceError> {
        if self.0.fails.load(Ordering::SeqCst) {
            return Err(DeviceError::Failed("no memory".to_owned()));
        }
        self.0.devices.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(CountedDevice(info(), self.0.clone())))
    }

    fn discard(&mut self) {
        self.0.discards.fetch_add(1, Ordering::SeqCst);
    }
}

/// An engine that can sleep.
fn sleeper() -> (EngineHandle, Receiver<StepOutput>, Arc<Counts>) {
    let counts = Arc::<Counts>::default();
    let mut source = CountedSource(counts.clone());
    let device = source.open().expect("a device");
    let (send, steps) = channel();
    let engine =
        EngineHandle::start(0, config(), device, Box::new(source), move |step| drop(send.send(step)));
    (engine, steps, counts)
}

/// Sleeps and answers how deep.
fn sleep(engine: &EngineHandle, level: SleepLevel, mode: PauseMode) -> Result<Option<SleepLevel>, Arc<str>> {
    let (send, answer) = channel();
    engine.sleep(level, mode, Box::new(move |result| send.send(result).expect("asked")));
    answer.recv().expect("an answer")
}

fn wake_up(engine: &EngineHandle) -> Result<Option<SleepLevel>, Arc<str>> {
    let (send, answer) = channel();
    engine.wake_up(Box::new(move |result| send.send(result).expect("asked")));
    answer.recv().expect("an answer")
}

/// Tokens of a request until it ends, and how it does.
fn tokens_until_end(steps: &Receiver<StepOutput>, id: u64) -> (Vec<u32>, FinishReason) {
    let mut tokens = Vec::new();
    loop {
        let step = steps.recv_timeout(Duration::from_secs(20)).expect("a step");
        for output in step.outputs.into_iter().filter(|output| output.id == RequestId(id)) {
            tokens.extend(output.tokens.iter().map(|token| token.id));
            if let Some(reason) = output.finish {
                return (tokens, reason);
            }
        }
    }
}

#[test]
fn asleep_the_device_is_gone_and_requests_wait_until_it_is_back() {
    for (level, devices, discards) in
        [(SleepLevel::Pause, 1, 0), (SleepLevel::Offload, 0, 0), (SleepLevel::Discard, 0, 1)]
    {
        let (engine, steps, counts) = sleeper();
        assert_eq!(sleep(&engine, level, PauseMode::Abort), Ok(Some(level)));
        assert!(engine.is_sleeping() && engine.healthy());
        let counted = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        assert_eq!((counted(&counts.devices), counted(&counts.discards)), (devices, discards), "{level:?}");
        assert!(engine.submit(request(1, &[1, 2], 3)));
        let step = steps.recv_timeout(Duration::from_secs(20)).expect("the gauges moved");
        assert_eq!((step.step.scheduler.num_waiting_capacity, step.outputs.len()), (1, 0));
        assert_eq!(wake_up(&engine), Ok(None));
        assert!(!engine.is_sleeping());
        assert_eq!(tokens_until_end(&steps, 1), (vec![3, 4, 5], FinishReason::Length));
        engine.shutdown();
        assert_eq!(counted(&counts.devices), 0);
    }
}

#[test]
fn modes_say_what_becomes_of_running_requests() {
    let run = |mode| {
        let (engine, steps, _counts) = sleeper();
        engine.submit(request(1, &[1, 2], 60));
        steps.recv_timeout(Duration::from_secs(20)).expect("it runs");
        // An engine may be faster than this thread, but not by all 60 steps and the time to fall asleep.
        let slept = sleep(&engine, SleepLevel::Offload, mode);
        assert_eq!(slept, Ok(Some(SleepLevel::Offload)));
        if mode != PauseMode::Abort {
            assert_eq!(wake_up(&engine), Ok(None));
        }
        let (tokens, reason) = tokens_until_end(&steps, 1);
        let expected: Vec<u32> = (3..).map(|token| token % VOCABULARY as u32).take(60).collect();
        // The step that was waited for brought the first token.
        assert!(expected[1..].starts_with(&tokens), "{mode:?}: {tokens:?}");
        (tokens.len(), reason)
    };
    assert_eq!(run(PauseMode::Wait), (59, FinishReason::Length));
    assert_eq!(run(PauseMode::Keep), (59, FinishReason::Length));
    let (tokens, reason) = run(PauseMode::Abort);
    assert!(reason == FinishReason::Abort || tokens == 59);
}

#[test]
fn an_engine_that_cannot_wake_up_sleeps_on_and_can_try_again() {
    let (engine, steps, counts) = sleeper();
    for (asked, now) in [
        (SleepLevel::Pause, SleepLevel::Pause),
        (SleepLevel::Discard, SleepLevel::Discard),
        (SleepLevel::Offload, SleepLevel::Discard),
    ] {
        assert_eq!(sleep(&engine, asked, PauseMode::Keep), Ok(Some(now)), "only deeper");
    }
    engine.submit(request(1, &[1, 2], 1));
    counts.fails.store(true, Ordering::SeqCst);
    assert_eq!(wake_up(&engine).expect_err("no memory").as_ref(), "the device failed: no memory");
    assert!(engine.is_sleeping());
    counts.fails.store(false, Ordering::SeqCst);
    assert_eq!(wake_up(&engine), Ok(None));
    assert_eq!(tokens_until_end(&steps, 1), (vec![3], FinishReason::Length));
    assert_eq!(wake_up(&engine), Ok(None), "nothing to do");
    assert_eq!(sleep(&engine, SleepLevel::Offload, PauseMode::Wait), Ok(Some(SleepLevel::Offload)));
    engine.submit(request(2, &[1, 2], 1));
    engine.shutdown();
    assert_eq!(tokens_until_end(&steps, 2), (vec![], FinishReason::Abort));
}
