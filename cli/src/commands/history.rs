//! `artel history`: what happened to the fleet, from its common log.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use artel::LogEntry;
use regex::Regex;

use crate::args::HistoryArgs;
use crate::commands::errors::not_a_regex;
use crate::exit::{Failure, OK};
use crate::harmless::harmless;
use crate::settings::Place;
use crate::{printer, table, times};

/// How often to look for new entries.
const EVERY: Duration = Duration::from_millis(250);

pub(crate) async fn history(place: &Place, args: &HistoryArgs) -> Result<u8, Failure> {
    let fleet = place.open()?;
    let filter = Filter::new(args, fleet.now().await?)?;
    let (mut history, mut kept) = (fleet.history(), VecDeque::new());
    let most = usize::try_from(args.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let mut any = false;
    loop {
        let page = history.page().await?;
        any |= !page.is_empty();
        if page.is_empty() {
            break;
        }
        for entry in page.into_iter().filter(|entry| filter.takes(entry)) {
            if kept.len() == most {
                kept.pop_front();
            }
            kept.push_back(entry);
        }
    }
    if kept.is_empty() && !args.follow {
        tracing::info!("{}", if any { "no entry fits" } else { "this log is empty" });
    }
    if !print(kept.make_contiguous(), args.json)? {
        return Ok(OK);
    }
    if !args.follow {
        return Ok(OK);
    }
    let mut away = false;
    loop {
        tokio::time::sleep(EVERY).await;
        match history.page().await {
            Ok(page) => {
                away = false;
                let page: Vec<LogEntry> =
                    page.into_iter().filter(|entry| filter.takes(entry)).collect();
                if !print(&page, args.json)? {
                    return Ok(OK);
                }
            }
            // Redis is away for a while: this is when people look here.
            Err(error) if error.is_unreachable() || error.is_retryable() => {
                if !std::mem::replace(&mut away, true) {
                    tracing::warn!(%error, "the log cannot be read: waiting for Redis");
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Selects entries.
struct Filter<'a> {
    args: &'a HistoryArgs,
    grep: Option<Regex>,
    since: SystemTime,
}

impl Filter<'_> {
    fn new(args: &HistoryArgs, now: SystemTime) -> Result<Filter<'_>, Failure> {
        let grep = args.grep.as_deref().map(Regex::new).transpose().map_err(not_a_regex)?;
        let since = args.since.and_then(|since| now.checked_sub(since));
        Ok(Filter { args, grep, since: since.unwrap_or(SystemTime::UNIX_EPOCH) })
    }

    fn takes(&self, entry: &LogEntry) -> bool {
        let HistoryArgs { member, kind, .. } = self.args;
        let is_member = |wanted: &String| {
            entry.label.as_ref() == Some(wanted)
                || entry.member.as_ref().is_some_and(|id| id.as_str().starts_with(wanted.as_str()))
        };
        entry.time >= self.since
            && member.as_ref().is_none_or(is_member)
            && (kind.is_empty() || kind.contains(&entry.kind))
            && self.grep.as_ref().is_none_or(|grep| grep.is_match(&entry.text()))
    }
}

/// Prints entries; false if the reader went away.
fn print(entries: &[LogEntry], json: bool) -> Result<bool, Failure> {
    let mut text = String::new();
    for entry in entries {
        match json {
            true => text.push_str(&table::json(entry)?),
            false => text.push_str(&line(entry)),
        }
    }
    Ok(text.is_empty() || printer::data_to_reader(&text)?)
}

/// One entry: when, who, what kind, what.
fn line(entry: &LogEntry) -> String {
    let who = match (&entry.label, &entry.member) {
        (Some(label), _) => label.clone(),
        (None, Some(id)) => id.as_str().chars().take(8).collect(),
        (None, None) => "-".to_owned(),
    };
    let (who, kind, text) = (harmless(&who), harmless(&entry.kind), harmless(&entry.text()));
    format!("{}  {who:12}  {kind:12}  {text}\n", times::point(entry.time))
}
