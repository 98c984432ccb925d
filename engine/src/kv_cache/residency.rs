//! How long sampled blocks keep their contents, and how often those are found again.
//!
//! The rules are vLLM's. Whether a block is watched is drawn each time it is handed out. A prefix-cache hit is an
//! access; reading by the block's own sequence is none, and neither is the allocation. What was seen is told
//! when the block is handed out again: giving it back is no event, because its contents may still be found.
//!
//! The draw is a counted sequence rather than real randomness, so that the scheduler stays a function of its
//! inputs.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use limpid_telemetry::observation::BlockResidency;

use super::BlockId;

/// Accesses that are remembered for a block.
const MAX_ACCESSES: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Residency {
    /// Share of allocations that are watched, 0 to 1.
    share: f64,
    draws: u64,
    watched: HashMap<BlockId, Watched>,
    evicted: Vec<BlockResidency>,
}

#[derive(Debug)]
struct Watched {
    allocated: Instant,
    /// The latest accesses, oldest first.
    accesses: VecDeque<Instant>,
}

impl Residency {
    pub(super) fn new(share: f64) -> Residency {
        Residency { share, draws: 0, watched: HashMap::new(), evicted: Vec::new() }
    }

    /// A block was handed out; what it held is gone.
    pub(super) fn allocated(&mut self, id: BlockId, now: Instant) {
        if let Some(watched) = self.watched.remove(&id) {
            self.evicted.push(watched.residency(now));
        }
        if self.draw() < self.share {
            self.watched.insert(id, Watched { allocated: now, accesses: VecDeque::new() });
        }
    }

    /// A block was found in the prefix cache.
    pub(super) fn touched(&mut self, id: BlockId, now: Instant) {
        if let Some(watched) = self.watched.get_mut(&id) {
            if watched.accesses.len() == MAX_ACCESSES {
                watched.accesses.pop_front();
            }
            watched.accesses.push_back(now);
        }
    }

    /// Everything was forgotten at once, which is no eviction.
    pub(super) fn reset(&mut self) {
        self.watched.clear();
    }

    /// What was seen since the last call.
    pub(super) fn take(&mut self) -> Vec<BlockResidency> {
        std::mem::take(&mut self.evicted)
    }

    /// The next number of the sequence, from 0 to below 1 (SplitMix64).
    fn draw(&mut self) -> f64 {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.draws;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl Watched {
    fn residency(&self, now: Instant) -> BlockResidency {
        let gaps = self.accesses.iter().zip(self.accesses.iter().skip(1));
        let last = self.accesses.back().unwrap_or(&self.allocated);
        BlockResidency {
            lifetime: now.saturating_duration_since(self.allocated),
            idle: now.saturating_duration_since(*last),
            reuse_gaps: gaps.map(|(from, to)| to.saturating_duration_since(*from)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BLOCK: BlockId = BlockId(1);

    #[test]
    fn a_block_is_told_of_when_it_is_handed_out_again_with_its_latest_gaps() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut residency = Residency::new(1.0);
        residency.allocated(BLOCK, start);
        for seconds in [1, 2, 4, 8, 16] {
            residency.touched(BLOCK, at(seconds));
        }
        assert_eq!(residency.take(), []);
        residency.allocated(BLOCK, at(20));
        let seconds = Duration::from_secs;
        let gaps = vec![seconds(2), seconds(4), seconds(8)];
        let seen = BlockResidency { lifetime: seconds(20), idle: seconds(4), reuse_gaps: gaps };
        assert_eq!(residency.take(), [seen]);
        residency.touched(BLOCK, at(21));
        residency.allocated(BLOCK, at(23));
        let seen = BlockResidency { lifetime: seconds(3), idle: seconds(2), reuse_gaps: Vec::new() };
        assert_eq!(residency.take(), [seen], "one access has no gap");
        residency.allocated(BLOCK, at(30));
        let seen = BlockResidency { lifetime: seconds(7), idle: seconds(7), reuse_gaps: Vec::new() };
        assert_eq!(residency.take(), [seen], "without an access a block is idle from the start");
    }

    #[test]
    fn a_reset_drops_what_was_watched_without_a_word() {
        let now = Instant::now();
        let mut residency = Residency::new(1.0);
        residency.allocated(BLOCK, now);
        residency.reset();
        residency.allocated(BLOCK, now);
        assert_eq!(residency.take(), []);
    }

    #[test]
    fn the_share_of_watched_blocks_is_the_one_asked_for() {
        let now = Instant::now();
        for share in [0.01, 0.5, 1.0] {
            let mut residency = Residency::new(share);
            (0..100_000).for_each(|number| residency.allocated(BlockId(number), now));
            let found = residency.watched.len() as f64 / 100_000.0;
            assert!((found - share).abs() < 0.005, "{found} of {share}");
        }
    }
}
