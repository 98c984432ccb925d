//! How long a step takes, as a straight line over its size: `a + c · size`, learnt from the steps themselves.
//!
//! Least squares with sums that fade, so that the line follows the engine. Invariant: neither `a` nor `c` is
//! ever negative.

/// Weight that an observation keeps when the next one comes: about the latest 200 count.
const KEEP: f64 = 0.995;

/// Sizes that differ by less than this share of their mean say nothing about the slope.
const LEAST_SPREAD: f64 = 0.02;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepTimeFit {
    weight: f64,
    size: f64,
    seconds: f64,
    size_size: f64,
    size_seconds: f64,
    /// Of the latest observations that differed enough in size.
    slope: Option<f64>,
}

impl StepTimeFit {
    pub(super) fn add(&mut self, size: f64, seconds: f64) {
        for (sum, value) in [
            (&mut self.weight, 1.0),
            (&mut self.size, size),
            (&mut self.seconds, seconds),
            (&mut self.size_size, size * size),
            (&mut self.size_seconds, size * seconds),
        ] {
            *sum = *sum * KEEP + value;
        }
        let (mean_size, mean_seconds) = self.means();
        let variance = self.size_size / self.weight - mean_size * mean_size;
        if variance.sqrt() > LEAST_SPREAD * mean_size {
            let covariance = self.size_seconds / self.weight - mean_size * mean_seconds;
            self.slope = Some(covariance / variance);
        }
        // A step of no size takes no negative time, and a larger one no less than a smaller one.
        self.slope = self.slope.map(|slope| slope.clamp(0.0, mean_seconds / mean_size.max(1e-9)));
    }

    fn means(&self) -> (f64, f64) {
        (self.size / self.weight, self.seconds / self.weight)
    }

    /// The part of a step of this size that grows with it, 0 to 1: how much of a larger step would be time,
    /// and how little of it throughput. 0 as long as it is not known.
    pub(super) fn growing_share(&self, size: f64) -> f64 {
        let Some(slope) = self.slope else { return 0.0 };
        let (mean_size, mean_seconds) = self.means();
        let fixed = mean_seconds - slope * mean_size;
        let growing = slope * size;
        if growing <= 0.0 { 0.0 } else { growing / (fixed.max(0.0) + growing) }
    }

    /// The largest size whose step takes no longer than this; `None` before the first step. While all steps
    /// have one size, a step is taken to grow in proportion, so that nothing is promised that was not seen.
    pub(super) fn largest_within(&self, seconds: f64) -> Option<f64> {
        if self.weight == 0.0 {
            return None;
        }
        let (mean_size, mean_seconds) = self.means();
        let slope = self.slope.unwrap_or(mean_seconds / mean_size.max(1e-9));
        let fixed = (mean_seconds - slope * mean_size).max(0.0);
        Some(match (seconds < fixed, slope > 0.0) {
            (true, _) => 0.0,
            (false, true) => (seconds - fixed) / slope,
            (false, false) => f64::INFINITY,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::StepTimeFit;

    #[test]
    fn a_straight_line_is_found() {
        let mut fit = StepTimeFit::default();
        for size in (1..40).cycle().take(400) {
            fit.add(f64::from(size), 0.010 + 0.001 * f64::from(size));
        }
        assert!((fit.growing_share(10.0) - 0.5).abs() < 0.01, "{}", fit.growing_share(10.0));
        assert!((fit.largest_within(0.030).unwrap() - 20.0).abs() < 0.1);
        assert_eq!(fit.largest_within(0.005), Some(0.0));
    }

    #[test]
    fn steps_of_one_size_promise_no_more_than_proportion() {
        let mut fit = StepTimeFit::default();
        assert_eq!(fit.largest_within(1.0), None);
        for _ in 0..10 {
            fit.add(4.0, 0.02);
        }
        assert_eq!(fit.growing_share(4.0), 0.0);
        assert!((fit.largest_within(0.04).unwrap() - 8.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn whatever_comes_shares_stay_between_0_and_1(
            steps in prop::collection::vec((1u32..5000, 0.0f64..10.0), 1..60), size in 1u32..5000
        ) {
            let mut fit = StepTimeFit::default();
            for (size, seconds) in steps {
                fit.add(f64::from(size), seconds);
                prop_assert!(fit.largest_within(0.05).unwrap() >= 0.0);
            }
            prop_assert!((0.0..=1.0).contains(&fit.growing_share(f64::from(size))));
        }
    }
}
