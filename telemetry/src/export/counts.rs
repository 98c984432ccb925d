//! What became of what was to be exported: written by exporters, read by scrapes and at the end.
//!
//! One lock around all numbers, so that they add up at every moment: what was to be exported = exported +
//! failed + dropped + pending. It is held for an addition.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts of one signal, in spans or data points.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<Totals>);

/// The numbers at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Accepted by the collector.
    pub(crate) exported: u64,
    /// Given up, or refused by the collector.
    pub(crate) failed: u64,
    /// Not queued, because the queue was full.
    pub(crate) dropped: u64,
    /// Queued or being exported.
    pub(crate) pending: u64,
    /// Requests the collector answered well.
    pub(crate) requests_ok: u64,
    /// Requests that failed; a retry is a request of its own.
    pub(crate) requests_failed: u64,
}

impl Counts {
    pub(crate) fn totals(&self) -> Totals {
        *self.lock()
    }

    /// Takes `count` places in a queue of `bound`, or counts them dropped.
    pub(super) fn enqueue(&self, count: u64, bound: u64) -> Place {
        let mut totals = self.lock();
        if totals.pending + count <= bound {
            totals.pending += count;
            return Place::Taken;
        }
        let first = totals.dropped == 0;
        totals.dropped += count;
        if first { Place::NoneForTheFirstTime } else { Place::None }
    }

    pub(super) fn request_failed(&self) {
        self.lock().requests_failed += 1;
    }

    /// A request was answered well; `refused` of its `count` were not taken.
    pub(super) fn delivered(&self, count: u64, refused: u64) {
        let refused = refused.min(count);
        let mut totals = self.lock();
        totals.requests_ok += 1;
        totals.pending -= count;
        totals.exported += count - refused;
        totals.failed += refused;
    }

    pub(super) fn gave_up(&self, count: u64) {
        let mut totals = self.lock();
        totals.pending -= count;
        totals.failed += count;
    }

    fn lock(&self) -> MutexGuard<'_, Totals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What [`Counts::enqueue`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Taken,
    NoneForTheFirstTime,
    None,
}
