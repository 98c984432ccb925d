//! Monotonic stamps as wall-clock times.
//!
//! Intervals never touch the wall clock. Span timestamps need it, and get it from one pair of readings taken
//! at start: a step of the system clock moves no span against another. Data points are stamped again and again by a
//! [`RisingClock`].

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

/// Wall-clock times that rise, for points of one series: backends drop a point that is older than the one before.
///
/// When the system clock is set back, time goes on from where it was until the system clock has caught up. When it is
/// set forward, time goes with it.
#[derive(Debug)]
pub(crate) struct RisingClock {
    latest: Anchor,
}

impl RisingClock {
    pub(crate) fn start() -> RisingClock {
        RisingClock { latest: Anchor::now() }
    }

    /// The time that the last call gave, or the start, and the time now.
    pub(crate) fn window(&mut self) -> (SystemTime, SystemTime) {
        self.window_to(Anchor::now())
    }

    fn window_to(&mut self, now: Anchor) -> (SystemTime, SystemTime) {
        let since = self.latest.wall;
        self.latest = Anchor { wall: now.wall.max(self.latest.wall(now.monotonic)), ..now };
        (since, self.latest.wall)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Anchor, RisingClock};

    #[test]
    fn a_rising_clock_follows_a_clock_set_forward_and_outlives_one_set_back() {
        const SECOND: Duration = Duration::from_secs(1);
        const HOUR: Duration = Duration::from_secs(3600);
        let start = Anchor::now();
        let mut clock = RisingClock { latest: start };
        // Seconds since the start, and how far the system clock is then ahead or behind.
        let mut window = |seconds: u32, ahead: Duration, behind: Duration| {
            let passed = SECOND * seconds;
            let wall = start.wall + passed + ahead - behind;
            let (since, until) = clock.window_to(Anchor { monotonic: start.monotonic + passed, wall });
            (since.duration_since(start.wall).unwrap(), until.duration_since(start.wall).unwrap())
        };
        let none = Duration::ZERO;
        assert_eq!(window(1, none, none), (none, SECOND));
        assert_eq!(window(2, none, HOUR), (SECOND, 2 * SECOND));
        assert_eq!(window(3, none, HOUR), (2 * SECOND, 3 * SECOND));
        assert_eq!(window(4, none, none), (3 * SECOND, 4 * SECOND));
        assert_eq!(window(5, HOUR, none), (4 * SECOND, HOUR + 5 * SECOND));
        assert_eq!(window(6, none, none), (HOUR + 5 * SECOND, HOUR + 6 * SECOND));
    }

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
