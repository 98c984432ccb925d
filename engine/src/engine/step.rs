//! The inside of the engine thread: one step after the other.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use limpid_telemetry::observation::{SchedulerStats, StepWork};
use rayon::prelude::*;

use super::sleep::Sleep;
use super::{Command, State, fill_batch};
use crate::config::ResolvedConfig;
use crate::device::{Batch, Candidate, Device, DeviceError, DeviceSource, ExecuteDetail};
use crate::program::CostModel;
use crate::request::{
    EngineRequest, FinishReason, RequestId, SampledToken, StepDetail, StepOutput, StepPart, StepTimes,
    StepTrace,
};
use crate::sampler::Sampler;
use crate::scheduler::{ModelOutput, Outcome, Scheduler, StepPlan};

/// Logits from which on sampling is worth spreading over threads: below, waking them costs more than they save.
const PARALLEL_LOGITS: usize = 1 << 17;

/// A token, or why there is none.
type Sampled = Result<SampledToken, Arc<str>>;

/// What the thread owns, the callback apart.
pub(super) struct Engine {
    pub(super) index: usize,
    commands: Receiver<Command>,
    pub(super) state: Arc<State>,
    /// `None` only while the engine sleeps.
    pub(super) device: Option<Box<dyn Device>>,
    pub(super) source: Box<dyn DeviceSource>,
    pub(super) sleep: Sleep,
    /// Why the device is of no more use.
    pub(super) lost: Option<Arc<str>>,
    block_size: usize,
    cost: CostModel,
    /// Of the layers that have one.
    window: Option<usize>,
    pub(super) scheduler: Scheduler,
    samplers: HashMap<RequestId, Box<Sampler>>,
    reported: SchedulerStats,
    batch: Batch,
    /// Of the rows that are wanted whole.
    logits: Vec<f32>,
    /// Samplers of those rows.
    sampling: Vec<(RequestId, Box<Sampler>)>,
    /// What came of those rows.
    sampled: Vec<Sampled>,
    /// Of all rows.
    results: Vec<Sampled>,
}

impl Engine {
    pub(super) fn new(
        index: usize,
        config: &ResolvedConfig,
        device: Box<dyn Device>,
        source: Box<dyn DeviceSource>,
        commands: Receiver<Command>,
        state: Arc<State>,
    ) -> Engine {
        Engine {
            index,
            commands,
            state,
            device: Some(device),
            source,
            sleep: Sleep::Awake,
            lost: None,
            block_size: config.block_size,
            cost: config.cost,
            window: config.cache_windows.iter().copied().flatten().next(),
            scheduler: Scheduler::new(config),
            samplers: HashMap::new(),
            reported: SchedulerStats::default(),
            batch: Batch::default(),
            logits: Vec::new(),
            sampling: Vec::new(),
            sampled: Vec::new(),
            results: Vec::new(),
        }
    }

