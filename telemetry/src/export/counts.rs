//! What became of what was to be exported. Plain atomics: written by exporters, read by scrapes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one signal, in spans or data points.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    exported: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    pending: AtomicU64,
    requests_ok: AtomicU64,
    requests_failed: AtomicU64,
}

impl Counts {
    /// Accepted by the collector.
    pub(crate) fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// Given up, or refused by the collector.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Not queued, because the queue was full.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Queued or being exported.
    pub(crate) fn pending(&self) -> u64 {
        self.pending.load(Ordering::Relaxed)
    }

    /// Requests the collector answered well.
    pub(crate) fn requests_ok(&self) -> u64 {
        self.requests_ok.load(Ordering::Relaxed)
    }

    /// Requests that failed; a retry is a request of its own.
    pub(crate) fn requests_failed(&self) -> u64 {
        self.requests_failed.load(Ordering::Relaxed)
    }

    /// Takes a place in a queue of `bound`, or counts one more dropped.
    pub(super) fn enqueue(&self, bound: u64) -> Place {
        if self.pending.fetch_add(1, Ordering::Relaxed) < bound {
            return Place::Taken;
        }
        self.pending.fetch_sub(1, Ordering::Relaxed);
        match self.dropped.fetch_add(1, Ordering::Relaxed) {
            0 => Place::NoneForTheFirstTime,
            _ => Place::None,
        }
    }

    /// Frees places.
    pub(super) fn dequeue(&self, count: u64) {
        self.pending.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn request(&self, ok: bool) {
        let counter = if ok { &self.requests_ok } else { &self.requests_failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn delivered(&self, count: u64, refused: u64) {
        let refused = refused.min(count);
        self.exported.fetch_add(count - refused, Ordering::Relaxed);
        self.failed.fetch_add(refused, Ordering::Relaxed);
    }

    pub(super) fn gave_up(&self, count: u64) {
        self.failed.fetch_add(count, Ordering::Relaxed);
    }
}

/// What [`Counts::enqueue`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Taken,
    NoneForTheFirstTime,
    None,
}
