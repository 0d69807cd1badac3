//! Medians, percentiles, ranges.

use std::time::Duration;

/// The middle value, or the mean of the two in the middle. `None` of nothing.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// The smallest value that at least `percent` of all values do not exceed (nearest rank). `None` of
/// nothing.
pub(crate) fn percentile(values: &[Duration], percent: usize) -> Option<Duration> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
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
        assert_eq!(percentile(&values, 50), Some(Duration::from_micros(100)));
        assert_eq!(percentile(&values, 99), Some(Duration::from_micros(198)));
        assert_eq!(percentile(&values, 100), Some(Duration::from_micros(200)));
        assert_eq!(percentile(&values[..1], 99), Some(Duration::from_micros(200)));
        assert_eq!(percentile(&values[..3], 1), Some(Duration::from_micros(198)));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn a_range_spans_all_values() {
        assert_eq!(range(&[2.0, -1.0, 3.0]), Some((-1.0, 3.0)));
        assert_eq!(range(&[]), None);
    }
}
