//! Tables for people, documents for programs.

use std::fmt::Write;

use serde::Serialize;

use crate::exit::Failure;
use crate::harmless::{harmless, harmless_json};

/// Rows under a head, made harmless, each column as wide as its widest cell.
pub(crate) fn columns<const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let rows = rows.into_iter().map(|row| row.map(|cell| harmless(&cell)));
    let rows: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// One JSON document on one line.
pub(crate) fn json(document: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string(document).map_err(std::io::Error::from)?;
    Ok(harmless_json(&text) + "\n")
}

#[cfg(test)]
mod tests {
    use super::columns;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let rows = [["one".to_owned(), "ü".to_owned()], ["b".to_owned(), "zwei".to_owned()]];
        assert_eq!(columns(["A", "B"], rows), "A    B\none  ü\nb    zwei\n");
    }
}
