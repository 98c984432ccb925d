//! Whether an engine that has something to do still makes steps.
//!
//! A device that hangs never returns from its step, and a scheduler that cannot place a request never begins one. Seen
//! from outside both are the same: requests are open, and nothing comes back. Whoever waits for them cannot tell that
//! from slowness, so it is measured here, and a limit makes it a fault.
//!
//! Invariant: an idle engine never stands still, however long it is idle.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The latest sign of life.
#[derive(Debug)]
pub(super) struct Heartbeat {
    started: Instant,
    /// Milliseconds since `started`.
    latest: AtomicU64,
}

impl Heartbeat {
    pub(super) fn new() -> Heartbeat {
        Heartbeat { started: Instant::now(), latest: AtomicU64::new(0) }
    }

    /// The engine made a step, or has something to do again.
    pub(super) fn beat(&self) {
        let elapsed = self.started.elapsed().as_millis();
        self.latest.store(u64::try_from(elapsed).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Time since the latest beat.
    pub(super) fn silence(&self) -> Duration {
        let latest = Duration::from_millis(self.latest.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(latest)
    }
}
