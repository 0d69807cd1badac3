//! Where each cell's bytes lie in the regions of both ranks.

use anyhow::{Context, ensure};

use super::parse::Matrix;
use crate::control::Cell;

/// Cells start on pages of their own.
const PAGE: u64 = 4096;

/// Every cell of every pattern, with a place of its own at both ends: patterns that are moved at
/// once share nothing.
#[derive(Debug)]
pub(super) struct Plan {
    cells: Vec<Placed>,
    /// What each rank needs.
    region_bytes: Vec<u64>,
    patterns: usize,
}

/// A cell and who sends it.
#[derive(Clone, Copy, Debug)]
struct Placed {
    source: usize,
    pattern: usize,
    cell: Cell,
}

impl Plan {
    pub(super) fn of(matrices: &[Matrix]) -> anyhow::Result<Self> {
        let ranks = matrices.first().context("there is no pattern")?.ranks();
        let mut region_bytes = vec![0_u64; ranks];
        let mut cells = Vec::new();
        for (pattern, matrix) in matrices.iter().enumerate() {
            ensure!(
                matrix.ranks() == ranks,
                "all patterns are between the same ranks: the first has {ranks}, another {}",
                matrix.ranks()
            );
            for (source, destination, bytes) in matrix.cells() {
                let mut take = |rank: usize| {
                    let at = region_bytes[rank];
                    let end = at.checked_add(bytes)?.checked_next_multiple_of(PAGE)?;
                    region_bytes[rank] = end;
                    Some(at)
                };
                let places = take(source).zip(take(destination));
                let (from, to) = places.context("that is more than can be counted")?;
                let (number, peer) = (cells.len() as u64, u32::try_from(destination)?);
                let pattern_number = u32::try_from(pattern)?;
                let cell = Cell { pattern: pattern_number, peer, from, to, bytes, number };
                cells.push(Placed { source, pattern, cell });
            }
        }
        Ok(Self { cells, region_bytes, patterns: matrices.len() })
    }

    pub(super) fn patterns(&self) -> usize {
        self.patterns
    }

    /// What each rank's region holds: at least something, for every rank has one.
    pub(super) fn region_bytes(&self) -> impl Iterator<Item = u64> + '_ {
        self.region_bytes.iter().map(|bytes| (*bytes).max(PAGE))
    }

    /// What a rank sends in these patterns.
    pub(super) fn sent(&self, rank: usize, patterns: &[usize]) -> Vec<Cell> {
        self.select(patterns, |placed| placed.source == rank)
    }

    /// What a rank receives in these patterns.
    pub(super) fn received(&self, rank: usize, patterns: &[usize]) -> Vec<Cell> {
        self.select(patterns, |placed| usize::try_from(placed.cell.peer) == Ok(rank))
    }

    fn select(&self, patterns: &[usize], wanted: impl Fn(&Placed) -> bool) -> Vec<Cell> {
        let cells = self.cells.iter();
        let cells = cells.filter(|placed| patterns.contains(&placed.pattern) && wanted(placed));
        cells.map(|placed| placed.cell).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_cells_share_a_byte_of_any_region() {
        let matrices: Vec<Matrix> = ["0 5000 1\n4096 0 0\n0 7 0", "0 0 1K\n1 0 1\n0 0 0"]
            .map(|text| text.parse().unwrap())
            .into();
        let plan = Plan::of(&matrices).unwrap();
        let regions: Vec<u64> = plan.region_bytes().collect();
        for (rank, region_bytes) in regions.iter().enumerate() {
            let sent = plan.sent(rank, &[0, 1]).into_iter().map(|cell| (cell.from, cell.bytes));
            let received =
                plan.received(rank, &[0, 1]).into_iter().map(|cell| (cell.to, cell.bytes));
            let mut spans: Vec<(u64, u64)> = sent.chain(received).collect();
            spans.sort_unstable();
            assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{spans:?}");
            assert!(spans.iter().all(|(at, bytes)| at + bytes <= *region_bytes), "{spans:?}");
        }
        // Of one pattern only.
        assert_eq!(plan.sent(0, &[1]).iter().map(|cell| cell.bytes).collect::<Vec<_>>(), [1024]);
        assert_eq!(plan.received(1, &[1]).len(), 0);
    }

    #[test]
    fn patterns_between_different_ranks_are_refused() {
        let matrices: Vec<Matrix> =
            ["0 1\n0 0", "0 1 0\n0 0 0\n0 0 0"].map(|text| text.parse().unwrap()).into();
        let error = Plan::of(&matrices).unwrap_err().to_string();
        assert!(error.contains("the first has 2, another 3"), "{error}");
    }
}
