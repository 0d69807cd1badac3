//! Text for people: aligned columns and wrapped lines, at most 100 characters wide.

/// How wide a page is.
pub(crate) const WIDTH_CHARS: usize = 100;

/// Rows of cells in columns as wide as their widest cell.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines, each with its end; no blanks at the end of a line.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths);
            let line: Vec<_> = cells.map(|(cell, width)| format!("{cell:<width$}")).collect();
            text.push_str(line.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// `label`, then `text` beside it, its further lines below its first. A paragraph of the text that
/// is indented stays so, and its further lines are indented by two more. A word that is longer
/// than the page stands alone.
pub(crate) fn hanging(label: &str, text: &str) -> String {
    let indent = label.chars().count();
    let mut page = String::new();
    for (at, paragraph) in text.split('\n').enumerate() {
        let inner = paragraph.len() - paragraph.trim_start_matches(' ').len();
        let further = indent + if inner > 0 { inner + 2 } else { 0 };
        let start = if at == 0 { label.to_owned() } else { " ".repeat(indent) };
        let mut line = start + &" ".repeat(inner);
        let mut is_empty = true;
        for word in paragraph.split_whitespace() {
            if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH_CHARS {
                page.push_str(line.trim_end());
                page.push('\n');
                line = " ".repeat(further);
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
        page.push_str(line.trim_end());
        page.push('\n');
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["A", "LONG", "C"]);
        table.row(["wide".to_owned(), "b".to_owned(), String::new()]);
        assert_eq!(table.render(), "A     LONG  C\nwide  b\n");
    }

    #[test]
    fn long_text_hangs_below_its_first_line() {
        let text = "word ".repeat(40);
        let found = hanging("label  ", &text);
        assert!(found.lines().all(|line| line.chars().count() <= WIDTH_CHARS), "{found}");
        assert!(found.lines().skip(1).all(|line| line.starts_with("       word")), "{found}");
        assert_eq!(found.split_whitespace().filter(|word| *word == "word").count(), 40);
    }

    #[test]
    fn paragraphs_begin_lines_of_their_own() {
        assert_eq!(hanging("- ", "one\n  two\nthree"), "- one\n    two\n  three\n");
        let long = hanging("", &format!("  {}", "word ".repeat(40)));
        let mut lines = long.lines();
        assert!(lines.next().is_some_and(|line| line.starts_with("  word")), "{long}");
        assert!(lines.all(|line| line.starts_with("    word") && line.len() <= WIDTH_CHARS));
    }
}
