//! Messages that wait for a time, and periodic entries.

use std::time::{Duration, UNIX_EPOCH};

use artel::{MessageId, ScheduleCursor, Scheduled};
use axum::extract::Path;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::answer::{Problem, document};
use super::act::{Nothing, done, note, unknown};
use super::ask::{Ask, Body};
use super::lists::contains;
use super::shown::{download, show};
use crate::commands::cron::document as cron_row;
use crate::commands::schedule::document as scheduled_row;

const LOOK_MAX: usize = 5000;
const USUAL: usize = 50;
const MOST: usize = 200;
const PIECE: usize = 200;

fn row(one: &Scheduled) -> Value {
    let mut row = scheduled_row(one);
    if let Some(fields) = row.as_object_mut() {
        fields.remove("payload");
        fields.remove("payload_b64");
    }
    show(&mut row, &one.payload, one.payload.len());
    row
}

/// The next one first. With `retried=true` those that failed before, with `retried=false` the others.
pub(super) async fn scheduled(ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&["retried", "kind", "q", "limit", "cursor"])?;
    let limit = ask.params.limit(USUAL, MOST)?;
    let mut cursor: ScheduleCursor = ask.params.get("cursor")?.unwrap_or_default();
    let retried: Option<bool> = ask.params.get("retried")?;
    let kind = ask.params.text("kind");
    let words = ask.params.text("q").map(str::to_lowercase);
    let fits = |one: &Scheduled| {
        let its_kind = one.kind.as_deref().unwrap_or_default();
        retried.is_none_or(|retried| retried == (one.retry > 0))
            && kind.is_none_or(|kind| kind == its_kind)
            && words
                .as_ref()
                .is_none_or(|words| contains(words, &one.payload, &[one.id.as_str(), its_kind]))
    };
    let (schedule, searches) =
        (ask.fleet().schedule(), retried.is_some() || kind.is_some() || words.is_some());
    let (mut rows, mut looked, mut over) = (Vec::new(), 0, false);
    while rows.len() < limit && looked < LOOK_MAX && !over {
        let room = limit - rows.len();
        let (before, count) = (cursor.clone(), if searches { PIECE } else { room });
        let page = schedule.page(&mut cursor, count).await?;
        (looked, over) = (looked + page.len(), page.is_empty());
        let found: Vec<&Scheduled> = page.iter().filter(|one| fits(one)).collect();
        if found.len() > room {
            let passed = page.iter().position(|one| one.id == found[room].id).unwrap_or(1);
            cursor = before;
            schedule.page(&mut cursor, passed.max(1)).await?;
        }
        rows.extend(found.into_iter().take(room).map(row));
    }
    let next = (!over).then(|| cursor.to_string());
    Ok(document(&json!({ "v": 1, "messages": rows, "cursor": next, "looked": looked })))
}

fn id_of(text: &str) -> Result<MessageId, Problem> {
    text.parse().map_err(|why: String| Problem::bad(format!("the id {why}")))
}

pub(super) async fn payload(Path(id): Path<String>, ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let found = ask.fleet().schedule().get(&id_of(&id)?).await?;
    found.map(|one| download(&id, one.payload)).ok_or_else(|| not_waiting(&id))
}

fn not_waiting(id: &str) -> Problem {
    Problem::missing(format!("message {id} does not wait for a time"))
}

/// To when a message is moved.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct To {
    /// A point in time.
    at_ms: Option<u64>,
    /// So long from now.
    in_ms: Option<u64>,
}

pub(super) async fn alter(
    Path((id, act)): Path<(String, String)>,
    ask: Ask,
    Body(to): Body<To>,
) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let (schedule, message) = (ask.acting().schedule(), id_of(&id)?);
    let changed = match (act.as_str(), to.at_ms, to.in_ms) {
        ("run", None, None) => schedule.run_now(&message).await?,
        ("cancel", None, None) => schedule.cancel(&message).await?,
        ("move", Some(ms), None) => {
            let at = UNIX_EPOCH.checked_add(Duration::from_millis(ms));
            let at = at.ok_or_else(|| Problem::bad("`at_ms` is no time"))?;
            schedule.move_to(&message, at).await?
        }
        ("move", None, Some(ms)) => schedule.move_by(&message, Duration::from_millis(ms)).await?,
        ("move", ..) => return Err(Problem::bad("either `at_ms` or `in_ms` must be given")),
        ("run" | "cancel", ..) => {
            return Err(Problem::bad("`at_ms` and `in_ms` are for `move` alone"));
        }
        _ => return Err(unknown(&act, "run, cancel or move")),
    };
    if changed { Ok(done()) } else { Err(not_waiting(&id)) }
}

pub(super) async fn crons(ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let entries = ask.fleet().crons().list().await?;
    let rows: Vec<Value> = entries
        .iter()
        .map(|entry| {
            let mut row = cron_row(entry);
            if let Some(fields) = row.as_object_mut() {
                fields.remove("payload");
                fields.remove("payload_b64");
            }
            show(&mut row, &entry.payload, entry.payload.len());
            row
        })
        .collect();
    Ok(document(&json!({ "v": 1, "entries": rows })))
}

pub(super) async fn cron(
    Path((name, act)): Path<(String, String)>,
    ask: Ask,
    _: Body<Nothing>,
) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let fleet = ask.acting();
    let crons = fleet.crons();
    let missing = || Problem::missing(format!("there is no periodic entry {name:?}"));
    if !crons.list().await?.iter().any(|entry| entry.name == name) {
        return Err(missing());
    }
    match act.as_str() {
        "run" => {
            let sent = crons.run(&name).await?.ok_or_else(missing)?;
            note(&fleet, &format!("ran the periodic entry `{name}`")).await;
            Ok(document(&json!({ "v": 1, "done": true, "id": sent.id.as_str() })))
        }
        "pause" if crons.pause(&name).await? => Ok(done()),
        "pause" => Err(Problem::conflict("this entry is paused already")),
        "resume" if crons.resume(&name).await? => Ok(done()),
        "resume" => Err(Problem::conflict("this entry is not paused")),
        _ => Err(unknown(&act, "run, pause or resume")),
    }
}
