//! Orders to a fleet, and its events and locks.
//!
//! **Invariant:** an order that would change nothing is answered with a conflict, not with a success.

use artel::{Error, Fleet, Lane, MemberId};
use axum::extract::Path;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::super::answer::{Problem, document};
use super::ask::{Ask, Body};
use crate::commands::event::document as event_row;

/// A body without fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// It was done.
pub(super) fn done() -> Response {
    document(&json!({ "v": 1, "done": true }))
}

fn changed(has_changed: bool, otherwise: &str) -> Result<Response, Problem> {
    if has_changed { Ok(done()) } else { Err(Problem::conflict(otherwise)) }
}

pub(super) async fn step_down(ask: Ask, _: Body<Nothing>) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    changed(ask.acting().step_down().await?, "nobody leads")
}

pub(super) async fn pause(ask: Ask, _: Body<Nothing>) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    changed(ask.acting().pause_all().await?, "everything is paused already")
}

pub(super) async fn resume(ask: Ask, _: Body<Nothing>) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    changed(ask.acting().resume_all().await?, "there is no order that pauses everything")
}

pub(super) async fn lane(
    Path((lane, act)): Path<(String, String)>,
    ask: Ask,
    _: Body<Nothing>,
) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let lane: Lane = lane.parse().map_err(|error: Error| Problem::missing(error.to_string()))?;
    match act.as_str() {
        "pause" => changed(ask.acting().pause(lane).await?, "this lane is paused already"),
        "resume" => changed(ask.acting().resume(lane).await?, "this lane is not paused"),
        _ => Err(unknown(&act, "pause or resume")),
    }
}

pub(super) async fn member(
    Path((member, act)): Path<(String, String)>,
    ask: Ask,
    _: Body<Nothing>,
) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let fleet = ask.acting();
    let id = member_of(&fleet, &member).await?;
    match act.as_str() {
        "drain" => changed(fleet.drain(&id).await?, "this member is drained already"),
        "resume" => changed(fleet.end_drain(&id).await?, "this member is not drained"),
        _ => Err(unknown(&act, "drain or resume")),
    }
}

pub(super) fn unknown(act: &str, known: &str) -> Problem {
    Problem::missing(format!("there is no `{act}` here: {known}"))
}

async fn member_of(fleet: &Fleet, id: &str) -> Result<MemberId, Problem> {
    let status = fleet.status().await?;
    let found = status.members.into_iter().find(|member| member.id.as_str() == id);
    found.map(|member| member.id).ok_or_else(|| Problem::missing(format!("{id} is not a member")))
}

pub(super) async fn events(ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let events = ask.fleet().events().await?;
    let rows: Vec<_> = events.iter().map(|one| event_row(&one.name, &one.state)).collect();
    Ok(document(&json!({ "v": 1, "events": rows })))
}

pub(super) async fn event(
    Path((name, act)): Path<(String, String)>,
    ask: Ask,
    _: Body<Nothing>,
) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    let fleet = ask.acting();
    let event = fleet.event(&name)?;
    match act.as_str() {
        "set" => event.set().await?,
        "clear" => event.clear().await?,
        _ => return Err(unknown(&act, "set or clear")),
    }
    let done_to_it = if act == "set" { "set" } else { "cleared" };
    note(&fleet, &format!("{done_to_it} the event `{name}`")).await;
    Ok(done())
}

/// Writes to the common log what was done. It is done, also if that fails.
pub(super) async fn note(fleet: &Fleet, what: &str) {
    if let Err(error) = fleet.log_action(what).await {
        tracing::warn!(%error, "http: what was done is not in the common log: {what}");
    }
}

pub(super) async fn locks(ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    Ok(document(&json!({ "v": 1, "locks": ask.fleet().locks().await? })))
}
