//! The common log of a fleet: page by page, the newest entry first.

use artel::LogEntry;
use axum::response::Response;
use serde_json::{Value, json};

use super::super::answer::{Problem, document as answer};
use super::ask::Ask;

/// Entries that one request looks at.
const LOOK_MAX: usize = 12_000;
const USUAL: usize = 100;
const MOST: usize = 500;

/// An entry, with its text as people read it.
pub(super) fn document(entry: &LogEntry) -> Value {
    let mut row = serde_json::to_value(entry).unwrap_or_default();
    row["text"] = entry.text().into();
    row
}

pub(super) async fn log(ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&["before", "limit", "kind", "member", "q"])?;
    let limit = ask.params.limit(USUAL, MOST)?;
    let mut history = ask.fleet().history();
    if let Some(before) = ask.params.text("before") {
        history = history.before(before)?;
    }
    let kinds: Option<Vec<&str>> = ask.params.text("kind").map(|kinds| kinds.split(',').collect());
    let member = ask.params.text("member");
    let words = ask.params.text("q").map(str::to_lowercase);
    let fits = |entry: &LogEntry| {
        let is_member = |wanted: &str| {
            entry.label.as_deref() == Some(wanted)
                || entry.member.as_ref().is_some_and(|id| id.as_str().starts_with(wanted))
        };
        kinds.as_ref().is_none_or(|kinds| kinds.contains(&entry.kind.as_str()))
            && member.is_none_or(is_member)
            && words.as_ref().is_none_or(|words| {
                let label = entry.label.as_deref().unwrap_or_default();
                format!("{} {label} {}", entry.kind, entry.text()).to_lowercase().contains(words)
            })
    };
    let (mut rows, mut looked, mut next) = (Vec::new(), 0, None);
    'pages: loop {
        let page = history.page_back().await?;
        if page.is_empty() {
            next = None;
            break;
        }
        for entry in &page {
            if rows.len() == limit || looked == LOOK_MAX {
                break 'pages;
            }
            looked += 1;
            next = Some(entry.id.clone());
            if fits(entry) {
                rows.push(document(entry));
            }
        }
    }
    Ok(answer(&json!({ "v": 1, "entries": rows, "before": next })))
}
