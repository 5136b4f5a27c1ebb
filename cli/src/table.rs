//! Tables and lines for people, as wide as their screen; JSON documents for programs.
//!
//! **Invariant:** the cells of a table are harmless on a screen. No line is wider than the screen
//! if the screen has at least [`NARROWEST`] columns. What does not fit is left out or cut; `--json`
//! has all of it.

use serde::Serialize;

use crate::exit::Failure;
use crate::harmless::{harmless, harmless_json};

/// The narrowest screen for which tables are laid out.
const NARROWEST: usize = 40;
/// A cell is not cut shorter than this.
const CELL_MIN: usize = 6;

const TROUBLE: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// The screen of the reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    /// Its columns; `None` if the output does not go to a terminal.
    pub(crate) width: Option<usize>,
    pub(crate) coloured: bool,
}

impl Screen {
    /// Marks a problem by colour. The words must say the same.
    pub(crate) fn trouble(&self, text: &str) -> String {
        match self.coloured {
            true => format!("{TROUBLE}{text}{PLAIN}"),
            false => text.to_owned(),
        }
    }

    /// Cuts a name to half the width, so that other words fit on the line.
    pub(crate) fn cut(&self, name: &str) -> String {
        let width = self.width.map_or(usize::MAX, |width| width.max(NARROWEST) / 2);
        match name.chars().count() > width {
            true => name.chars().take(width - 1).chain(['…']).collect(),
            false => name.to_owned(),
        }
    }

    /// Joins parts with dots between them, on as many lines as needed.
    pub(crate) fn flow(&self, parts: &[String]) -> String {
        let width = self.width.map_or(usize::MAX, |width| width.max(NARROWEST));
        let (mut text, mut column) = (String::new(), 0);
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let length = part.chars().count();
            if column > 0 && column + 3 + length > width {
                text.push_str("\n  ");
                column = 2;
            } else if column > 0 {
                text.push_str(" · ");
                column += 3;
            }
            text.push_str(part);
            column += length;
        }
        text.push('\n');
        text
    }

    /// A text on as many lines as needed, the first of which begins behind `indent` columns. The others are indented.
    pub(crate) fn wrapped(&self, indent: usize, text: &str) -> String {
        let width =
            self.width.map_or(usize::MAX, |width| width.max(NARROWEST)).saturating_sub(indent);
        let (mut all, mut column) = (String::new(), 0);
        for word in text.split(' ') {
            let length = word.chars().count();
            if column > 0 && column + 1 + length > width {
                all.push('\n');
                all.extend(std::iter::repeat_n(' ', indent));
                column = 0;
            } else if column > 0 {
                all.push(' ');
                column += 1;
            }
            all.push_str(word);
            column += length;
        }
        all.push('\n');
        all
    }

    /// Rows under a head, each column as wide as its widest cell. If they do not fit, columns are
    /// left out in the order of `dispensable`; then the longest cells are cut. Rows for which `bad`
    /// is true are marked.
    pub(crate) fn columns<const N: usize>(
        &self,
        head: [&str; N],
        rows: impl IntoIterator<Item = [String; N]>,
        dispensable: &[&str],
        bad: impl Fn(&[String; N]) -> bool,
    ) -> String {
        let rows: Vec<[String; N]> = rows
            .into_iter()
            .map(|row| row.map(|cell| harmless(&cell).replace('\t', " ")))
            .collect();
        let widest = |column: usize| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([head[column].len()]).max().unwrap_or(0)
        };
        let mut widths: [usize; N] = std::array::from_fn(widest);
        let width = self.width.map_or(usize::MAX, |width| width.max(NARROWEST));
        let total = |widths: &[usize; N]| {
            let shown = widths.iter().filter(|width| **width > 0);
            shown.map(|width| width + 2).sum::<usize>().saturating_sub(2)
        };
        for name in dispensable {
            if total(&widths) <= width {
                break;
            }
            if let Some(at) = head.iter().position(|other| other == name) {
                widths[at] = 0;
            }
        }
        while total(&widths) > width {
            let Some(longest) = widths.iter_mut().max().filter(|width| **width > CELL_MIN) else {
                break;
            };
            *longest -= 1;
        }
        let mut text = line(&head.map(str::to_owned), &widths);
        for row in &rows {
            let line = line(row, &widths);
            match bad(row) {
                true => text.push_str(&format!("{}\n", self.trouble(line.trim_end()))),
                false => text.push_str(&line),
            }
        }
        text
    }
}

fn line<const N: usize>(cells: &[String; N], widths: &[usize; N]) -> String {
    let mut line = String::new();
    for (cell, &width) in cells.iter().zip(widths).filter(|(_, width)| **width > 0) {
        let cell: String = match cell.chars().count() > width {
            true => cell.chars().take(width - 1).chain(['…']).collect(),
            false => cell.clone(),
        };
        line.push_str(&format!("{cell:width$}  "));
    }
    format!("{}\n", line.trim_end())
}

/// One JSON document on one line.
pub(crate) fn json(document: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string(document).map_err(std::io::Error::from)?;
    Ok(harmless_json(&text) + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(width: usize) -> Screen {
        Screen { width: Some(width), coloured: false }
    }

    fn rows() -> [[String; 3]; 2] {
        [["one", "ü", "a long word that takes room"], ["b", "zwei", "short"]]
            .map(|row| row.map(str::to_owned))
    }

    const HEAD: [&str; 3] = ["A", "B", "C"];

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let wide = Screen { width: None, coloured: false };
        let text = wide.columns(HEAD, rows(), &["B"], |_| false);
        assert_eq!(
            text,
            "A    B     C\none  ü     a long word that takes room\nb    zwei  short\n"
        );
    }

    #[test]
    fn what_does_not_fit_goes_in_order_and_is_then_cut() {
        let long = rows().map(|[a, b, c]| [a, b, c.repeat(2)]);
        let text = screen(40).columns(HEAD, long.clone(), &["B"], |_| false);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.starts_with("A    C\n") && text.contains('…'), "{text}");
    }

    #[test]
    fn trouble_is_marked_by_colour_only_where_there_is_colour() {
        let bad = |row: &[String; 3]| row[0] == "b";
        assert!(!screen(80).columns(HEAD, rows(), &[], bad).contains('\x1b'));
        let coloured = Screen { width: None, coloured: true };
        let text = coloured.columns(HEAD, rows(), &[], bad);
        assert!(text.contains("\x1b[31mb    zwei  short\x1b[0m\n"), "{text:?}");
    }

    #[test]
    fn parts_of_a_line_go_on_in_the_next() {
        let parts = ["generated 1000000", "waiting 1000", "", "claimed 20"].map(str::to_owned);
        assert_eq!(screen(40).flow(&parts), "generated 1000000 · waiting 1000\n  claimed 20\n");
        let wide = Screen { width: None, coloured: false };
        assert_eq!(wide.flow(&parts), "generated 1000000 · waiting 1000 · claimed 20\n");
    }
}
