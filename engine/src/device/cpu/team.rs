//! The threads of the device: started once, woken once a step, kept in step by a barrier.
//!
//! The calling thread is the first of the team; a rayon pool holds the others. Within a step threads wait
//! for each other by spinning, because the work between two barriers takes microseconds; after a while a
//! waiting thread offers its core to others, so that a busy machine is not slowed by waiting.
//!
//! Invariant: a step ends on all threads or, if one panics, on none: the others stop at their next barrier
//! and the panic goes on in the caller.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::device::DeviceError;

/// Spins before a waiting thread yields its core.
const SPINS: usize = 2000;

/// Threads that run a step together.
pub(super) struct Team {
    /// All threads but the caller's.
    pool: Option<ThreadPool>,
    barrier: Barrier,
}

impl Team {
    /// A team of `threads` threads, the caller included.
    pub(super) fn new(threads: usize) -> Result<Team, DeviceError> {
        let pool = (threads > 1).then(|| {
            ThreadPoolBuilder::new()
                .num_threads(threads - 1)
                .thread_name(|index| format!("limpid-cpu-{}", index + 1))
                .build()
                .map_err(|error| DeviceError::Failed(format!("cannot start {threads} threads: {error}")))
        });
        Ok(Team { pool: pool.transpose()?, barrier: Barrier::new(threads) })
    }

    /// Calls `work` once for each member, all at the same time; there are as many members as threads.
    pub(super) fn run<M: Send>(&self, members: &mut [M], work: impl Fn(&Barrier, usize, &mut M) + Sync) {
        assert_eq!(members.len(), self.barrier.threads);
        let work = |index: usize, member: &mut M| {
            let guard = PoisonOnPanic(&self.barrier);
            work(&self.barrier, index, member);
            std::mem::forget(guard);
        };
        let (first, others) = members.split_first_mut().expect("a team has a thread");
        match &self.pool {
            None => work(0, first),
            Some(pool) => pool.in_place_scope(|scope| {
                for (index, member) in others.iter_mut().enumerate() {
                    let work = &work;
                    scope.spawn(move |_| work(index + 1, member));
                }
                work(0, first);
            }),
        }
    }
}

/// Marks the barrier when a member panics, so that the others do not wait for it for ever.
struct PoisonOnPanic<'a>(&'a Barrier);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        self.0.poisoned.store(true, Ordering::Release);
    }
}

/// Keeps an atomic on a cache line of its own.
#[repr(align(128))]
struct Apart<T>(T);

/// Where the threads of a team wait for each other.
pub(super) struct Barrier {
    threads: usize,
    arrived: Apart<AtomicUsize>,
    /// Counts the times all have arrived.
    generation: Apart<AtomicUsize>,
    poisoned: AtomicBool,
}

impl Barrier {
    fn new(threads: usize) -> Barrier {
        Barrier {
            threads,
            arrived: Apart(AtomicUsize::new(0)),
            generation: Apart(AtomicUsize::new(0)),
            poisoned: AtomicBool::new(false),
        }
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Returns once every thread has called it. What any thread wrote before, all see after.
    ///
    /// # Panics
    /// If another thread of the team panicked.
    pub(super) fn wait(&self) {
        let generation = self.generation.0.load(Ordering::Acquire);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.0.store(0, Ordering::Relaxed);
            self.generation.0.store(generation.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut spins = 0;
        while self.generation.0.load(Ordering::Acquire) == generation {
            assert!(!self.poisoned.load(Ordering::Acquire), "another thread of the CPU device panicked");
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_before_the_barrier_is_seen_after_it() {
        for threads in [1, 2, 3, 5] {
            let team = Team::new(threads).unwrap();
            let total = AtomicUsize::new(0);
            let mut seen = vec![Vec::new(); threads];
            team.run(&mut seen, |barrier, index, seen| {
                for round in 0..200 {
                    total.fetch_add(index + round, Ordering::Relaxed);
                    barrier.wait();
                    seen.push(total.load(Ordering::Relaxed));
                    barrier.wait();
                }
            });
            let mut sum = 0;
            for round in 0..200 {
                sum += (0..threads).map(|index| index + round).sum::<usize>();
                assert!(seen.iter().all(|seen| seen[round] == sum), "round {round} of {threads} threads");
            }
        }
    }

    #[test]
    fn a_panic_on_one_thread_ends_the_step_on_all() {
        let team = Team::new(3).unwrap();
        let step = std::panic::AssertUnwindSafe(|| {
            team.run(&mut [0, 1, 2], |barrier, index, _| {
                assert_ne!(index, 2, "planted");
                barrier.wait();
            });
        });
        assert!(std::panic::catch_unwind(step).is_err());
    }
}
