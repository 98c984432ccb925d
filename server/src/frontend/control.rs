//! What is asked of all engines at once: their health, sleep, their caches, their end.
//!
//! All are asked before any answer is waited for, and an answer is good only if every engine's is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use limpid_engine::engine::{PauseMode, SleepLevel, SleepReply};
use limpid_telemetry::observation::{SleepOperation, SleepState};
use tokio::sync::oneshot;

use super::{Frontend, Lane};

impl Lane {
    /// Whether requests can be answered: its task runs and the engine is well.
    pub(super) fn is_healthy(&self) -> bool {
        self.alive.load(Ordering::Acquire) && self.engine.is_healthy()
    }

    /// Asks for sleep or its end, and records what came of it.
    fn change_sleep(&self, ask: impl FnOnce(&Lane, SleepReply)) -> oneshot::Receiver<Result<(), Arc<str>>> {
        let (answer, answered) = oneshot::channel();
        let telemetry = self.telemetry.clone();
        let heartbeat = Arc::clone(&self.heartbeat);
        let done = move |result: Result<Option<SleepLevel>, Arc<str>>| {
            let result = result.map(|level| {
                heartbeat.resume();
                telemetry.sleep_state_changed(match level {
                    None => SleepState::Awake,
                    Some(SleepLevel::Pause) => SleepState::Paused,
                    Some(SleepLevel::Offload) => SleepState::WeightsOffloaded,
                    Some(SleepLevel::Discard) => SleepState::DiscardAll,
                });
            });
            // Whoever asked may have left.
            let _ = answer.send(result);
        };
        ask(self, Box::new(done));
        answered
    }
}

impl Frontend {
    /// Engines, each of which a request can be sent to by its index.
    pub fn num_engines(&self) -> usize {
        self.lanes.len()
    }

    /// The first engine that cannot serve requests.
    pub fn failed_engine(&self) -> Option<usize> {
        self.lanes.iter().position(|lane| !lane.is_healthy())
    }

    /// Whether there is an engine that can serve requests.
    pub fn can_serve(&self) -> bool {
        self.lanes.iter().any(Lane::is_healthy)
    }

    /// The first engine that is awake, has open requests, and has made no step for longer than it may; and how long.
    pub fn stalled(&self) -> Option<(usize, Duration)> {
        self.lanes.iter().enumerate().find_map(|(index, lane)| {
            let silence = lane.heartbeat.silence()?;
            (silence > self.iteration_timeout && !lane.engine.is_sleeping()).then_some((index, silence))
        })
    }

    /// Forgets every cached prefix; `Some(false)` if a request holds a block of an engine's cache and `preempt` is not
    /// set, `None` if an engine is gone. The caches of other engines are forgotten all the same.
    pub async fn reset_prefix_cache(&self, preempt: bool) -> Option<bool> {
        let ask = |lane: &Lane| {
            let (answer, answered) = oneshot::channel();
            let done = move |reset| {
                // Whoever asked may have left.
                let _ = answer.send(reset);
            };
            lane.engine.reset_prefix_cache(preempt, Box::new(done));
            answered
        };
        let asked: Vec<_> = self.lanes.iter().map(ask).collect();
        let mut all = true;
        for answered in asked {
            all &= answered.await.ok()?;
        }
        Some(all)
    }

    /// Sends the engines to sleep and returns once they all sleep; `None` if one is gone.
    pub async fn sleep(&self, level: SleepLevel, mode: PauseMode) -> Option<Result<(), Arc<str>>> {
        let operation = SleepOperation::Sleep;
        self.change_sleep(operation, |lane, done| lane.engine.sleep(level, mode, done)).await
    }

    /// Wakes the engines up and returns once they are all awake; `None` if one is gone.
    pub async fn wake_up(&self) -> Option<Result<(), Arc<str>>> {
        self.change_sleep(SleepOperation::Wake, |lane, done| lane.engine.wake_up(done)).await
    }

    /// Whether an engine sleeps. All do, or none, unless one could not follow the others.
    pub fn is_sleeping(&self) -> bool {
        self.lanes.iter().any(|lane| lane.engine.is_sleeping())
    }

    async fn change_sleep(
        &self,
        operation: SleepOperation,
        ask: impl Fn(&Lane, SleepReply),
    ) -> Option<Result<(), Arc<str>>> {
        // One call is one operation, however many engines it is for.
        let _operation = self.lanes.first().map(|lane| lane.telemetry.sleep_operation(operation));
        let asked: Vec<_> = self.lanes.iter().map(|lane| lane.change_sleep(&ask)).collect();
        let mut all = Ok(());
        for (index, answered) in asked.into_iter().enumerate() {
            let result = answered.await.ok()?;
            all = all.and(result.map_err(|error| match self.lanes.len() {
                1 => error,
                _ => format!("engine {index}: {error}").into(),
            }));
        }
        Some(all)
    }

    /// Ends the engines, whose last outputs end what is open; the frontend's tasks end after them. Blocks.
    pub fn shutdown(&self) {
        // One that hangs does not keep the others from ending.
        std::thread::scope(|scope| {
            for lane in &*self.lanes {
                scope.spawn(move || lane.engine.shutdown());
            }
        });
    }
}
