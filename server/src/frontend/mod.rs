//! Between the HTTP tasks and the engine threads: a task for each engine that turns its steps into text.
//!
//! An HTTP task opens a request with [`Frontend::open`], which chooses an engine for it ([`routing`]), and reads
//! [`Delta`]s from the returned [`Generation`]. The engine's task (`pump`) owns every request that is open there:
//! it detokenises, looks for stop strings, accounts (telemetry) and hands the deltas on. Rendering them as JSON is
//! the API's business; choosing tokens is the engine's.
//!
//! A request may have several choices. Each is a request of the same engine with its own telemetry guard; they come
//! back through one [`Generation`], each delta with the index of its choice.
//!
//! Everything reaches an engine's task through one channel of [`Event`]s, so an opening always comes before the
//! steps that answer it, and neither side ever waits for the other: a slow reader's deltas add up to one for each
//! choice ([`pieces`]), bounded by its `max_tokens`.
//!
//! Invariant: an opened request ends exactly once, whatever happens: by its last output, by a stop string,
//! by the engine's answer to an abort (a [`Generation`] that is dropped asks for one), or, when its engine
//! is gone, as an error. Only then is its telemetry guard closed.

mod admission;
mod control;
mod decoder;
mod engine;
mod heartbeat;
mod pieces;
mod pump;
mod routing;
mod stop;
mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use limpid_engine::request::{EngineRequest, RequestId, SamplingParams, Siblings, StepOutput};
use limpid_telemetry::observation::FinishReason;
use limpid_telemetry::{
    HttpSpan, ModelTelemetry, Operation, RequestGuard, RequestOutcome, RequestParams, RequestStarted,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

pub use admission::{AdmissionLimits, NotAdmitted};
pub use decoder::{Logprob, TokenLogprob};
pub use engine::Engine;
pub use pieces::Collect;
pub use text::TextModel;

use admission::{Admission, Ticket};
use decoder::Decoder;
use heartbeat::Heartbeat;
use routing::{Load, Place, Router};

/// `error.type` of a request that the engine gave up.
pub(crate) const ENGINE_ERROR: &str = "engine_error";
/// `error.type` of a request whose engine is gone.
pub(crate) const ENGINE_GONE: &str = "engine_unavailable";

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

/// The events of an engine whose frontend is not running yet.
pub struct Events {
    sender: mpsc::UnboundedSender<Event>,
    receiver: mpsc::UnboundedReceiver<Event>,
}

/// The two ends that an engine and its frontend are built with.
pub fn channel() -> (StepSink, Events) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (StepSink { events: sender.clone() }, Events { sender, receiver })
}

