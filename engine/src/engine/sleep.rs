//! Going to sleep and waking up, on the engine thread.
//!
//! Asleep, the engine takes requests in and aborts them, and runs no step. What it held of the device is gone
//! down to the level that was asked for. No request is lost by it: those that `keep` leaves, and those that come
//! later, are in the waiting queue, and what had been computed of them is computed again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::step::Engine;
use crate::request::FinishReason;
use crate::scheduler::Pause;

/// What is given up, vLLM's levels 0 to 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SleepLevel {
    /// Nothing; the engine only stands still.
    Pause,
    /// The device, with its copy of the weights and the KV cache. The weights stay where they came from.
    Offload,
    /// The weights as well: they are read from the file again.
    Discard,
}

/// What becomes of running requests, vLLM's pause modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseMode {
    /// All requests are aborted, waiting ones too.
    Abort,
    /// Running requests end first; waiting ones go on waiting.
    Wait,
    /// All requests go on after waking.
    Keep,
}

/// Takes the answer to [`super::EngineHandle::sleep`] and [`super::EngineHandle::wake_up`], on the engine's
/// thread: how deep it sleeps now, `None` if it is awake. Must not block. It is dropped without a call if the engine
/// ends before.
pub type SleepReply = Box<dyn FnOnce(Result<Option<SleepLevel>, Arc<str>>) + Send>;

/// Where the engine is.
pub(super) enum Sleep {
    Awake,
    /// Running requests are still to end.
    FallingAsleep(SleepLevel, SleepReply),
    Asleep(SleepLevel),
}

impl Engine {
    pub(super) fn sleep(&mut self, level: SleepLevel, mode: PauseMode, done: SleepReply) {
        if let Some(error) = &self.lost {
            return done(Err(error.clone()));
        }
        match &self.sleep {
            Sleep::FallingAsleep(..) => return done(Err("the engine is falling asleep already".into())),
            Sleep::Asleep(current) if *current >= level => return done(Ok(Some(*current))),
            Sleep::Awake | Sleep::Asleep(_) => {}
        }
        if mode == PauseMode::Abort {
            self.scheduler.end_all(FinishReason::Abort, None);
        }
        if mode == PauseMode::Wait && matches!(self.sleep, Sleep::Awake) {
            self.scheduler.pause(Pause::Waiting);
            self.sleep = Sleep::FallingAsleep(level, done);
            self.fall_asleep_if_quiet();
        } else {
            self.fall_asleep(level);
            done(Ok(Some(level)));
        }
    }

    /// To be called when requests may have ended.
    pub(super) fn fall_asleep_if_quiet(&mut self) {
        let is_quiet = self.scheduler.running().next().is_none();
        if is_quiet && let Sleep::FallingAsleep(level, _) = self.sleep {
            self.scheduler.pause(Pause::All);
            if let Sleep::FallingAsleep(_, done) = std::mem::replace(&mut self.sleep, Sleep::Asleep(level)) {
                self.fall_asleep(level);
                done(Ok(Some(level)));
            }
        }
    }

    fn fall_asleep(&mut self, level: SleepLevel) {
        self.scheduler.pause(Pause::All);
        if level > SleepLevel::Pause {
            self.scheduler.preempt_all(Instant::now());
            assert!(self.scheduler.reset_prefix_cache(), "no request holds a block any more");
            self.device = None;
        }
        if level == SleepLevel::Discard {
            self.source.discard();
        }
        self.sleep = Sleep::Asleep(level);
        self.state.asleep.store(true, Ordering::Release);
    }

    pub(super) fn wake_up(&mut self, done: SleepReply) {
        if self.device.is_none() {
            match self.source.open() {
                Ok(device) => self.device = Some(device),
                Err(error) => {
                    tracing::error!("engine {} stays asleep: {error}", self.index);
                    return done(Err(error.to_string().into()));
                }
            }
        }
        self.scheduler.pause(Pause::Nothing);
        self.state.asleep.store(false, Ordering::Release);
        if let Sleep::FallingAsleep(_, sleeper) = std::mem::replace(&mut self.sleep, Sleep::Awake) {
            sleeper(Err("the engine was woken up before it slept".into()));
        }
        done(Ok(None));
    }
}
