//! Between the HTTP tasks and the engine thread: one task that turns the engine's steps into text.
//!
//! An HTTP task opens a request with [`Frontend::open`] and reads [`Delta`]s from the returned
//! [`Generation`]. The task behind it (`pump`) owns every open request: it detokenises, looks for stop
//! strings, accounts (telemetry) and hands the deltas on. Rendering them as JSON is the API's business;
//! choosing tokens is the engine's.
//!
//! A request may have several choices. Each is a request of the engine with its own telemetry guard; they come
//! back through one [`Generation`], each delta with the index of its choice.
//!
//! Everything reaches the task through one channel of [`Event`]s, so an opening always comes before the
//! steps that answer it, and neither side ever waits for the other: a slow reader's deltas queue up in its
//! own channel, bounded by its `max_tokens`.
//!
//! Invariant: an opened request ends exactly once, whatever happens: by its last output, by a stop string,
//! by the engine's answer to an abort (a [`Generation`] that is dropped asks for one), or, when the engine
//! is gone, as an error. Only then is its telemetry guard closed.

mod admission;
mod decoder;
mod heartbeat;
mod pump;
mod stop;
mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use limpid_engine::engine::{EngineHandle, PauseMode, Reply, SleepLevel, SleepReply};
use limpid_engine::request::{EngineRequest, RequestId, SamplingParams, Siblings, StepOutput};
use limpid_telemetry::observation::{FinishReason, SleepOperation, SleepState};
use limpid_telemetry::{
    HttpSpan, ModelTelemetry, Operation, RequestGuard, RequestOutcome, RequestParams, RequestStarted,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

pub use admission::{AdmissionLimits, NotAdmitted};
pub use decoder::{Logprob, TokenLogprob};
pub use text::TextModel;

use admission::{Admission, Ticket};
use decoder::Decoder;
use heartbeat::Heartbeat;

/// `error.type` of a request that the engine gave up.
pub(crate) const ENGINE_ERROR: &str = "engine_error";
/// `error.type` of a request whose engine is gone.
pub(crate) const ENGINE_GONE: &str = "engine_unavailable";

/// What the frontend needs of an engine.
pub trait Engine: Send + Sync {
    /// Hands a request over. `false` if the engine has ended.
    fn submit(&self, request: EngineRequest) -> bool;
    /// Asks for a request's end; an unknown or finished one is ignored.
    fn abort(&self, id: RequestId);
    /// Forgets every cached prefix; with `preempt` even if requests run.
    fn reset_prefix_cache(&self, preempt: bool, done: Reply);
    /// Stands still and gives up what `level` says, as soon as `mode` allows it.
    fn sleep(&self, level: SleepLevel, mode: PauseMode, done: SleepReply);
    /// Goes on.
    fn wake_up(&self, done: SleepReply);
    /// Whether it sleeps.
    fn is_sleeping(&self) -> bool;
    /// Whether it can serve requests: it runs, and its device was not lost.
    fn is_healthy(&self) -> bool;
    /// Aborts everything, reports it and ends. Blocks until it has.
    fn shutdown(&self);
}

impl Engine for EngineHandle {
    fn submit(&self, request: EngineRequest) -> bool {
        EngineHandle::submit(self, request)
    }

    fn abort(&self, id: RequestId) {
        EngineHandle::abort(self, id);
    }

    fn reset_prefix_cache(&self, preempt: bool, done: Reply) {
        EngineHandle::reset_prefix_cache(self, preempt, done);
    }

    fn sleep(&self, level: SleepLevel, mode: PauseMode, done: SleepReply) {
        EngineHandle::sleep(self, level, mode, done);
    }

    fn wake_up(&self, done: SleepReply) {
        EngineHandle::wake_up(self, done);
    }

    fn is_sleeping(&self) -> bool {
        EngineHandle::is_sleeping(self)
    }

    fn is_healthy(&self) -> bool {
        EngineHandle::healthy(self)
    }

    fn shutdown(&self) {
        EngineHandle::shutdown(self);
    }
}

/// Everything that the frontend's task reacts to.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every event is a step, and a box for each would cost more"
)]
enum Event {
    /// A request that is about to be submitted.
    Open(Box<OpenRequest>),
    /// The engine ended a step.
    Step(StepOutput),
    /// Abort every open request.
    AbortAll,
    /// The engine's callback is gone, so no more steps will come.
    EngineEnded,
}

