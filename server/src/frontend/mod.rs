//! Between the HTTP tasks and the engine thread: one task that turns the engine's steps into text.
//!
//! An HTTP task opens a request with [`Frontend::open`] and reads [`Delta`]s from the returned
//! [`Generation`]. The task behind it (`pump`) owns every open request: it detokenises, looks for stop
//! strings, accounts (telemetry) and hands the deltas on. Rendering them as JSON is the API's business;
//! choosing tokens is the engine's.
//!
//! Everything reaches the task through one channel of [`Event`]s, so an opening always comes before the
//! steps that answer it, and neither side ever waits for the other: a slow reader's deltas queue up in its
//! own channel, bounded by its `max_tokens`.
//!
//! Invariant: an opened request ends exactly once, whatever happens: by its last output, by a stop string,
//! by the engine's answer to an abort (a [`Generation`] that is dropped asks for one), or, when the engine
//! is gone, as an error. Only then is its telemetry guard closed.

mod decoder;
mod pump;
mod stop;
mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use limpid_engine::engine::EngineHandle;
use limpid_engine::request::{EngineRequest, RequestId, SamplingParams, StepOutput};
use limpid_telemetry::observation::FinishReason;
use limpid_telemetry::{
    HttpSpan, ModelTelemetry, Operation, RequestGuard, RequestOutcome, RequestParams, RequestStarted,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

pub use decoder::{Logprob, TokenLogprob};
pub use text::TextModel;

use decoder::Decoder;

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
    /// For the engine.
    pub sampling: SamplingParams,
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

/// An open request as the frontend's task keeps it.
struct OpenRequest {
    id: RequestId,
    guard: RequestGuard,
    decoder: Decoder,
    usage: Usage,
    was_scheduled: bool,
    deltas: mpsc::UnboundedSender<Delta>,
}

impl OpenRequest {
    /// Closes the books first and answers then, so that whoever has the answer finds it counted.
    fn end(self, now: Instant, error_type: Option<&'static str>, last: Delta) {
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
            error: Some("the engine has ended".into()),
            engine_gone: true,
        };
        self.end(now, Some(ENGINE_GONE), Delta { finish: Some(finish), ..Delta::default() });
    }
}

/// Handle to a running frontend. Cheap to clone.
#[derive(Clone)]
pub struct Frontend {
    engine: Arc<dyn Engine>,
    telemetry: ModelTelemetry,
    events: mpsc::UnboundedSender<Event>,
    next_id: Arc<AtomicU64>,
    alive: Arc<AtomicBool>,
    num_open: watch::Receiver<usize>,
}

impl Frontend {
    /// Starts the task. It ends after the engine does.
    pub fn start(
        events: Events,
        engine: Arc<dyn Engine>,
        telemetry: ModelTelemetry,
        text: Arc<dyn TextModel>,
    ) -> (Frontend, JoinHandle<()>) {
        let alive = Arc::new(AtomicBool::new(true));
        let (num_open_sender, num_open) = watch::channel(0);
        let pump = pump::Pump::new(
            Arc::clone(&engine),
            telemetry.clone(),
            text,
            Arc::clone(&alive),
            num_open_sender,
        );
        let task = tokio::spawn(pump.run(events.receiver));
        let frontend = Frontend {
            engine,
            telemetry,
            events: events.sender,
            next_id: Arc::new(AtomicU64::new(0)),
            alive,
            num_open,
        };
        (frontend, task)
    }

    /// Hands a request to the engine. If the engine is gone, the answer is one delta that says so.
    pub fn open(&self, request: NewRequest) -> Generation {
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let guard = self.telemetry.request(
            request.http_span,
            RequestStarted {
                arrival: request.arrival,
                operation: request.operation,
                id: request.id,
                num_prompt_tokens: request.prompt.len() as u64,
                max_tokens: request.sampling.max_tokens as u64,
                params: request.recorded,
            },
        );
        let (sender, receiver) = mpsc::unbounded_channel();
        let open = OpenRequest {
            id,
            guard,
            decoder: Decoder::new(&request.sampling, request.stop, request.skip_special_tokens),
            usage: Usage { prompt_tokens: request.prompt.len(), ..Usage::default() },
            was_scheduled: false,
            deltas: sender,
        };
        let generation =
            Generation { id, deltas: receiver, engine: Arc::clone(&self.engine), finished: false };
        if let Err(mpsc::error::SendError(event)) = self.events.send(Event::Open(Box::new(open))) {
            if let Event::Open(open) = event {
                open.engine_gone(Instant::now());
            }
            return generation;
        }
        // A refused request is ended by the task, which learns of the engine's end as well.
        let _submitted = self.engine.submit(EngineRequest {
            id,
            prompt: request.prompt.into(),
            params: request.sampling,
            priority: request.priority,
            arrival: request.arrival,
            cache_salt: request.cache_salt,
        });
        generation
    }

    /// Whether requests can be answered: the frontend's task runs and the engine is well.
    pub fn is_healthy(&self) -> bool {
        self.alive.load(Ordering::Acquire) && self.engine.is_healthy()
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

/// The answer to one request, piece by piece. Dropping it before the last piece aborts the request.
pub struct Generation {
    id: RequestId,
    deltas: mpsc::UnboundedReceiver<Delta>,
    engine: Arc<dyn Engine>,
    finished: bool,
}

impl Generation {
    /// The next piece; `None` after the last one, or if the frontend's task failed before it.
    pub async fn next(&mut self) -> Option<Delta> {
        let delta = self.deltas.recv().await;
        self.finished = delta.as_ref().is_none_or(|delta| delta.finish.is_some());
        delta
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.finished {
            self.engine.abort(self.id);
        }
    }
}
