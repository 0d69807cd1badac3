//! Names of adapters.

use std::cmp::Ordering;
use std::fmt;

/// The kernel's name of an RDMA device, as `mlx5_0`. Names are ordered as people count: `mlx5_2`
/// comes before `mlx5_10`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceName(String);

impl DeviceName {
    /// A name. Any text is one; whether there is such a device is another question.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl PartialOrd for DeviceName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DeviceName {
    fn cmp(&self, other: &Self) -> Ordering {
        natural(&self.0, &other.0).then_with(|| self.0.cmp(&other.0))
    }
}

/// Runs of digits by their value, everything else by its bytes.
fn natural(mut left: &str, mut right: &str) -> Ordering {
    loop {
        let (left_text, left_rest) = split(left, |c| !c.is_ascii_digit());
        let (right_text, right_rest) = split(right, |c| !c.is_ascii_digit());
        let (left_digits, left_rest) = split(left_rest, |c| c.is_ascii_digit());
        let (right_digits, right_rest) = split(right_rest, |c| c.is_ascii_digit());
        let by_run = left_text.cmp(right_text).then_with(|| by_value(left_digits, right_digits));
        if by_run != Ordering::Equal {
            return by_run;
        }
        match (left_rest.is_empty(), right_rest.is_empty()) {
            (true, true) => return Ordering::Equal,
            (true, false) => return Ordering::Less,
            (false, true) => return Ordering::Greater,
            (false, false) => (left, right) = (left_rest, right_rest),
        }
    }
}

fn by_value(left: &str, right: &str) -> Ordering {
    let left = left.trim_start_matches('0');
    let right = right.trim_start_matches('0');
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_ordered_as_people_count() {
        let mut names: Vec<_> =
            ["mlx5_10", "mlx5_2", "mlx5_bond_0", "bnxt_re0", "mlx5_1"].map(DeviceName::new).into();
        names.sort();
        let order: Vec<_> = names.iter().map(DeviceName::as_str).collect();
        assert_eq!(order, ["bnxt_re0", "mlx5_1", "mlx5_2", "mlx5_10", "mlx5_bond_0"]);
    }

    proptest! {
        #[test]
        fn the_order_is_total_and_agrees_with_equality(
            names in proptest::collection::vec("[a-b0-1]{0,6}", 3)
        ) {
            let [a, b, c] = [0, 1, 2].map(|at: usize| DeviceName::new(names[at].clone()));
            prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
            prop_assert_eq!(a.cmp(&b) == Ordering::Equal, a == b);
            if a <= b && b <= c {
                prop_assert!(a <= c);
            }
        }
    }
}
