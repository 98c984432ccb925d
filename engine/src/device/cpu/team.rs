//! The threads of the device: started once, woken once a step.
//!
//! The calling thread is the first of the team; a rayon pool holds the others. Within a step threads wait
//! for each other's work by spinning, because what there is to wait for takes microseconds; after a while a
//! waiting thread offers its core to others, so that a busy machine is not slowed by waiting. They wait for
//! work, never for threads: one that the system has put aside is missed only if it took something with it.
//!
//! Invariant: a step ends on all threads or, if one panics, on none: the others stop when they next wait
//! and the panic goes on in the caller.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::device::DeviceError;
use crate::device::turns::give_way;

/// Spins before a waiting thread yields its core.
const SPINS: usize = 2000;

/// Threads that run a step together.
pub(super) struct Team {
    /// All threads but the caller's.
    pool: Option<ThreadPool>,
    peers: Peers,
    /// Whether the caller gives way to others.
    caller: Once,
}

impl Team {
    /// A team of `threads` threads, the caller included.
    pub(super) fn new(threads: usize) -> Result<Team, DeviceError> {
        let pool = (threads > 1).then(|| {
            ThreadPoolBuilder::new()
                .num_threads(threads - 1)
                .thread_name(|index| format!("limpid-cpu-{}", index + 1))
                .start_handler(|_| give_way())
                .build()
                .map_err(|error| DeviceError::Failed(format!("cannot start {threads} threads: {error}")))
        });
        Ok(Team {
            pool: pool.transpose()?,
            peers: Peers { threads, poisoned: AtomicBool::new(false) },
            caller: Once::new(),
        })
    }

    /// Calls `work` once for each member, all at the same time; there are as many members as threads. It is always the
    /// same thread that calls, the engine's.
    pub(super) fn run<M: Send>(&self, members: &mut [M], work: impl Fn(&Peers, &mut M) + Sync) {
        assert_eq!(members.len(), self.peers.threads);
        self.caller.call_once(give_way);
        let work = |member: &mut M| {
            let guard = PoisonOnPanic(&self.peers);
            work(&self.peers, member);
            std::mem::forget(guard);
        };
        let (first, others) = members.split_first_mut().expect("a team has a thread");
        match &self.pool {
            None => work(first),
            Some(pool) => pool.in_place_scope(|scope| {
                for member in others {
                    let work = &work;
                    scope.spawn(move |_| work(member));
                }
                work(first);
            }),
        }
    }
}

/// Tells the others when a member panics, so that the others do not wait for it for ever.
struct PoisonOnPanic<'a>(&'a Peers);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        self.0.poisoned.store(true, Ordering::Release);
    }
}

/// What a thread of a team knows of the others.
pub(super) struct Peers {
    threads: usize,
    poisoned: AtomicBool,
}

impl Peers {
    /// Threads in the team.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Returns once `done` holds, which other threads of the team bring about.
    ///
    /// # Panics
    /// If another thread of the team panicked.
    pub(super) fn wait_until(&self, done: impl Fn() -> bool) {
        let mut spins = 0;
        while !done() {
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
    use std::sync::atomic::AtomicUsize;

    use super::super::plan::Pass;
    use super::*;

    /// Does the units of a pass and waits for its end, as a step does.
    fn share(peers: &Peers, pass: &Pass, units: usize, mut unit: impl FnMut(usize)) {
        while let Some(taken) = pass.take(1, units) {
            taken.for_each(&mut unit);
            pass.finish(1);
        }
        peers.wait_until(|| pass.is_done(units));
    }

    #[test]
    fn what_units_wrote_is_seen_after_their_pass() {
        const UNITS: usize = 7;
        for threads in [1, 2, 3, 5] {
            let team = Team::new(threads).unwrap();
            let passes: Vec<Pass> = (0..200).map(|_| Pass::default()).collect();
            let total = AtomicUsize::new(0);
            let mut seen = vec![Vec::new(); threads];
            team.run(&mut seen, |peers, seen| {
                for (round, pass) in passes.iter().enumerate() {
                    share(peers, pass, UNITS, |unit| {
                        total.fetch_add(unit + round, Ordering::Relaxed);
                    });
                    seen.push(total.load(Ordering::Relaxed));
                }
            });
            let mut sum = 0;
            for round in 0..200 {
                sum += (0..UNITS).map(|unit| unit + round).sum::<usize>();
                // Others may be some passes ahead, never behind.
                assert!(seen.iter().all(|seen| seen[round] >= sum), "round {round} of {threads} threads");
            }
            assert_eq!(total.load(Ordering::Relaxed), sum);
        }
    }

    #[test]
    fn a_thread_that_comes_late_holds_up_nobody() {
        let team = Team::new(2).unwrap();
        let passes: Vec<Pass> = (0..100).map(|_| Pass::default()).collect();
        let (finished, late) = (AtomicBool::new(false), AtomicUsize::new(0));
        team.run(&mut [false, true], |peers, is_late| {
            if *is_late {
                peers.wait_until(|| finished.load(Ordering::Acquire));
            }
            for pass in &passes {
                share(peers, pass, 3, |_| {
                    late.fetch_add(usize::from(*is_late), Ordering::Relaxed);
                });
            }
            finished.store(true, Ordering::Release);
        });
        assert_eq!(late.into_inner(), 0, "all units were done before it came");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn every_thread_of_a_team_gives_way_to_others_and_no_other_thread_does() {
        use crate::device::turns::{NICER, NICEST, TURN_NANOSECONDS, turn};

        let Some((nice, usual)) = turn() else { return };
        assert!(usual < TURN_NANOSECONDS, "{usual} ns");
        let nicer = (nice + NICER).min(NICEST);
        // The caller is a thread that ends here. A device that wakes up has a new team for the same caller.
        let turns = std::thread::spawn(|| {
            let mut turns = [None; 3];
            for _ in 0..2 {
                Team::new(3).unwrap().run(&mut turns, |_, own| *own = turn());
            }
            turns
        });
        assert_eq!(turns.join().unwrap(), [Some((nicer, TURN_NANOSECONDS)); 3]);
        assert_eq!(turn(), Some((nice, usual)));
    }

    #[test]
    fn a_panic_on_one_thread_ends_the_step_on_all() {
        let team = Team::new(3).unwrap();
        let step = std::panic::AssertUnwindSafe(|| {
            team.run(&mut [0, 1, 2], |peers, member| {
                assert_ne!(*member, 2, "planted");
                peers.wait_until(|| false);
            });
        });
        assert!(std::panic::catch_unwind(step).is_err());
    }
}
