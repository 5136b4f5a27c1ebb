//! `artel schedule`: the messages that wait for a time.

use std::time::SystemTime;

use artel::{Fleet, MessageId, ScheduleCursor, Scheduled};
use base64::Engine;
use serde_json::{Value, json};

use crate::args::ScheduleCommand;
use crate::exit::{Failure, NOT_FOUND, OK, USAGE};
use crate::settings::Place;
use crate::times::since_1970_ms;
use crate::{printer, table, times};

/// How many messages are read at a time.
const PAGE: usize = 200;

pub(crate) async fn schedule(place: &Place, command: &ScheduleCommand) -> Result<u8, Failure> {
    let fleet = place.lasting().await?;
    let schedule = fleet.schedule();
    match command {
        ScheduleCommand::List { kind, limit, json } => {
            return list(&fleet, kind.as_deref(), *limit, *json).await;
        }
        ScheduleCommand::Cancel { ids } => {
            for id in ids {
                done(id, schedule.cancel(&message_id(id)?).await?)?;
                printer::remark(&format!("message {id} is cancelled"));
            }
        }
        ScheduleCommand::Run { ids } => {
            for id in ids {
                done(id, schedule.run_now(&message_id(id)?).await?)?;
                printer::remark(&format!("message {id} may start now"));
            }
        }
        ScheduleCommand::Move { id, delay, at } => {
            let own = message_id(id)?;
            let moved = match (delay, at) {
                (Some(delay), _) => schedule.move_by(&own, *delay).await?,
                (None, at) => schedule.move_to(&own, at.unwrap_or_else(SystemTime::now)).await?,
            };
            done(id, moved)?;
            let due = match schedule.get(&own).await? {
                Some(one) if one.left.is_some() => {
                    format!(": it is due at {}", times::point(one.due))
                }
                _ => ": it is due now".to_owned(),
            };
            printer::remark(&format!("message {id} is moved{due}"));
        }
    }
    Ok(OK)
}

fn message_id(text: &str) -> Result<MessageId, Failure> {
    text.parse().map_err(|_| {
        Failure::new(USAGE, format!("{text:?} is not an id of a message"))
            .hint("`artel schedule list` shows the ids")
    })
}

fn done(id: &str, is_done: bool) -> Result<(), Failure> {
    match is_done {
        true => Ok(()),
        false => Err(Failure::new(NOT_FOUND, format!("message {id} does not wait for a time"))
            .hint(format!("`artel show {id}` shows where it is"))),
    }
}

async fn list(fleet: &Fleet, kind: Option<&str>, limit: usize, json: bool) -> Result<u8, Failure> {
    let (mut cursor, mut found, mut more) = (ScheduleCursor::default(), Vec::new(), false);
    'pages: loop {
        let page = fleet.schedule().page(&mut cursor, PAGE).await?;
        if page.is_empty() {
            break;
        }
        for one in page {
            if kind.is_some_and(|kind| one.kind.as_deref() != Some(kind)) {
                continue;
            }
            if found.len() == limit {
                more = true;
                break 'pages;
            }
            found.push(one);
        }
    }
    if json {
        for one in &found {
            printer::data(&table::json(&document(one))?)?;
        }
        return Ok(OK);
    }
    if found.is_empty() {
        printer::shown("no messages wait for a time\n")?;
        return Ok(OK);
    }
    let rows = found.iter().map(|one| {
        [
            one.id.to_string(),
            times::point(one.due),
            one.left.map_or_else(|| "overdue".to_owned(), times::span),
            one.kind.clone().unwrap_or_default(),
            one.retry.to_string(),
            String::from_utf8_lossy(&one.payload).chars().take(60).collect(),
        ]
    });
    let head = ["ID", "DUE", "IN", "KIND", "RETRIES", "MESSAGE"];
    printer::shown(&printer::screen().columns(
        head,
        rows,
        &["MESSAGE", "DUE", "RETRIES"],
        |row| row[2] == "overdue",
    ))?;
    if more {
        printer::remark(&format!("only the first {limit} are shown: `--limit` shows more"));
    }
    Ok(OK)
}

pub(crate) fn document(one: &Scheduled) -> Value {
    let mut document = json!({
        "v": 1,
        "id": one.id.as_str(),
        "due_ms": since_1970_ms(one.due),
        "left_ms": one.left.map_or(0, |left| left.as_millis() as u64),
        "overdue": one.left.is_none(),
        "kind": one.kind,
        "lane": one.lane.name(),
        "attempt": one.attempt,
        "retries": one.retry,
        "waits": one.waits,
        "generated_ms": since_1970_ms(one.generated_at),
    });
    match std::str::from_utf8(&one.payload) {
        Ok(text) => document["payload"] = text.into(),
        Err(_) => {
            document["payload_b64"] = base64::prelude::BASE64_STANDARD.encode(&one.payload).into();
        }
    }
    document
}
