//! Monotonic stamps as wall-clock times.
//!
//! Intervals never touch the wall clock. Span timestamps need it, and get it from one pair of readings taken
//! at start: a step of the system clock moves no span against another.

use std::time::{Instant, SystemTime};

/// One moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    monotonic: Instant,
    wall: SystemTime,
}

impl Anchor {
    pub(crate) fn now() -> Anchor {
        Anchor { monotonic: Instant::now(), wall: SystemTime::now() }
    }

    /// The wall-clock time of a stamp. Stamps from before the anchor work as well.
    pub(crate) fn wall(&self, at: Instant) -> SystemTime {
        match at.checked_duration_since(self.monotonic) {
            Some(after) => self.wall + after,
            None => {
                self.wall.checked_sub(self.monotonic.duration_since(at)).unwrap_or(SystemTime::UNIX_EPOCH)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Anchor;

    #[test]
    fn distances_between_wall_times_equal_distances_between_stamps() {
        let anchor = Anchor::now();
        let later = anchor.monotonic + Duration::from_millis(250);
        let gap = anchor.wall(later).duration_since(anchor.wall(anchor.monotonic)).unwrap();
        assert_eq!(gap, Duration::from_millis(250));
        if let Some(earlier) = anchor.monotonic.checked_sub(Duration::from_millis(5)) {
            let gap = anchor.wall(later).duration_since(anchor.wall(earlier)).unwrap();
            assert_eq!(gap, Duration::from_millis(255));
        }
    }
}