/// The engine's way in: hand it to the engine as the callback of its steps. When it is dropped, the engine
/// counts as ended.
pub struct StepSink {
    events: mpsc::UnboundedSender<Event>,
}

impl StepSink {
    /// Takes a step in. Never blocks.
    pub fn step(&self, output: StepOutput) {
        // Fails only once the frontend has ended, when nobody is left to be told.
        let _ = self.events.send(Event::Step(output));
    }
}

impl Drop for StepSink {
    fn drop(&mut self) {
        let _ = self.events.send(Event::EngineEnded);
    }
}

/// The events of a frontend that is not running yet.
pub struct Events {
    sender: mpsc::UnboundedSender<Event>,
    receiver: mpsc::UnboundedReceiver<Event>,
}

/// The two ends that an engine and its frontend are built with.
pub fn channel() -> (StepSink, Events) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (StepSink { events: sender.clone() }, Events { sender, receiver })
}

/// A request as the API has parsed and tokenised it.
pub struct NewRequest {
    /// `chatcmpl-…` or `cmpl-…`; for telemetry only.
    pub id: String,
    /// Kind of request.
    pub operation: Operation,
    /// When the request's head was read.
    pub arrival: Instant,
    /// Its SERVER span.
    pub http_span: Option<Arc<HttpSpan>>,
    /// The prompt's ids; not empty.
    pub prompt: Vec<u32>,
    /// For the engine. With a seed, each choice's is larger by its index.
    pub sampling: SamplingParams,
    /// Answers to generate; at least 1.
    pub num_choices: usize,
    /// Strings that end the text; not empty ones.
    pub stop: Vec<String>,
    /// Leave control tokens out of the text.
    pub skip_special_tokens: bool,
    /// Lower runs first under the priority policy.
    pub priority: i32,
    /// Keeps the prefix caches of different callers apart.
    pub cache_salt: Option<Arc<str>>,
    /// What the client set, for the trace.
    pub recorded: RequestParams,
}

/// One piece of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Which choice this is a piece of, from 0.
    pub index: u32,
    /// Text that became certain; may be empty.
    pub text: String,
    /// Log-probabilities of the tokens whose text is out, if they were asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Set on the last delta.
    pub finish: Option<Finish>,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// The stop string or stop token of the request's own that ended it.
    pub stop: Option<StopCause>,
    /// What it took.
    pub usage: Usage,
    /// Sum of the tokens' log-probabilities; 0 unless they were asked for.
    pub cumulative_logprob: f64,
    /// The engine's explanation, with [`FinishReason::Error`].
    pub error: Option<Arc<str>>,
    /// The engine is gone: nothing else will be answered either.
    pub engine_gone: bool,
}

/// What the request itself named as an end.
#[derive(Clone, Debug, PartialEq)]
pub enum StopCause {
    /// One of `stop`.
    Text(String),
    /// One of `stop_token_ids`.
    Token(u32),
}

/// Token counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated, a token that ended the text included.
    pub completion_tokens: usize,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: usize,
}

impl Usage {
    /// Takes in what one choice took: the prompt is one for all of them, and so is what of it was cached for the
    /// first.
    pub fn add_choice(&mut self, index: u32, choice: Usage) {
        if index == 0 {
            self.prompt_tokens = choice.prompt_tokens;
            self.cached_tokens = choice.cached_tokens;
        }
        self.completion_tokens += choice.completion_tokens;
    }
}

/// An open choice of a request as the frontend's task keeps it.
struct OpenRequest {
    id: RequestId,
    index: u32,
    guard: RequestGuard,
    ticket: Ticket,
    decoder: Decoder,
    usage: Usage,
    cumulative_logprob: f64,
    was_scheduled: bool,
    deltas: mpsc::UnboundedSender<Delta>,
}

impl OpenRequest {
    /// Closes the books first and answers then, so that whoever has the answer finds it counted.
    fn end(self, now: Instant, error_type: Option<&'static str>, last: Delta) {
        drop(self.ticket);
        if let Some(finish) = &last.finish {
            self.guard.finish(RequestOutcome { now, reason: finish.reason, error_type });
        }
        // Nobody listens any more if the client went away.
        let _ = self.deltas.send(last);
    }

    /// Ends the request because the engine cannot.
    fn engine_gone(self, now: Instant) {
        let finish = Finish {
            reason: FinishReason::Error,
            stop: None,
            usage: self.usage,
            cumulative_logprob: self.cumulative_logprob,
            error: Some("the engine has ended".into()),
            engine_gone: true,
        };
        let last = Delta { index: self.index, finish: Some(finish), ..Delta::default() };
        self.end(now, Some(ENGINE_GONE), last);
    }
}

