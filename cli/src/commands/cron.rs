//! `artel cron`: the periodic entries.

use artel::{Cron, CronEntry, CronSet, NewMessage};
use base64::Engine;
use serde_json::{Value, json};

use crate::args::{CronCommand, CronSetArgs};
use crate::exit::{Failure, NOT_FOUND, OK};
use crate::settings::Place;
use crate::times::since_1970_ms;
use crate::{printer, table, times};

/// In whose name entries are declared here.
const BY: &str = "artel cron";

pub(crate) async fn cron(place: &Place, command: &CronCommand) -> Result<u8, Failure> {
    let fleet = place.lasting().await?;
    let crons = fleet.crons();
    let missing = |name: &str, what: &str| {
        Failure::new(NOT_FOUND, format!("entry {name:?} {what}"))
            .hint("`artel cron list` shows the entries")
    };
    match command {
        CronCommand::List { json } => {
            let (entries, now) = (crons.list().await?, fleet.now().await?);
            let text = match json {
                true => {
                    let entries: Vec<Value> = entries.iter().map(document).collect();
                    table::json(&json!({ "v": 1, "entries": entries }))?
                }
                false if entries.is_empty() => "no periodic entries\n".to_owned(),
                false => rows(&entries, now),
            };
            printer::shown(&text)?;
        }
        CronCommand::Set(args) => {
            let set = crons.declare(&args.name, &entry(args), BY).await?;
            let said = match set {
                CronSet::Same => "unchanged",
                CronSet::Replaced(_) => "replaced",
                _ => "made",
            };
            let entries = crons.list().await?;
            let next = entries.iter().find(|entry| entry.name == args.name);
            let next = match next {
                Some(entry) if entry.is_paused => "; it is still paused".to_owned(),
                Some(CronEntry { next_at: Some(next), tz, .. }) => {
                    format!("; its next time is {}", times::point_in(*next, tz))
                }
                _ => String::new(),
            };
            printer::remark(&format!("entry {} is {said}{next}", args.name));
        }
        CronCommand::Remove { names } => {
            for name in names {
                if !crons.remove(name).await? {
                    return Err(missing(name, "does not exist"));
                }
                printer::remark(&format!("entry {name} is removed"));
            }
        }
        CronCommand::Run { name } => match crons.run(name).await? {
            Some(sent) => printer::data(&format!("{}\n", sent.id))?,
            None => return Err(missing(name, "does not exist")),
        },
        CronCommand::Pause { names } => {
            for name in names {
                if !crons.pause(name).await? {
                    return Err(missing(name, "does not exist, or is paused already"));
                }
                printer::remark(&format!("entry {name} is paused"));
            }
        }
        CronCommand::Resume { names } => {
            for name in names {
                if !crons.resume(name).await? {
                    return Err(missing(name, "does not exist, or is not paused"));
                }
                printer::remark(&format!("entry {name} is resumed"));
            }
        }
    }
    Ok(OK)
}

fn entry(args: &CronSetArgs) -> Cron {
    let mut message = NewMessage::from(args.message.as_str());
    if let Some(kind) = &args.kind {
        message = message.with_kind(kind);
    }
    if let Some(retries) = args.retries {
        message = message.retries(retries);
    }
    if let Some(expires) = args.expires {
        message = message.expires_in(expires);
    }
    let cron = Cron::new(&args.spec)
        .tz(&args.tz)
        .catch_up(args.catch_up.into())
        .lane(args.lane.into())
        .message(message);
    if args.no_overlap { cron.no_overlap() } else { cron }
}

/// When an entry last fired, as the clocks of its zone show it.
fn last(at: std::time::SystemTime, zone: &str, now: std::time::SystemTime) -> String {
    let ago = times::span(now.duration_since(at).unwrap_or_default());
    format!("{} ({ago} ago)", times::point_in(at, zone))
}

fn rows(entries: &[CronEntry], now: std::time::SystemTime) -> String {
    let rows = entries.iter().map(|entry| {
        let next = match entry.next_at {
            _ if entry.is_paused => "paused".to_owned(),
            Some(next) => times::point_in(next, &entry.tz),
            None => "never".to_owned(),
        };
        [
            entry.name.clone(),
            entry.spec.clone(),
            if entry.spec.starts_with("every ") { String::new() } else { entry.tz.clone() },
            next,
            entry.fired_at.map_or_else(|| "never".to_owned(), |at| last(at, &entry.tz, now)),
            entry.catch_up.to_owned(),
            if entry.overlap { "yes" } else { "no" }.to_owned(),
            entry.kind.clone().unwrap_or_default(),
            String::from_utf8_lossy(&entry.payload).chars().take(40).collect(),
            format!("{}, {}", entry.by, times::point(entry.changed_at)),
        ]
    });
    printer::screen().columns(
        [
            "ENTRY", "TIMES", "ZONE", "NEXT", "LAST", "CATCH-UP", "OVERLAP", "KIND", "MESSAGE",
            "DECLARED",
        ],
        rows,
        &["DECLARED", "MESSAGE", "OVERLAP", "CATCH-UP", "KIND", "LAST", "ZONE"],
        |_| false,
    )
}

pub(crate) fn document(entry: &CronEntry) -> Value {
    let mut document = json!({
        "entry": entry.name,
        "spec": entry.spec,
        "tz": entry.tz,
        "catch_up": entry.catch_up,
        "overlap": entry.overlap,
        "paused": entry.is_paused,
        "lane": entry.lane.name(),
        "kind": entry.kind,
        "by": entry.by,
        "changed_ms": since_1970_ms(entry.changed_at),
        "fired_ms": entry.fired_at.map(since_1970_ms),
        "next_ms": entry.next_at.map(since_1970_ms),
    });
    match std::str::from_utf8(&entry.payload) {
        Ok(text) => document["payload"] = text.into(),
        Err(_) => {
            document["payload_b64"] =
                base64::prelude::BASE64_STANDARD.encode(&entry.payload).into();
        }
    }
    document
}
