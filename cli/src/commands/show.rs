//! `artel show`: where one message is.

use std::time::SystemTime;

use artel::{MessageState, WaitingIn};
use serde_json::{Value, json};

use crate::commands::errors;
use crate::exit::{Failure, NOT_FOUND, OK};
use crate::harmless::harmless;
use crate::settings::Place;
use crate::times::since_1970_ms;
use crate::{printer, table, times};

pub(crate) async fn show(place: &Place, id: &str, json: bool) -> Result<u8, Failure> {
    let fleet = place.open()?;
    let state = fleet.find(id).await?;
    let code = if state == MessageState::Unknown { NOT_FOUND } else { OK };
    if json {
        printer::data(&table::json(&document(id, &state))?)?;
        return Ok(code);
    }
    if code == NOT_FOUND {
        let error = format!("message {id} is not found in fleet {:?}", place.fleet);
        return Err(Failure::new(NOT_FOUND, error).hint(
            "is the `--fleet` right? If its members have `--ledger 100000`, the last messages that \
             ended are remembered",
        ));
    }
    let now = fleet.now().await?;
    printer::data(&words(&state, now))?;
    Ok(OK)
}

fn words(state: &MessageState, now: SystemTime) -> String {
    let screen = printer::screen();
    let ago = |time: &SystemTime| times::point_ago(*time, now);
    match state {
        MessageState::Waiting { line, ahead, attempt, since } => screen.flow(&[
            format!("waiting in lane {}", lane(line)),
            format!("{ahead} in front of it"),
            attempts(*attempt),
            format!("added {}", ago(since)),
        ]),
        MessageState::Scheduled { due, attempt, retry, waits, since } => screen.flow(&[
            match due.duration_since(now) {
                Ok(left) => {
                    format!("waits until {} (in {})", times::point(*due), times::span(left))
                }
                Err(_) => format!("was due {}", ago(due)),
            },
            if *retry > 0 { format!("retried {}", counted(*retry)) } else { String::new() },
            match waits {
                0 => String::new(),
                times => format!("{} a member had no handler for it", counted(*times)),
            },
            attempts(*attempt),
            format!("added {}", ago(since)),
        ]),
        MessageState::Claimed { member, label, process, is_dead, attempt } => screen.flow(&[
            format!("claimed by {}", harmless(label)),
            harmless(process),
            member.to_string(),
            attempts(*attempt),
            match is_dead {
                true => "that member is dead: another one gets the message".to_owned(),
                false => String::new(),
            },
        ]),
        MessageState::Failed { record, is_being_taken } => {
            let taken =
                if *is_being_taken { "failed, and is being taken now\n" } else { "failed\n" };
            let mut text = taken.to_owned();
            errors::entry(&mut text, record, now);
            text
        }
        MessageState::Done { member, attempt, at } => screen.flow(&[
            format!("done {}", ago(at)),
            member.as_ref().map_or_else(String::new, |member| format!("by {member}")),
            attempts(*attempt),
        ]),
        MessageState::FailedAndGone { at } => {
            let what =
                "and is no longer stored: it was taken, put back, dropped, cancelled or not kept"
                    .to_owned();
            screen.flow(&[format!("failed {}", ago(at)), what])
        }
        MessageState::Duplicate { of } => {
            format!("not added: message {of} was sent with the same key before\n")
        }
        MessageState::Ended { is_done: true } => "done\n".to_owned(),
        _ => {
            "it has ended: it is done; or it was cancelled; or it failed and is no longer stored; \
              or it was a duplicate. Members with `--ledger 100000` remember which\n"
                .to_owned()
        }
    }
}

fn attempts(attempt: u32) -> String {
    if attempt > 1 { format!("attempt {attempt}") } else { String::new() }
}

fn counted(times: u32) -> String {
    if times == 1 { "once".to_owned() } else { format!("{times} times") }
}

fn lane(line: &WaitingIn) -> &'static str {
    match line {
        WaitingIn::Lane(lane) => lane.name(),
        _ => "returned",
    }
}

pub(crate) fn document(id: &str, state: &MessageState) -> Value {
    let mut document = match state {
        MessageState::Waiting { line, ahead, attempt, since } => json!({
            "state": "waiting", "lane": lane(line), "ahead": ahead, "attempt": attempt,
            "since_ms": since_1970_ms(*since),
        }),
        MessageState::Scheduled { due, attempt, retry, waits, since } => json!({
            "waits": waits,
            "state": "scheduled", "due_ms": since_1970_ms(*due), "attempt": attempt,
            "retries": retry, "since_ms": since_1970_ms(*since),
        }),
        MessageState::Claimed { member, label, process, is_dead, attempt } => json!({
            "state": "claimed", "member": member, "label": label, "process": process, "dead": is_dead,
            "attempt": attempt,
        }),
        MessageState::Failed { record, is_being_taken } => {
            json!({ "state": "failed", "being_taken": is_being_taken, "record": record })
        }
        MessageState::Done { member, attempt, at } => json!({
            "state": "done", "member": member, "attempt": attempt, "at_ms": since_1970_ms(*at),
        }),
        MessageState::FailedAndGone { at } => {
            json!({ "state": "failed_and_gone", "at_ms": since_1970_ms(*at) })
        }
        MessageState::Duplicate { of } => json!({ "state": "duplicate", "of": of }),
        MessageState::Ended { is_done } => {
            json!({ "state": "ended", "done": is_done.then_some(true) })
        }
        _ => json!({ "state": "unknown" }),
    };
    document["v"] = 1.into();
    document["id"] = id.into();
    document
}