/// Handle to a running frontend. Cheap to clone.
#[derive(Clone)]
pub struct Frontend {
    engine: Arc<dyn Engine>,
    telemetry: ModelTelemetry,
    events: mpsc::UnboundedSender<Event>,
    admission: Arc<Admission>,
    next_id: Arc<AtomicU64>,
    alive: Arc<AtomicBool>,
    num_open: watch::Receiver<usize>,
    heartbeat: Arc<Heartbeat>,
    iteration_timeout: Duration,
}

impl Frontend {
    /// Starts the task. It ends after the engine does. An engine with open requests that makes no step for
    /// `iteration_timeout` counts as stalled.
    pub fn start(
        events: Events,
        engine: Arc<dyn Engine>,
        telemetry: ModelTelemetry,
        text: Arc<dyn TextModel>,
        limits: AdmissionLimits,
        iteration_timeout: Duration,
    ) -> (Frontend, JoinHandle<()>) {
        let alive = Arc::new(AtomicBool::new(true));
        let (num_open_sender, num_open) = watch::channel(0);
        let heartbeat = Arc::new(Heartbeat::new());
        let pump = pump::Pump::new(
            Arc::clone(&engine),
            telemetry.clone(),
            text,
            Arc::clone(&alive),
            num_open_sender,
            Arc::clone(&heartbeat),
        );
        let task = tokio::spawn(pump.run(events.receiver));
        let frontend = Frontend {
            engine,
            telemetry,
            events: events.sender,
            admission: Arc::new(Admission::new(limits)),
            next_id: Arc::new(AtomicU64::new(0)),
            alive,
            num_open,
            heartbeat,
            iteration_timeout,
        };
        (frontend, task)
    }

    /// Hands a request to the engine, choice by choice. If the engine is gone, the answer is one delta per
    /// choice that says so.
    ///
    /// # Errors
    /// The server is full. The refusal is counted, and nothing else of the request is.
    pub fn open(&self, request: NewRequest) -> Result<Generation, NotAdmitted> {
        let NewRequest { prompt, sampling, num_choices, .. } = request;
        let tickets = self
            .admission
            .admit(num_choices, prompt.len())
            .inspect_err(|refused| self.telemetry.admission_rejected(refused.limit))?;
        let first_id = self.next_id.fetch_add(num_choices as u64, Ordering::Relaxed);
        let guards = self.telemetry.choices(
            request.http_span,
            RequestStarted {
                arrival: request.arrival,
                operation: request.operation,
                id: request.id,
                num_prompt_tokens: prompt.len() as u64,
                max_tokens: sampling.max_tokens as u64,
                params: request.recorded,
            },
            num_choices,
        );
        let (sender, receiver) = mpsc::unbounded_channel();
        let ids = (first_id..).map(RequestId);
        let generation = Generation {
            open: (0..).zip(ids.clone()).take(num_choices).collect(),
            deltas: receiver,
            engine: Arc::clone(&self.engine),
        };
        let mut opened = true;
        for ((index, id), (guard, ticket)) in (0..).zip(ids).zip(guards.into_iter().zip(tickets)) {
            let open = OpenRequest {
                id,
                index,
                guard,
                ticket,
                decoder: Decoder::new(&sampling, request.stop.clone(), request.skip_special_tokens),
                usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
                cumulative_logprob: 0.0,
                was_scheduled: false,
                deltas: sender.clone(),
            };
            if let Err(mpsc::error::SendError(event)) = self.events.send(Event::Open(Box::new(open))) {
                opened = false;
                if let Event::Open(open) = event {
                    open.engine_gone(Instant::now());
                }
            }
        }
        if !opened {
            return Ok(generation);
        }
        let prompt: Arc<[u32]> = prompt.into();
        for (index, id) in &generation.open {
            let mut params = sampling.clone();
            params.seed = params.seed.map(|seed| seed.wrapping_add(u64::from(*index)));
            // A request that the engine does not take is ended by the task, which learns of the engine's end.
            let _submitted = self.engine.submit(EngineRequest {
                id: *id,
                prompt: Arc::clone(&prompt),
                params,
                priority: request.priority,
                arrival: request.arrival,
                cache_salt: request.cache_salt.clone(),
                siblings: (num_choices > 1).then_some(Siblings(first_id)),
            });
        }
        Ok(generation)
    }

