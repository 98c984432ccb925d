//! The engine thread: the inner loop of schedule, execute, apply.
//!
//! It takes requests and aborts from a channel, runs steps while there is work and sleeps while there is
//! none, and hands one [`StepOutput`] per step to a callback. It formats nothing, exports nothing and never
//! waits for whoever reads the outputs.
//!
//! Invariant: every request that was submitted while the engine lives gets exactly one output with a finish
//! reason. A device error ends the requests of its batch with [`FinishReason::Error`]; after
//! [`crate::device::DeviceError::Lost`], or a panic of the device, all requests end so, and later ones are
//! answered so. If the thread itself ends, by a panic of the callback or a broken invariant, the callback
//! and whatever it owns are dropped after [`EngineHandle::is_alive`] turned false: a reader that waits on a
//! channel fed by the callback sees it close.
//!
//! [`FinishReason::Error`]: limpid_telemetry::observation::FinishReason::Error

mod batch;
mod sleep;
mod step;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::config::ResolvedConfig;
use crate::device::{Device, DeviceSource};
use crate::request::{EngineRequest, RequestId, StepOutput};

pub use batch::fill_batch;
pub use sleep::{PauseMode, SleepLevel, SleepReply};

/// Takes the answer to something that the engine thread was asked, on that thread; must not block. It is dropped
/// without a call if the engine ends before.
pub type Reply = Box<dyn FnOnce(bool) + Send>;

/// A message to the engine thread.
enum Command {
    /// Take in a request that was handed over at that moment.
    Submit(Box<EngineRequest>, Instant),
    /// End a request.
    Abort(RequestId),
    /// Forget every cached prefix.
    ResetPrefixCache {
        /// Preempt all running requests first.
        preempt: bool,
        done: Reply,
    },
    /// Give up the device, or only stand still.
    Sleep(SleepLevel, PauseMode, SleepReply),
    /// Open the device again and go on.
    WakeUp(SleepReply),
    /// Abort everything, report it, and end the thread.
    Shutdown,
}

/// What the thread tells without being asked.
struct State {
    alive: AtomicBool,
    healthy: AtomicBool,
    asleep: AtomicBool,
    /// Share of steps to look into, as the bits of an `f64`.
    step_trace_ratio: AtomicU64,
}

/// Handle to a running engine. Cheap to clone; the thread ends at [`EngineHandle::shutdown`] or when the
/// last handle is dropped, and aborts what is left.
#[derive(Clone)]
pub struct EngineHandle {
    commands: mpsc::Sender<Command>,
    state: Arc<State>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    index: usize,
}

impl EngineHandle {
    /// Starts the thread of engine number `index` with a device that `source` opened, and will open again after a
    /// sleep. `on_step` is called on it after every step, and must not block. A call without a step behind it
    /// (times and tokens are 0) reports what happened between steps: aborts, refusals.
    ///
    /// # Panics
    /// If the operating system gives no thread, or the pool of `config` is too small for one sequence.
    pub fn start(
        index: usize,
        config: ResolvedConfig,
        device: Box<dyn Device>,
        source: Box<dyn DeviceSource>,
        on_step: impl FnMut(StepOutput) + Send + 'static,
    ) -> EngineHandle {
        let (commands, receiver) = mpsc::channel();
        let state = Arc::new(State {
            alive: AtomicBool::new(true),
            healthy: AtomicBool::new(true),
            asleep: AtomicBool::new(false),
            step_trace_ratio: AtomicU64::new(0),
        });
        let engine = step::Engine::new(index, &config, device, source, receiver, state.clone());
        let ended = EndOfThread(state.clone());
        let thread = std::thread::Builder::new()
            .name(format!("engine-{index}"))
            .spawn(move || {
                // Dropped in reverse, also by a panic: first the engine is known to be dead, then it takes no
                // more requests, then the readers' channels close.
                let mut on_step = on_step;
                let mut engine = engine;
                let _ended = ended;
                engine.run(&mut on_step);
            })
            .expect("a thread for the engine");
        EngineHandle { commands, state, thread: Arc::new(Mutex::new(Some(thread))), index }
    }

    /// Hands a request over. `false` if the engine has ended.
    pub fn submit(&self, request: EngineRequest) -> bool {
        self.commands.send(Command::Submit(Box::new(request), Instant::now())).is_ok()
    }

    /// Asks for a request's end; its last output has
    /// [`limpid_telemetry::observation::FinishReason::Abort`]. An unknown or finished id is ignored.
    pub fn abort(&self, id: RequestId) {
        // An engine that has ended has no request to abort.
        let _ = self.commands.send(Command::Abort(id));
    }

    /// Forgets every cached prefix between two steps. Answers `false`, and nothing happens, while a request
    /// holds a block; with `preempt` all running requests give theirs up first and are computed again.
    pub fn reset_prefix_cache(&self, preempt: bool, done: Reply) {
        // An engine that has ended has no cache, and drops the reply.
        let _ = self.commands.send(Command::ResetPrefixCache { preempt, done });
    }

    /// Stands still, and gives up what `level` says, as soon as `mode` allows it. A sleeping engine takes requests
    /// in and lets them wait. Sleeping deeper is possible without waking up; less deep is no change.
    pub fn sleep(&self, level: SleepLevel, mode: PauseMode, done: SleepReply) {
        // An engine that has ended drops the reply.
        let _ = self.commands.send(Command::Sleep(level, mode, done));
    }

    /// Opens the device again and goes on with what waits. If it cannot be opened the engine stays asleep. An
    /// engine that is awake has nothing to do.
    pub fn wake_up(&self, done: SleepReply) {
        let _ = self.commands.send(Command::WakeUp(done));
    }

    /// Whether the engine sleeps, at whatever level.
    pub fn is_sleeping(&self) -> bool {
        self.state.asleep.load(Ordering::Acquire)
    }

    /// From now on looks into this share of the steps, chosen by chance, which may make those steps slower and
    /// no other; 0, as in the beginning, looks into none.
    pub fn trace_steps(&self, ratio: f64) {
        self.state.step_trace_ratio.store(ratio.to_bits(), Ordering::Relaxed);
    }

    /// Whether the thread runs.
    pub fn is_alive(&self) -> bool {
        self.state.alive.load(Ordering::Acquire)
    }

    /// Whether requests can be served: the thread runs and its device was not lost.
    pub fn healthy(&self) -> bool {
        self.state.healthy.load(Ordering::Acquire) && self.is_alive()
    }

    /// Aborts all requests, reports them and waits for the thread's end. Not to be called from `on_step`.
    pub fn shutdown(&self) {
        let _ = self.commands.send(Command::Shutdown);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(_)) = thread.map(JoinHandle::join) {
            tracing::error!("the thread of engine {} had panicked", self.index);
        }
    }
}

/// Says that the thread ended, however it did.
struct EndOfThread(Arc<State>);

impl Drop for EndOfThread {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::Release);
    }
}
