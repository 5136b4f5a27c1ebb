//! The table: medians, ranges, and whether the goals are met.

use std::fmt::Write;

/// What was measured, once per round or once per member.
#[derive(Default)]
pub(crate) struct Series(Vec<f64>);

impl Series {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Round by round: neighbours in time, so that what slows the machine down slows both.
    pub(crate) fn over(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(one, two)| one / two).collect())
    }

    /// Round by round, one and the other.
    pub(crate) fn plus(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(one, two)| one + two).collect())
    }

    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            odd if odd % 2 == 1 => sorted[odd / 2],
            even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
        }
    }

    fn show(&self) -> String {
        let min = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let max = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match self.0.len() {
            0 => "-".to_owned(),
            1 => digits(min),
            _ => format!("{} ({}..{})", digits(self.median()), digits(min), digits(max)),
        }
    }
}

impl From<Vec<f64>> for Series {
    fn from(values: Vec<f64>) -> Series {
        Series(values)
    }
}

/// Three digits that count, and thousands for large numbers.
fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 10_000.0 => format!("{:.0}k", value / 1000.0),
        some if some >= 100.0 => format!("{value:.0}"),
        few if few >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// What a median must keep to.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// Artel divided by raw.
    RatioAtLeast(f64),
    /// Artel divided by raw.
    RatioAtMost(f64),
    /// Artel alone.
    AtMost(f64),
    /// For information.
    None,
}

impl Goal {
    fn show(self, ratio: &Series, artel: &Series) -> (String, bool) {
        let (sign, limit, met) = match self {
            Goal::RatioAtLeast(limit) => (">=", limit, ratio.median() >= limit),
            Goal::RatioAtMost(limit) => ("<=", limit, ratio.median() <= limit),
            Goal::AtMost(limit) => ("<=", limit, artel.median() <= limit),
            Goal::None => return (String::new(), true),
        };
        let what = if matches!(self, Goal::AtMost(_)) { "artel" } else { "ratio" };
        let word = if met { "pass" } else { "FAIL" };
        (format!("{what} {sign} {limit}: {word}"), met)
    }
}

/// The head of a table of Artel beside raw loops.
pub(crate) const RAW: [&str; 5] = ["", "raw", "artel", "artel / raw", "goal"];

/// Rows, until they are printed.
pub(crate) struct Table {
    rows: Vec<[String; 5]>,
    met: bool,
}

impl Table {
    pub(crate) fn new(head: [&str; 5]) -> Table {
        Table { rows: vec![head.map(str::to_owned)], met: true }
    }

    /// Adds what both sides were measured for.
    pub(crate) fn compare(&mut self, name: &str, raw: &Series, artel: &Series, goal: Goal) {
        let ratio = artel.over(raw);
        let (goal, met) = goal.show(&ratio, artel);
        self.met &= met;
        self.rows.push([name.to_owned(), raw.show(), artel.show(), ratio.show(), goal]);
    }

    /// Adds what has no raw counterpart.
    pub(crate) fn alone(&mut self, name: &str, artel: &Series, goal: Goal) {
        self.compare(name, &Series::default(), artel, goal);
    }

    /// Are all goals met?
    pub(crate) fn met(&self) -> bool {
        self.met
    }

    pub(crate) fn show(&self) -> String {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> = (0..5).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, &width) in row.iter().zip(&widths) {
                let _ = write!(line, "{cell:<width$}  ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranges() {
        let series = Series::from(vec![3.0, 1.0, 20_000.0, 2.0]);
        assert_eq!(series.show(), "2.50 (1.00..20k)");
        assert_eq!(Series::default().show(), "-");
    }

    #[test]
    fn a_goal_without_a_figure_is_not_met() {
        let mut table = Table::new(RAW);
        table.alone("nothing", &Series::default(), Goal::AtMost(1.0));
        assert!(!table.met());
    }
}
