//! Statistics of repeated measurements: pure functions.

use serde::Serialize;

/// Where measurements lie. The unit is the measurements'.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    /// Number of measurements.
    pub(super) count: usize,
    /// Arithmetic mean.
    pub(super) mean: f64,
    /// Standard deviation of the sample; 0 of a single measurement.
    pub(super) deviation: f64,
    /// Least.
    pub(super) min: f64,
    /// Median.
    pub(super) p50: f64,
    /// 90th percentile.
    pub(super) p90: f64,
    /// 99th percentile.
    pub(super) p99: f64,
    /// Greatest.
    pub(super) max: f64,
}

impl Summary {
    /// Summary of the finite ones among `values`; `None` if there are none.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Summary {
            count: sorted.len(),
            mean,
            deviation: (squares / (sorted.len() - 1).max(1) as f64).sqrt(),
            min,
            p50: percentile(&sorted, 0.5),
            p90: percentile(&sorted, 0.9),
            p99: percentile(&sorted, 0.99),
            max,
        })
    }
}

/// The value below which the share `share` (0 to 1) of the rising, non-empty `sorted` lies, interpolated
/// between neighbours as numpy does by default.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentiles_are_interpolated_between_neighbours() {
        let summary = Summary::of((0..=10).rev().map(f64::from)).unwrap();
        let expected = Summary {
            count: 11,
            mean: 5.0,
            deviation: 11f64.sqrt(),
            min: 0.0,
            p50: 5.0,
            p90: 9.0,
            p99: 9.9,
            max: 10.0,
        };
        assert!((summary.p99 - expected.p99).abs() < 1e-12);
        assert_eq!(Summary { p99: 9.9, ..summary }, expected);
        assert_eq!(Summary::of([1.0, 2.0]).unwrap().p50, 1.5);
    }

    #[test]
    fn one_value_is_all_of_its_percentiles_and_none_has_no_summary() {
        let summary = Summary::of([3.0]).unwrap();
        assert_eq!((summary.min, summary.p50, summary.p99, summary.max), (3.0, 3.0, 3.0, 3.0));
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([f64::NAN, f64::INFINITY]), None);
    }

    proptest! {
        #[test]
        fn percentiles_rise_and_stay_within_the_values(values in prop::collection::vec(-1e9f64..1e9, 1..100)) {
            let summary = Summary::of(values).unwrap();
            let all = [summary.min, summary.p50, summary.p90, summary.p99, summary.max];
            prop_assert!(all.is_sorted(), "{all:?}");
        }
    }
}
