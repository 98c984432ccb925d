//! Sleep, in the order in which the engine's thread tells the scheduler of it.

use limpid_engine::request::FinishReason;
use limpid_engine::scheduler::Pause;
use rand::RngExt;

use super::device::FakeDevice;
use super::world::World;

/// Whether the engine sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Awake,
    /// Running requests are still to end. A deep sleep gives the device up.
    FallingAsleep {
        deep: bool,
    },
    /// For so many rounds.
    Asleep {
        rounds: u32,
    },
}

impl World {
    /// Falls asleep now and then, and wakes up again.
    pub(super) fn rest(&mut self) {
        match self.rest {
            Rest::Awake if self.rng.random_bool(0.02) => {
                let deep = self.rng.random_bool(0.5);
                match self.rng.random_range(0..3) {
                    0 => {
                        self.scheduler.end_all(FinishReason::Abort, None);
                        self.ledger.aborted_all();
                        self.fall_asleep(deep);
                    }
                    1 => self.fall_asleep(deep),
                    _ => {
                        self.pause(Pause::Waiting);
                        self.rest = Rest::FallingAsleep { deep };
                    }
                }
            }
            Rest::Awake => {}
            // Somebody may change their mind.
            Rest::FallingAsleep { .. } if self.rng.random_bool(0.05) => self.wake_up(),
            Rest::FallingAsleep { deep } => {
                if self.scheduler.running().next().is_none() {
                    self.ledger.summary.waited_for += 1;
                    self.fall_asleep(deep);
                }
            }
            Rest::Asleep { rounds: 0 } => self.wake_up(),
            Rest::Asleep { rounds } => self.rest = Rest::Asleep { rounds: rounds - 1 },
        }
    }

    fn fall_asleep(&mut self, deep: bool) {
        self.pause(Pause::All);
        if deep {
            self.preempt_all();
            self.device = FakeDevice::new(
                self.config.num_blocks,
                self.config.block_size,
                self.config.cache_windows.len(),
            );
        }
        self.ledger.summary.sleeps += 1;
        self.rest = Rest::Asleep { rounds: self.rng.random_range(0..4) };
    }

    pub(super) fn wake_up(&mut self) {
        self.pause(Pause::Nothing);
        self.rest = Rest::Awake;
    }

    fn pause(&mut self, pause: Pause) {
        self.ledger.pause = pause;
        self.scheduler.pause(pause);
    }

    /// Takes every block from its request, and forgets what is in them.
    pub(super) fn preempt_all(&mut self) {
        self.tick(3);
        self.ledger.preempted_all(self.now);
        self.scheduler.preempt_all(self.now);
        assert!(self.scheduler.reset_prefix_cache(), "nothing is held any more");
    }
}
