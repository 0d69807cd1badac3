//! Logarithmic axes and their ticks.

/// An axis from `low` to `high`, both positive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// From half an octave below all values to half of one above: points at the ends, and ranges
    /// beside each other, stay inside.
    pub(super) fn octaves(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) = bounds(values)?;
        let room = std::f64::consts::SQRT_2;
        Some(Self { low: low / room, high: high * room })
    }

    /// From the tick below all values to the one above, of 1, 2, 5 in each decade.
    pub(super) fn decades(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) = bounds(values)?;
        let ticks: Vec<f64> = steps(low / 10.0, high * 10.0).collect();
        let below = ticks.iter().copied().rfind(|tick| *tick < low * 0.97)?;
        let above = ticks.iter().copied().find(|tick| *tick > high * 1.03)?;
        Some(Self { low: below, high: above })
    }

    /// Where a value stands: 0 at the start of the axis, 1 at its end.
    pub(super) fn place(&self, value: f64) -> f64 {
        (value / self.low).ln() / (self.high / self.low).ln()
    }

    /// 1, 2 and 5 of each decade; of many decades 1 only.
    pub(super) fn decade_ticks(&self) -> Vec<f64> {
        let within = |tick: &f64| *tick >= self.low * 0.999 && *tick <= self.high * 1.001;
        let all: Vec<f64> = steps(self.low, self.high).filter(within).collect();
        if all.len() <= 10 {
            return all;
        }
        all.into_iter().filter(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-6).collect()
    }

    /// Powers of two, at most `most` of them, evenly apart.
    pub(super) fn binary_ticks(&self, most: usize) -> Vec<f64> {
        let (first, last) = (self.low.log2().ceil(), self.high.log2().floor());
        let mut step = 1.0;
        while (last - first) / step + 1.0 > most as f64 {
            step += 1.0;
        }
        let powers = (0..most).map(|n| first + n as f64 * step).take_while(|power| *power <= last);
        powers.map(f64::exp2).collect()
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |bounds, value| match bounds {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

/// 1, 2, 5, 10, 20, ... from the decade of `low` to that of `high`.
fn steps(low: f64, high: f64) -> impl Iterator<Item = f64> {
    let first = low.log10().floor();
    let decades = (0_u8..30).map(move |n| 10_f64.powf(first + f64::from(n)));
    let decades = decades.take_while(move |decade| *decade <= high);
    decades.flat_map(|decade| [decade, 2.0 * decade, 5.0 * decade])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_of_sizes_has_ticks_at_powers_of_two() {
        let scale = Scale::octaves([4096.0, 100_000.0].into_iter()).unwrap();
        assert!(scale.place(4096.0) > 0.0 && scale.place(100_000.0) < 1.0);
        assert_eq!(scale.binary_ticks(10), [4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131_072.0]);
        assert_eq!(scale.binary_ticks(3), [4096.0, 32768.0]);
        let single = Scale::octaves([4096.0].into_iter()).unwrap();
        assert!((single.place(4096.0) - 0.5).abs() < 1e-9);
        assert_eq!(single.binary_ticks(10), [4096.0]);
    }

    #[test]
    fn an_axis_of_figures_has_ticks_at_one_two_and_five() {
        let scale = Scale::decades([0.3, 6.0].into_iter()).unwrap();
        let ticks: Vec<String> = scale.decade_ticks().iter().map(|t| format!("{t:.1}")).collect();
        assert_eq!(ticks, ["0.2", "0.5", "1.0", "2.0", "5.0", "10.0"]);
        let wide = Scale::decades([0.001, 900.0].into_iter()).unwrap();
        assert!(wide.decade_ticks().len() <= 8, "{:?}", wide.decade_ticks());
        assert!(wide.decade_ticks().contains(&1.0));
        assert_eq!(Scale::decades(std::iter::empty()), None);
    }
}
