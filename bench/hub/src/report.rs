//! Medians, ranges, and tables in markdown.

use std::fmt::Write;

/// What was measured, a value per round.
#[derive(Default)]
pub(crate) struct Series(Vec<f64>);

impl Series {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Not a number if nothing was measured.
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            odd if odd % 2 == 1 => sorted[odd / 2],
            even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
        }
    }

    /// The median alone.
    pub(crate) fn middle(&self) -> String {
        if self.0.is_empty() { "-".to_owned() } else { digits(self.median()) }
    }

    /// The median, and the lowest and highest of several.
    pub(crate) fn spread(&self) -> String {
        let min = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let max = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match self.0.len() {
            0 | 1 => self.middle(),
            _ => format!("{} ({}–{})", self.middle(), digits(min), digits(max)),
        }
    }
}

/// Three digits that count, and thousands or millions for large numbers.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        huge if huge >= 1e6 => format!("{:.2}M", value / 1e6),
        large if large >= 10_000.0 => format!("{:.0}k", value / 1e3),
        some if some >= 100.0 => format!("{value:.0}"),
        few if few >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A table in markdown, whose source can be read as well.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let length =
        |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let width = |column| rows.iter().map(|row| length(row, column)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        for (column, &width) in widths.iter().enumerate() {
            let cell = row.get(column).map_or("", String::as_str);
            let _ = match column {
                0 => write!(text, "| {cell:<width$} |"),
                _ => write!(text, " {cell:>width$} |"),
            };
        }
        text.push('\n');
        if number == 0 {
            for (column, &width) in widths.iter().enumerate() {
                let line = "-".repeat(width + 1);
                let _ = match column {
                    0 => write!(text, "|{line}-|"),
                    _ => write!(text, "{line}:|"),
                };
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranges() {
        let series = Series(vec![3.0, 1.0, 20_000.0, 2.0]);
        assert_eq!(series.spread(), "2.50 (1.00–20k)");
        assert_eq!(Series::default().spread(), "-");
        assert!(Series::default().median().is_nan());
    }

    #[test]
    fn a_table_is_markdown() {
        let rows = [vec!["case".to_owned(), "1".to_owned()], vec!["a".to_owned(), "10".to_owned()]];
        assert_eq!(table(&rows), "| case |  1 |\n|------|---:|\n| a    | 10 |\n");
    }
}
