//! From a file to a square of bytes.

use std::str::FromStr;

use super::MOST_RANKS;

/// Bytes from each rank (row) to each (column).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matrix(Vec<Vec<u64>>);

/// Why a file is no matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MatrixError {
    #[error(
        "line {line}: `{cell}` is no number of bytes: write a whole number, with K, M or G for \
         2^10, 2^20 or 2^30"
    )]
    Cell { line: usize, cell: String },
    #[error("line {line} has {cells} cells where the first row has {expected}: each rank has one")]
    Ragged { line: usize, cells: usize, expected: usize },
    #[error("{rows} rows of {columns} cells are no square: each rank has a row and a column")]
    NotSquare { rows: usize, columns: usize },
    #[error("{ranks} ranks are too many: at most {MOST_RANKS} can be")]
    TooMany { ranks: usize },
    #[error("rank {rank} would write to itself: set that cell to 0")]
    ToItself { rank: usize },
    #[error("nothing is moved: every cell is 0")]
    Nothing,
    #[error("that is more than can be counted")]
    Overflow,
}

impl FromStr for Matrix {
    type Err = MatrixError;

    fn from_str(text: &str) -> Result<Self, MatrixError> {
        let mut rows: Vec<Vec<u64>> = Vec::new();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let cells: Vec<u64> = content
                .split_whitespace()
                .map(|text| cell(text).ok_or_else(|| MatrixError::Cell { line, cell: shown(text) }))
                .collect::<Result<_, _>>()?;
            let expected = rows.first().map_or(cells.len(), Vec::len);
            if cells.len() != expected {
                return Err(MatrixError::Ragged { line, cells: cells.len(), expected });
            }
            rows.push(cells);
        }
        Self::new(rows)
    }
}

/// A name of bounded length: a file may be anything.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

fn cell(text: &str) -> Option<u64> {
    let units = [('K', 1_u64 << 10), ('M', 1 << 20), ('G', 1 << 30)];
    let (digits, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(*name)?, *unit)))
        .unwrap_or((text, 1));
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse::<u64>().ok()?.checked_mul(unit) } else { None }
}

impl Matrix {
    fn new(rows: Vec<Vec<u64>>) -> Result<Self, MatrixError> {
        let columns = rows.first().map_or(0, Vec::len);
        if rows.len() != columns {
            return Err(MatrixError::NotSquare { rows: rows.len(), columns });
        }
        if columns > MOST_RANKS {
            return Err(MatrixError::TooMany { ranks: columns });
        }
        if let Some(rank) = (0..columns).find(|rank| rows[*rank][*rank] > 0) {
            return Err(MatrixError::ToItself { rank });
        }
        let mut cells = rows.iter().flatten();
        let total = cells.try_fold(0_u64, |total, bytes| total.checked_add(*bytes));
        match total.ok_or(MatrixError::Overflow)? {
            0 => Err(MatrixError::Nothing),
            _ => Ok(Self(rows)),
        }
    }

    pub(super) fn ranks(&self) -> usize {
        self.0.len()
    }

    /// Ranks that send something.
    pub(super) fn senders(&self) -> usize {
        self.0.iter().filter(|row| row.iter().any(|bytes| *bytes > 0)).count()
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.0.iter().flatten().sum()
    }

    /// Source, destination and bytes of every cell that is not 0.
    pub(super) fn cells(&self) -> impl Iterator<Item = (usize, usize, u64)> + '_ {
        self.0.iter().enumerate().flat_map(|(from, row)| {
            let cells = row.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
            cells.map(move |(to, bytes)| (from, to, *bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> MatrixError {
        text.parse::<Matrix>().unwrap_err()
    }

    #[test]
    fn cells_are_bytes_with_or_without_a_unit() {
        let matrix: Matrix = "# two ranks\n0\t64K\n\n  3M 0  \n".parse().unwrap();
        let cells: Vec<_> = matrix.cells().collect();
        assert_eq!(cells, [(0, 1, 64 << 10), (1, 0, 3 << 20)]);
        assert_eq!((matrix.ranks(), matrix.senders()), (2, 2));
        assert_eq!(matrix.total_bytes(), (64 << 10) + (3 << 20));
        let one_way: Matrix = "0 1G\n0 0".parse().unwrap();
        assert_eq!(one_way.senders(), 1);
    }

    #[test]
    fn what_is_no_matrix_is_refused_by_line_and_cell() {
        for cell in ["1.5M", "-1", "M", "1T", "64KiB", "99999999999G", "18446744073709551616"] {
            let expected = MatrixError::Cell { line: 2, cell: cell.into() };
            assert_eq!(error(&format!("0 1\n{cell} 0")), expected);
        }
        assert_eq!(error("0 1\n0"), MatrixError::Ragged { line: 2, cells: 1, expected: 2 });
        assert_eq!(error("0 1\n0 0\n1 0"), MatrixError::NotSquare { rows: 3, columns: 2 });
        assert_eq!(error("0 1"), MatrixError::NotSquare { rows: 1, columns: 2 });
        assert_eq!(error("0 1\n0 5"), MatrixError::ToItself { rank: 1 });
        assert_eq!(error("0 0\n0 0"), MatrixError::Nothing);
        assert_eq!(error(""), MatrixError::Nothing);
        let large = format!("0 {0} 0\n0 0 {0}\n0 0 0", u64::MAX);
        assert_eq!(error(&large), MatrixError::Overflow);
        let wide = vec!["0 ".repeat(33); 33].join("\n");
        assert_eq!(error(&wide), MatrixError::TooMany { ranks: 33 });
    }
}