    /// Runs until told to end or until nobody is left to tell.
    pub(super) fn run(&mut self, on_step: &mut dyn FnMut(StepOutput)) {
        while self.take_commands() {
            self.step(on_step);
        }
        // Whoever asked for the end may have overtaken others; they get an answer too.
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Submit(request, handed_over) = command {
                self.submit(*request, handed_over);
            }
        }
        self.scheduler.end_all(FinishReason::Abort, None);
        self.step(on_step);
    }

    /// Takes in what has been asked for, and waits for it if there is nothing to do. `false`: end.
    fn take_commands(&mut self) -> bool {
        // Asleep, everything there was to report has been reported.
        if self.scheduler.is_idle() || matches!(self.sleep, Sleep::Asleep(_)) {
            match self.commands.recv() {
                Ok(Command::Shutdown) | Err(_) => return false,
                Ok(command) => self.take(command),
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(Command::Shutdown) | Err(TryRecvError::Disconnected) => return false,
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(request, handed_over) => self.submit(*request, handed_over),
            Command::Abort(id) => {
                if self.scheduler.abort(id) {
                    self.samplers.remove(&id);
                }
            }
            Command::ResetPrefixCache { preempt, done } => {
                if preempt {
                    self.scheduler.preempt_all(Instant::now());
                }
                done(self.scheduler.reset_prefix_cache());
            }
            Command::Sleep(level, mode, done) => self.sleep(level, mode, done),
            Command::WakeUp(done) => self.wake_up(done),
            Command::Shutdown => unreachable!("handled where commands are received"),
        }
    }

    /// Waiting for the step that runs meanwhile is waiting in the queue, so the request is QUEUED from the moment
    /// it was handed over.
    fn submit(&mut self, request: EngineRequest, handed_over: Instant) {
        let id = request.id;
        if let Some(error) = &self.lost {
            self.scheduler.refuse(id, error.clone());
            return;
        }
        let sampler = Sampler::new(request.params.clone(), &request.prompt, rand::random());
        if self.scheduler.submit(request, handed_over) {
            self.samplers.insert(id, Box::new(sampler));
        }
    }

    /// Schedule, execute, apply; reports if there is anything new.
    fn step(&mut self, on_step: &mut dyn FnMut(StepOutput)) {
        let started = Instant::now();
        let plan = self.scheduler.plan(started);
        let mut times = StepTimes { scheduler: started.elapsed(), ..StepTimes::default() };
        let worked = !plan.is_empty();
        let mut trace = (worked && self.is_chosen()).then(|| Box::new(trace_of(&plan)));
        let failure = match worked {
            true => self.execute(&plan, &mut times, trace.as_deref_mut()).err(),
            false => None,
        };
        let computed = worked && failure.is_none();
        let (outcome, lost) = match failure {
            None => (Outcome::Sampled(&mut self.results), None),
            Some(Failure { error, lost }) => {
                trace = None;
                tracing::error!(
                    "engine {}: a step of {} requests failed: {error}",
                    self.index,
                    plan.scheduled().len()
                );
                (Outcome::Failed(error.clone()), lost.then_some(error))
            }
        };
        let finished = Instant::now();
        let mut output = self.scheduler.apply(plan, ModelOutput { outcome, times }, finished);
        if computed {
            output.step.work = self.work();
            output.step.apply = finished.elapsed();
        }
        if let Some(trace) = &mut trace {
            trace.detail.num_generation_tokens = output.step.num_generation_tokens;
        }
        output.trace = trace;
        if let Some(error) = lost {
            self.state.healthy.store(false, Ordering::Release);
            self.scheduler.end_all(FinishReason::Error, Some(error.clone()));
            self.lost = Some(error);
        }
        if worked || !output.outputs.is_empty() || output.step.scheduler != self.reported {
            for ended in output.outputs.iter().filter(|output| output.finish.is_some()) {
                self.samplers.remove(&ended.id);
            }
            self.reported = output.step.scheduler;
            on_step(output);
        }
        self.fall_asleep_if_quiet();
    }

    /// What the batch cost.
    fn work(&self) -> StepWork {
        let shape = self.batch.shape(self.window);
        let cost = self.cost.cost(shape);
        StepWork {
            flops: cost.flops,
            bytes_read: cost.bytes_read,
            bytes_written: cost.bytes_written,
            num_context_tokens: shape.context,
        }
    }

    /// Whether this step is to be looked into.
    fn is_chosen(&self) -> bool {
        let ratio = f64::from_bits(self.state.step_trace_ratio.load(Ordering::Relaxed));
        ratio > 0.0 && rand::random::<f64>() < ratio
    }

    /// Computes the plan's batch and samples into `results`.
    fn execute(
        &mut self,
        plan: &StepPlan,
        times: &mut StepTimes,
        trace: Option<&mut StepTrace>,
    ) -> Result<(), Failure> {
        let planned = Instant::now();
        self.results.clear();
        fill_batch(&self.scheduler, plan, self.block_size, &mut self.batch);
        let device = self.device.as_mut().expect("an engine that is awake has a device");
        let most = device.max_candidates();
        if most > 0 {
            let needed = |id: RequestId| self.samplers[&id].num_candidates(most).unwrap_or(0) as u32;
            self.batch.candidates.extend(sampling(plan).map(needed));
        }
        let handed_over = Instant::now();
        let (batch, logits) = (&self.batch, &mut self.logits);
        // A device that panicked is in no known state, like one that was lost.
        let mut inside = trace.is_some().then(ExecuteDetail::default);
        let executed = catch_unwind(AssertUnwindSafe(|| match &mut inside {
            None => device.execute(batch, logits),
            Some(detail) => device.execute_detailed(batch, logits, detail),
        }));
        let measured = match executed {
            Ok(Ok(measured)) => measured,
            Ok(Err(error)) => {
                times.execute = handed_over.elapsed();
                let lost = matches!(error, DeviceError::Lost(_));
                return Err(Failure { error: error.to_string().into(), lost });
            }
            Err(panic) => {
                times.execute = handed_over.elapsed();
                let error = format!("the device was lost: it panicked: {}", panic_text(&*panic));
                return Err(Failure { error: error.into(), lost: true });
            }
        };
        let executed = Instant::now();
        let sampled = self.sample(plan);
        times.forward = measured.forward;
        times.execute = handed_over.elapsed();
        if let (Some(trace), Some(inside)) = (trace, inside) {
            let detail = &mut trace.detail;
            detail.num_tokens = self.batch.tokens.len() as u64;
            detail.parts.push((StepPart::Plan, planned - times.scheduler, planned));
            if let Some((from, to)) = inside.forward {
                detail.parts.push((StepPart::Upload, planned, from));
                detail.parts.push((StepPart::Forward, from, to));
                detail.parts.push((StepPart::ReadBack, to, executed));
            }
            detail.parts.push((StepPart::Sample, executed, Instant::now()));
            detail.ops = inside.ops;
        }
        sampled
    }

    /// Samples from what the device gave for the batch.
    fn sample(&mut self, plan: &StepPlan) -> Result<(), Failure> {
        self.sample_whole_rows(plan)?;
        let device = self.device.as_ref().expect("an engine that is awake has a device");
        let mut picked: &[Candidate] = device.candidates();
        let mut sampled = self.sampled.drain(..);
        for (index, id) in sampling(plan).enumerate() {
            let count = self.batch.num_candidates(index);
            if count == 0 {
                self.results.extend(sampled.next());
                continue;
            }
            let Some((own, rest)) = picked.split_at_checked(count) else {
                let error = format!("the device returned {} of {count} candidates", picked.len());
                return Err(Failure { error: error.into(), lost: false });
            };
            picked = rest;
            // Too little work to be spread over threads.
            let sampler = self.samplers.get_mut(&id).expect("a live request has a sampler");
            self.results.push(sampler.sample_picked(own).map_err(|error| error.to_string().into()));
        }
        Ok(())
    }

    /// Samples, into `sampled`, the rows that came whole.
    fn sample_whole_rows(&mut self, plan: &StepPlan) -> Result<(), Failure> {
        self.sampled.clear();
        let rows = self.batch.num_whole_rows();
        if rows == 0 {
            return Ok(());
        }
        let vocabulary = self.logits.len() / rows;
        if vocabulary == 0 || vocabulary * rows != self.logits.len() {
            let error = format!("the device returned {} logits for {rows} rows", self.logits.len());
            return Err(Failure { error: error.into(), lost: false });
        }
        for (index, id) in sampling(plan).enumerate() {
            if self.batch.num_candidates(index) == 0 {
                let sampler = self.samplers.remove(&id).expect("a live request has a sampler");
                self.sampling.push((id, sampler));
            }
        }
        let sample = |((_, sampler), row): (&mut (RequestId, Box<Sampler>), &mut [f32])| {
            sampler.sample(row).map_err(|error| error.to_string().into())
        };
        if self.logits.len() < PARALLEL_LOGITS {
            let rows = self.logits.chunks_exact_mut(vocabulary);
            self.sampled.extend(self.sampling.iter_mut().zip(rows).map(sample));
        } else {
            let rows = self.logits.par_chunks_exact_mut(vocabulary);
            self.sampling.par_iter_mut().zip(rows).map(sample).collect_into_vec(&mut self.sampled);
        }
        self.samplers.extend(self.sampling.drain(..));
        Ok(())
    }
}

/// The requests of a plan that sample, in the order of the batch's wanted rows.
fn sampling(plan: &StepPlan) -> impl Iterator<Item = RequestId> {
    plan.scheduled().iter().filter(|scheduled| scheduled.samples).map(|scheduled| scheduled.id)
}

/// The trace of a step before anything is known but its batch.
fn trace_of(plan: &StepPlan) -> StepTrace {
    let requests: Vec<RequestId> = plan.scheduled().iter().map(|scheduled| scheduled.id).collect();
    let detail = StepDetail { num_requests: requests.len() as u64, ..StepDetail::default() };
    StepTrace { requests, detail }
}

/// Why a batch came to nothing.
struct Failure {
    error: Arc<str>,
    /// The device is of no more use.
    lost: bool,
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