    /// Forgets every cached prefix; `Some(false)` if a request holds a block of the cache and `preempt` is not
    /// set, `None` if the engine is gone.
    pub async fn reset_prefix_cache(&self, preempt: bool) -> Option<bool> {
        let (answer, answered) = oneshot::channel();
        let done = move |reset| {
            // Whoever asked may have left.
            let _ = answer.send(reset);
        };
        self.engine.reset_prefix_cache(preempt, Box::new(done));
        answered.await.ok()
    }

    /// Sends the engine to sleep and returns once it sleeps; `None` if the engine is gone.
    pub async fn sleep(&self, level: SleepLevel, mode: PauseMode) -> Option<Result<(), Arc<str>>> {
        let state = match level {
            SleepLevel::Pause => SleepState::Paused,
            SleepLevel::Offload => SleepState::WeightsOffloaded,
            SleepLevel::Discard => SleepState::DiscardAll,
        };
        let _operation = self.telemetry.sleep_operation(SleepOperation::Sleep);
        self.change_sleep(state, |done| self.engine.sleep(level, mode, done)).await
    }

    /// Wakes the engine up and returns once it is awake; `None` if the engine is gone.
    pub async fn wake_up(&self) -> Option<Result<(), Arc<str>>> {
        let _operation = self.telemetry.sleep_operation(SleepOperation::Wake);
        self.change_sleep(SleepState::Awake, |done| self.engine.wake_up(done)).await
    }

    /// Whether the engine sleeps.
    pub fn is_sleeping(&self) -> bool {
        self.engine.is_sleeping()
    }

    async fn change_sleep(
        &self,
        state: SleepState,
        ask: impl FnOnce(SleepReply),
    ) -> Option<Result<(), Arc<str>>> {
        let (answer, answered) = oneshot::channel();
        let telemetry = self.telemetry.clone();
        let heartbeat = Arc::clone(&self.heartbeat);
        let done = move |result: Result<(), Arc<str>>| {
            if result.is_ok() {
                heartbeat.beat();
                telemetry.sleep_state_changed(state);
            }
            // Whoever asked may have left.
            let _ = answer.send(result);
        };
        ask(Box::new(done));
        answered.await.ok()
    }

    /// Whether requests can be answered: the frontend's task runs and the engine is well.
    pub fn is_healthy(&self) -> bool {
        self.alive.load(Ordering::Acquire) && self.engine.is_healthy()
    }

    /// How long the engine has made no step though requests are open and it is awake; `None` while that is shorter
    /// than the limit.
    pub fn stalled(&self) -> Option<Duration> {
        let silence = self.heartbeat.silence();
        (silence > self.iteration_timeout && self.num_open() > 0 && !self.is_sleeping()).then_some(silence)
    }

    /// Asks for the end of every open request.
    pub fn abort_all(&self) {
        let _ = self.events.send(Event::AbortAll);
    }

    /// Requests that are open.
    pub fn num_open(&self) -> usize {
        *self.num_open.borrow()
    }

    /// Returns once no request is open.
    pub async fn drained(&self) {
        let mut num_open = self.num_open.clone();
        // An error means that the task has ended, and with it every request.
        let _ = num_open.wait_for(|num_open| *num_open == 0).await;
    }

    /// Ends the engine, whose last outputs end what is open; the frontend's task ends after it. Blocks.
    pub fn shutdown(&self) {
        self.engine.shutdown();
    }
}

/// The answer to one request, piece by piece. Dropping it before the last piece aborts what is still open of the
/// request.
pub struct Generation {
    /// Index and id of the choices that have not ended.
    open: Vec<(u32, RequestId)>,
    deltas: mpsc::UnboundedReceiver<Delta>,
    engine: Arc<dyn Engine>,
}

impl Generation {
    /// The next piece of any choice; `None` after the last one of the last choice, or if the frontend's task
    /// failed before it.
    pub async fn next(&mut self) -> Option<Delta> {
        let delta = self.deltas.recv().await;
        match &delta {
            Some(delta) if delta.finish.is_none() => {}
            Some(delta) => self.open.retain(|(index, _)| *index != delta.index),
            None => self.open.clear(),
        }
        delta
    }

    /// Whether every choice has ended.
    pub fn is_finished(&self) -> bool {
        self.open.is_empty()
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        for (_, id) in &self.open {
            self.engine.abort(*id);
        }
    }
}
