//! Medians, percentiles, ranges.

use std::time::Duration;

use serde::Serialize;

/// The middle value, or the mean of the two in the middle. `None` of nothing.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// The smallest value that at least `per_mille` thousandths of all values do not exceed (nearest
/// rank). `None` of nothing.
pub(crate) fn percentile(values: &[Duration], per_mille: usize) -> Option<Duration> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * per_mille).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied()
}

/// A time in microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// What most, and nearly all, of many times do not exceed, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
}

impl Percentiles {
    /// `None` of nothing.
    pub(crate) fn of(values: &[Duration]) -> Option<Self> {
        let at = |per_mille| percentile(values, per_mille).map(micros);
        Some(Self { p50_us: at(500)?, p99_us: at(990)?, p999_us: at(999)? })
    }
}

/// The smallest and the largest value. `None` of nothing.
pub(crate) fn range(values: &[f64]) -> Option<(f64, f64)> {
    let smallest = values.iter().copied().min_by(f64::total_cmp)?;
    let largest = values.iter().copied().max_by(f64::total_cmp)?;
    Some((smallest, largest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_two() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[4.0]), Some(4.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[8.0, 2.0, 4.0, 6.0]), Some(5.0));
    }

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let values: Vec<_> = (1..=200).rev().map(Duration::from_micros).collect();
        assert_eq!(percentile(&values, 500), Some(Duration::from_micros(100)));
        assert_eq!(percentile(&values, 990), Some(Duration::from_micros(198)));
        assert_eq!(percentile(&values, 999), Some(Duration::from_micros(200)));
        assert_eq!(percentile(&values, 1000), Some(Duration::from_micros(200)));
        assert_eq!(percentile(&values[..1], 990), Some(Duration::from_micros(200)));
        assert_eq!(percentile(&values[..3], 10), Some(Duration::from_micros(198)));
        assert_eq!(percentile(&[], 500), None);
    }

    #[test]
    fn a_range_spans_all_values() {
        assert_eq!(range(&[2.0, -1.0, 3.0]), Some((-1.0, 3.0)));
        assert_eq!(range(&[]), None);
    }
}