/// An engine that runs, for a frontend that does not yet.
pub struct EngineParts {
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// What it says.
    pub events: Events,
    /// Where what it does is recorded.
    pub telemetry: ModelTelemetry,
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
    /// The engine to use, by its index; `None` leaves the choice open.
    pub data_parallel_rank: Option<usize>,
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

impl Delta {
    /// Whether the engine gave up here. What was said before is a piece of its own.
    fn has_failed(&self) -> bool {
        self.finish.as_ref().is_some_and(|finish| finish.reason == FinishReason::Error)
    }
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
    place: Place,
    decoder: Decoder,
    usage: Usage,
    cumulative_logprob: f64,
    was_scheduled: bool,
    deltas: pieces::Writer,
}

impl OpenRequest {
    /// Closes the books first and answers then, so that whoever has the answer finds it counted.
    fn end(self, now: Instant, error_type: Option<&'static str>, last: Delta) {
        drop((self.ticket, self.place));
        if let Some(finish) = &last.finish {
            self.guard.finish(RequestOutcome { now, reason: finish.reason, error_type });
        }
        self.deltas.finish(last);
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

/// An engine as the frontend sees it.
struct Lane {
    engine: Arc<dyn Engine>,
    telemetry: ModelTelemetry,
    events: mpsc::UnboundedSender<Event>,
    /// Whether its task runs, and its thread.
    alive: Arc<AtomicBool>,
    load: Arc<Load>,
    heartbeat: Arc<Heartbeat>,
}

/// Handle to a running frontend. Cheap to clone.
#[derive(Clone)]
pub struct Frontend {
    /// At least one.
    lanes: Arc<[Lane]>,
    router: Arc<Router>,
    admission: Arc<Admission>,
    next_id: Arc<AtomicU64>,
    num_open: watch::Receiver<usize>,
    /// How long an engine with open requests may make no step.
    iteration_timeout: Duration,
}

impl Frontend {
    /// Starts a task for each engine. It ends after its engine does. `prefix_block_size` are the tokens in a block
    /// of the prefix caches; `None` if there are none. An engine with open requests that makes no step for
    /// `iteration_timeout` counts as stalled.
    ///
    /// # Panics
    /// Without an engine.
    pub fn start(
        engines: Vec<EngineParts>,
        text: &Arc<dyn TextModel>,
        limits: AdmissionLimits,
        prefix_block_size: Option<usize>,
        iteration_timeout: Duration,
    ) -> (Frontend, Vec<JoinHandle<()>>) {
        assert!(!engines.is_empty(), "somebody has to compute");
        let (num_open_sender, num_open) = watch::channel(0);
        let num_open_sender = Arc::new(num_open_sender);
        let mut tasks = Vec::new();
        let lane = |EngineParts { engine, events, telemetry }| {
            let lane = Lane {
                engine,
                telemetry,
                events: events.sender,
                alive: Arc::new(AtomicBool::new(true)),
                load: Arc::default(),
                heartbeat: Arc::new(Heartbeat::new()),
            };
            let pump = pump::Pump::new(&lane, Arc::clone(text), Arc::clone(&num_open_sender));
            tasks.push(tokio::spawn(pump.run(events.receiver)));
            lane
        };
        let frontend = Frontend {
            lanes: engines.into_iter().map(lane).collect(),
            router: Arc::new(Router::new(prefix_block_size)),
            admission: Arc::new(Admission::new(limits)),
            next_id: Arc::new(AtomicU64::new(0)),
            num_open,
            iteration_timeout,
        };
        (frontend, tasks)
    }

    /// Hands a request to an engine, choice by choice. If the engine is gone, the answer is one delta per
    /// choice that says so.
    ///
    /// # Errors
    /// The server is full. The refusal is counted, and nothing else of the request is.
    ///
    /// # Panics
    /// If [`NewRequest::data_parallel_rank`] is the index of no engine.
    pub fn open(&self, request: NewRequest) -> Result<Generation, NotAdmitted> {
        let num_choices = request.num_choices;
        let tickets = self
            .admission
            .admit(num_choices, request.prompt.len())
            // The door is in front of all engines, and the counter knows none.
            .inspect_err(|refused| self.lanes[0].telemetry.admission_rejected(refused.limit))?;
        let (lane, places) = self.assign(&request, num_choices);
        let first_id = self.next_id.fetch_add(num_choices as u64, Ordering::Relaxed);
        let NewRequest { prompt, sampling, .. } = request;
        let guards = lane.telemetry.choices(
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
        let (writer, reader) = pieces::pieces();
        let ids = (first_id..).map(RequestId);
        let generation = Generation {
            open: (0..).zip(ids.clone()).take(num_choices).collect(),
            deltas: reader,
            engine: Arc::clone(&lane.engine),
        };
        let mut opened = true;
        let held = guards.into_iter().zip(tickets).zip(places);
        for ((index, id), ((guard, ticket), place)) in (0..).zip(ids).zip(held) {
            let open = OpenRequest {
                id,
                index,
                guard,
                ticket,
                place,
                decoder: Decoder::new(&sampling, request.stop.clone(), request.skip_special_tokens),
                usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
                cumulative_logprob: 0.0,
                was_scheduled: false,
                deltas: writer.clone(),
            };
            if let Err(mpsc::error::SendError(event)) = lane.events.send(Event::Open(Box::new(open))) {
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
            let _submitted = lane.engine.submit(EngineRequest {
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

    /// Asks for the end of every open request.
    pub fn abort_all(&self) {
        for lane in &*self.lanes {
            // The task of an engine that is gone has nothing open.
            let _ = lane.events.send(Event::AbortAll);
        }
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
}

/// The answer to one request, piece by piece. Dropping it before the last piece aborts what is still open of the
/// request.
pub struct Generation {
    /// Index and id of the choices that have not ended.
    open: Vec<(u32, RequestId)>,
    deltas: pieces::Reader,
    engine: Arc<dyn Engine>,
}

impl Generation {
    /// The next piece of any choice; `None` after the last one of the last choice, or if the frontend's task
    /// failed before it. Pieces of one choice that have piled up because the client reads more slowly than the
    /// engine writes are one, as in vLLM, and so are those that `collect` says; the last piece of a choice waits
    /// for nothing.
    pub async fn next(&mut self, collect: Collect) -> Option<Delta> {
        let next = self.deltas.next(collect).await;
        match next.as_ref().map(|delta| (delta.index, delta.finish.is_some())) {
            Some((ended, true)) => self.open.retain(|(index, _)| *index != ended),
            Some((_, false)) => {}
            None => self.open.clear(),
        }
        next
    }

    /// Whether the next piece is there already: it came together with the latest one.
    pub fn is_ready(&self) -> bool {
        self.deltas.is_ready()
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
