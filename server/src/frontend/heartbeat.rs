//! Whether an engine that has something to do still makes steps.
//!
//! A device that hangs never returns from its step, and a scheduler that cannot place a request never begins one. Seen
//! from outside both are the same: requests are open, and nothing comes back. Whoever waits for them cannot tell that
//! from slowness, so it is measured here, and a limit makes it a fault.
//!
//! Invariant: an idle engine never stands still, however long it is idle.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// No request is open.
const IDLE: u64 = u64::MAX;

/// The latest sign of life.
#[derive(Debug)]
pub(super) struct Heartbeat {
    started: Instant,
    /// Milliseconds since `started`, or [`IDLE`].
    latest: AtomicU64,
}

impl Heartbeat {
    pub(super) fn new() -> Heartbeat {
        Heartbeat { started: Instant::now(), latest: AtomicU64::new(IDLE) }
    }

    /// The engine made a step, or has something to do again.
    pub(super) fn beat(&self) {
        self.latest.store(self.now(), Ordering::Relaxed);
    }

    /// The engine has nothing to do.
    pub(super) fn idle(&self) {
        self.latest.store(IDLE, Ordering::Relaxed);
    }

    /// The engine slept and goes on with what it has to do, if there is something.
    pub(super) fn resume(&self) {
        let now = self.now();
        // Fails if it is idle, and then there is nothing to begin anew.
        let _ = self
            .latest
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |latest| (latest != IDLE).then_some(now));
    }

    /// Time since the latest beat; `None` while there is nothing to do.
    pub(super) fn silence(&self) -> Option<Duration> {
        let latest = self.latest.load(Ordering::Relaxed);
        (latest != IDLE).then(|| Duration::from_millis(self.now().saturating_sub(latest)))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(IDLE - 1)
    }
}
