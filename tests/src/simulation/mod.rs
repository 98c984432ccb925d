//! The real scheduler and KV cache in worlds drawn from a seed.
//!
//! A `World` has tiny pools and budgets, requests that arrive, share prefixes, are aborted
//! or too long, steps that are slow or fail, sleep in all its modes, and a clock that is counted. A `FakeDevice` stands in for the
//! model: its "keys and values" are hashes over everything before them, read through the block tables like
//! the real ones, so a block in the wrong table or with stale contents changes every hash after it. After
//! each step a `Ledger` compares what the scheduler says with what it has kept itself. In the end arrivals
//! stop and everything has to drain.
//!
//! A world is a function of its seed: a failure names the seed, and the seed brings it back.

mod device;
mod ledger;
mod rest;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A mistake planted in a world, to see that the harness finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A block of a running request is given back although the request goes on using it.
    BlockFreedTwice,
    /// A cached prefix is looked up and a block with other contents found.
    WrongBlockFound,
    /// The device does not store the keys and values of one row.
    StoreLost,
}

/// What happened in one world or in many, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Worlds run to the end.
    pub worlds: u64,
    /// Steps.
    pub steps: u64,
    /// Requests that ended.
    pub requests: u64,
    /// Tokens generated.
    pub tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Prompt tokens found in the prefix cache.
    pub hits: u64,
    /// Times that the engine slept, of which it forgot everything stored on the device at every second or so.
    pub sleeps: u64,
    /// Those for which it waited until the running requests had ended.
    pub waited_for: u64,
}

impl Summary {
    fn add(&mut self, other: Summary) {
        self.worlds += other.worlds;
        self.steps += other.steps;
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.preemptions += other.preemptions;
        self.hits += other.hits;
        self.sleeps += other.sleeps;
        self.waited_for += other.waited_for;
    }
}

/// How a world is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A mistake to plant.
    pub fault: Option<Fault>,
    /// Leave out the invariants that the scheduler checks itself, so that only contents and answers can
    /// tell.
    pub without_books: bool,
}

/// Runs the world of a seed until it has drained.
///
/// # Errors
/// The invariant that broke.
pub fn run(seed: u64, options: Options) -> Result<Summary, String> {
    catch_unwind(AssertUnwindSafe(|| world::World::new(seed, options).run())).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        format!("seed {seed}: {}", text.unwrap_or_default())
    })
}

/// Runs the worlds of `count` seeds from `first` on, on all cores.
///
/// # Errors
/// Of the world with the lowest seed that failed.
pub fn run_many(first: u64, count: u64) -> Result<Summary, String> {
    let next = AtomicU64::new(first);
    let outcome: Mutex<(Summary, Option<(u64, String)>)> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed - first >= count {
                        break;
                    }
                    let result = run(seed, Options::default());
                    let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
                    match result {
                        Ok(summary) => outcome.0.add(summary),
                        Err(error) => {
                            // Earlier seeds may still be running, later ones are of no more interest.
                            next.fetch_max(first + count, Ordering::Relaxed);
                            if outcome.1.as_ref().is_none_or(|(known, _)| seed < *known) {
                                outcome.1 = Some((seed, error));
                            }
                        }
                    }
                }
            });
        }
    });
    let (summary, failure) = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failure {
        Some((_, error)) => Err(error),
        None => Ok(summary),
    }
}
