//! What the frontend needs of an engine.

use limpid_engine::engine::{EngineHandle, PauseMode, Reply, SleepLevel, SleepReply};
use limpid_engine::request::{EngineRequest, RequestId};

/// An engine that runs.
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
