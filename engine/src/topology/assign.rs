//! Who works with whom, where many could.

/// Pairs of positions out of those that are `permitted`: everyone who may work with somebody gets
/// a partner, nobody gets a second one while another is as good and has none, and equal positions
/// find each other. Ascending.
pub(super) fn assign(
    left: usize,
    right: usize,
    permitted: impl Fn(usize, usize) -> bool,
) -> Vec<(usize, usize)> {
    let mut pairs = Vec::with_capacity(left.max(right));
    let mut left_load = vec![0_usize; left];
    let mut right_load = vec![0_usize; right];
    for (from, load) in left_load.iter_mut().enumerate() {
        let partners = (0..right).filter(|to| permitted(from, *to));
        let best = partners.min_by_key(|to| (right_load[*to], around(from, *to, right)));
        if let Some(to) = best {
            *load += 1;
            right_load[to] += 1;
            pairs.push((from, to));
        }
    }
    for (to, _) in right_load.iter().enumerate().filter(|(_, load)| **load == 0) {
        let partners = (0..left).filter(|from| permitted(*from, to));
        let best = partners.min_by_key(|from| (left_load[*from], around(to, *from, left)));
        if let Some(from) = best {
            left_load[from] += 1;
            pairs.push((from, to));
        }
    }
    pairs.sort_unstable();
    pairs
}

/// How many steps upwards `to` is from `from` on a ring of `size` positions.
fn around(from: usize, to: usize, size: usize) -> usize {
    (to + size - from % size) % size
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_sides_pair_by_position_and_fewer_are_shared_evenly() {
        assert_eq!(assign(3, 3, |_, _| true), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!(assign(4, 2, |_, _| true), [(0, 0), (1, 1), (2, 0), (3, 1)]);
        assert_eq!(assign(2, 4, |_, _| true), [(0, 0), (0, 2), (1, 1), (1, 3)]);
    }

    proptest! {
        #[test]
        fn everyone_who_may_gets_a_permitted_partner(
            matrix in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 7), 0..7)
        ) {
            let pairs = assign(matrix.len(), 7, |from, to| matrix[from][to]);
            for (from, to) in &pairs {
                prop_assert!(matrix[*from][*to]);
            }
            for (from, row) in matrix.iter().enumerate() {
                let has_partner = pairs.iter().any(|pair| pair.0 == from);
                prop_assert_eq!(has_partner, row.contains(&true));
            }
            for to in 0..7 {
                let may = matrix.iter().any(|row| row[to]);
                prop_assert_eq!(pairs.iter().any(|pair| pair.1 == to), may);
            }
            let mut once = pairs.clone();
            once.dedup();
            prop_assert_eq!(once, pairs);
        }

        #[test]
        fn where_all_may_no_load_differs_by_more_than_one(left in 1_usize..20, right in 1_usize..20) {
            let pairs = assign(left, right, |_, _| true);
            prop_assert_eq!(pairs.len(), left.max(right));
            let loads: Vec<_> =
                (0..right).map(|to| pairs.iter().filter(|pair| pair.1 == to).count()).collect();
            let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", loads);
        }
    }
}
