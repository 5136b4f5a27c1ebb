//! `artel history`: what happened to the fleet, from its common log; what a process did, from its archive.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, SystemTime};

use artel::LogEntry;
use artel::hub::{Query, Record};
use regex::Regex;

use crate::archive::ArchivePlace;
use crate::args::HistoryArgs;
use crate::commands::errors::not_a_regex;
use crate::exit::{FAILURE, Failure, OK};
use crate::harmless::harmless;
use crate::settings::Place;
use crate::{printer, table, times};

/// How often to look for new entries.
const EVERY: Duration = Duration::from_millis(250);
/// How many records of an archive are shown by default.
const ARCHIVED: u64 = 100;
/// How many records of an archive are read at once, at most.
const ARCHIVED_PAGE_MAX: usize = 8_000;

pub(crate) async fn history(place: &Place, args: &HistoryArgs) -> Result<u8, Failure> {
    let fleet = place.open()?;
    let filter = Filter::new(args, fleet.now().await?)?;
    let (mut history, mut kept) = (fleet.history(), VecDeque::new());
    let most = usize::try_from(args.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let mut kinds = BTreeSet::new();
    loop {
        let page = history.page().await?;
        kinds.extend(page.iter().map(|entry| entry.kind.clone()));
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
        match kinds.is_empty() {
            true => tracing::info!("this log is empty"),
            false => {
                let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
                tracing::info!(
                    "no entry fits; there are entries of these kinds: {}",
                    harmless(&kinds)
                );
            }
        }
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

/// Shows records of an archive, the newest first.
pub(crate) fn archived(place: &ArchivePlace, args: &HistoryArgs) -> Result<u8, Failure> {
    let grep = args.grep.as_deref().map(Regex::new).transpose().map_err(not_a_regex)?;
    let history = place.read()?;
    let mut query = Query::all().newest_first();
    if let Some(since) = args.since {
        query = query.from(since.from(SystemTime::now()));
    }
    let most = args.limit.unwrap_or(ARCHIVED);
    let mut left = most;
    let failed = |error: artel::hub::ArchiveError| Failure::new(FAILURE, error.to_string());
    loop {
        let page = history.query(&query).map_err(failed)?;
        let Some(last) = page.last() else {
            if left == most {
                tracing::info!("no record fits");
            }
            return Ok(OK);
        };
        query = query.before(last.id);
        let mut text = String::new();
        let before = left;
        for record in page.iter().filter(|record| fits(record, args, grep.as_ref())) {
            if left == 0 {
                break;
            }
            left -= 1;
            match args.json {
                true => text.push_str(&table::json(record)?),
                false => text.push_str(&record_line(record)),
            }
        }
        if !printer::data_to_reader(&text)? || left == 0 {
            return Ok(OK);
        }
        // A file of lines is read from its beginning for each page: where little fits, pages grow.
        if before - left < page.len() as u64 / 2 {
            query = query.limit((page.len() * 4).min(ARCHIVED_PAGE_MAX));
        }
    }
}

fn word<'a>(record: &'a Record, name: &str) -> &'a str {
    record.payload.as_ref().and_then(|payload| payload[name].as_str()).unwrap_or_default()
}

fn fits(record: &Record, args: &HistoryArgs, grep: Option<&Regex>) -> bool {
    let HistoryArgs { member, kind, outcome, .. } = args;
    let is_kind = |kind: &String| [word(record, "kind"), word(record, "notice")].contains(&&**kind);
    let is_member = |wanted: &String| {
        [word(record, "member"), word(record, "label")]
            .iter()
            .any(|name| name.starts_with(&**wanted))
    };
    member.as_ref().is_none_or(is_member)
        && (kind.is_empty() || kind.iter().any(is_kind))
        && outcome.as_ref().is_none_or(|outcome| word(record, "step") == outcome)
        && grep.is_none_or(|grep| {
            record.payload.as_ref().is_some_and(|payload| grep.is_match(&payload.to_string()))
        })
}

/// One record of an archive: when, what, of which message, and the rest.
fn record_line(record: &Record) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(record.at_ms);
    let what = [word(record, "step"), word(record, "notice")].concat();
    let mut rest = record.payload.clone().unwrap_or_default();
    if let Some(fields) = rest.as_object_mut() {
        fields.retain(|name, value| !["step", "notice"].contains(&&**name) && !value.is_null());
    }
    let rest = match rest.as_object() {
        Some(fields) => {
            let field = |(name, value): (&String, &serde_json::Value)| match value.as_str() {
                Some(text) => format!("{name}={text}"),
                None => format!("{name}={value}"),
            };
            fields.iter().map(field).collect::<Vec<_>>().join(" ")
        }
        None => rest.to_string(),
    };
    format!("{}  {:16}  {}\n", times::point(at), harmless(&what), harmless(&rest))
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
        let since = args.since.map_or(SystemTime::UNIX_EPOCH, |since| since.from(now));
        Ok(Filter { args, grep, since })
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
