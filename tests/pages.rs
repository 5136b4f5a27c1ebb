//! Proves that the pages are whole: links lead somewhere, tables have their columns, the README is short, and what is
//! shown is what is there.
#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(root().join(&path))
        .unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

/// Every page for people, from the root of the project.
fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for dir in ["", "docs", "hub", "hub/docs"] {
        for entry in std::fs::read_dir(root().join(dir)).expect("a folder").flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|ending| ending == "md") {
                found.push(path.strip_prefix(root()).expect("below").to_owned());
            }
        }
    }
    assert!(found.len() > 10, "{found:?}");
    found
}

/// The lines of a page that are not in a block of code, each with its number.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let keep = |(_, line): &(usize, &str)| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    };
    text.lines().enumerate().map(|(at, line)| (at + 1, line)).filter(keep).collect()
}

/// As a heading is linked to.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(page: &Path) -> BTreeSet<String> {
    let text = read(page);
    let headings = prose(&text).into_iter().filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line)).collect()
}

#[test]
fn every_link_leads_somewhere() {
    for page in pages() {
        let text = read(&page);
        for (number, line) in prose(&text) {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                if link.starts_with("http") || link.starts_with("crate::") {
                    continue;
                }
                let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
                let here = page.parent().expect("a folder");
                let target = if file.is_empty() { page.clone() } else { here.join(file) };
                let there = root().join(&target).exists();
                assert!(there, "{}:{number}: {link} leads nowhere", page.display());
                let known = fragment.is_empty() || anchors(&target).contains(fragment);
                assert!(known, "{}:{number}: {link} has no such heading", page.display());
            }
        }
    }
}

/// A path of this project in backticks, such as `src/lib.rs`.
fn named_paths(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split('`').skip(1).step_by(2);
    words.filter(|word| {
        let folder = word.split('/').next().unwrap_or_default();
        let ours = ["src", "cli", "hub", "rig", "verify", "tests", "docs", "examples", "bench"];
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        word.contains('/') && ours.contains(&folder) && word.chars().all(plain)
    })
}

#[test]
fn every_file_that_a_page_names_exists() {
    let mut seen = 0;
    for page in pages().iter().filter(|page| !page.ends_with("CHANGELOG.md")) {
        for (number, line) in prose(&read(page)) {
            for path in named_paths(line) {
                let here = page.parent().expect("a folder").join(path);
                let exists = root().join(path).exists() || root().join(here).exists();
                assert!(exists, "{}:{number}: there is no {path}", page.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "{seen}");
}

/// How many cells a row of a table has.
fn cells(row: &str) -> usize {
    row.replace("\\|", "").trim().trim_matches('|').split('|').count()
}

#[test]
fn every_row_of_a_table_has_its_cells() {
    for page in pages() {
        let text = read(&page);
        let mut columns = None;
        for (number, line) in prose(&text) {
            if !line.trim_start().starts_with('|') {
                columns = None;
                continue;
            }
            let found = cells(line);
            let wanted = *columns.get_or_insert(found);
            assert_eq!(found, wanted, "{}:{number}: {line}", page.display());
        }
    }
}

#[test]
fn the_readme_is_read_in_five_minutes() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 170, "README.md has {lines} lines");
}

/// The schema of the keys is written once, beside the code that builds them.
#[test]
fn the_page_of_keys_is_the_schema() {
    let code = read("src/store/keys.rs");
    let page = read("docs/keys.md");
    let rows = code.lines().filter_map(|line| line.strip_prefix("//! |"));
    let mut rows =
        rows.map(|row| format!("|{}", row.replace("(see [`Context`](crate::Context))", "")));
    assert!(rows.by_ref().count() > 25);
    for row in code.lines().filter_map(|line| line.strip_prefix("//! |")) {
        let row = format!("|{}", row.replace("(see [`Context`](crate::Context))", ""));
        assert!(page.contains(&row), "docs/keys.md lacks {row}");
    }
}
