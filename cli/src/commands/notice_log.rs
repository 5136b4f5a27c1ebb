//! The log of a member: a line for each notice; notices that repeat are counted.

use std::time::Instant;

use artel::{Notice, Notices};

use crate::repeats::{Counted, EVERY, Repeats, same};
use crate::times;

// `up` reads these lines, too.
pub(crate) const JOINED: &str = "joined the fleet";
pub(crate) const LEADS: &str = "generator: this process leads";
pub(crate) const DEPOSED: &str = "no longer the generator";
pub(crate) const DONE: &str = "message done";
const FAILED: &str = "message failed";
const NOT_GENERATED: &str = "nothing generated";
const NO_WORKER: &str =
    "nobody works: start a second copy, or let this one work with `--leader-works alone`";

/// Logs the notices until the member has left the fleet.
pub(crate) async fn log_notices(mut notices: Notices, label: String) {
    let (mut failed, mut not_generated) = (Repeats::after(5), Repeats::after(1));
    // What is about single messages or entries may come in any number; it must not hide what is about the fleet.
    let (mut ones, mut others) = (Repeats::after(5), Repeats::after(20));
    loop {
        let notice = tokio::time::timeout(EVERY / 4, notices.next()).await;
        let now = Instant::now();
        let counted = ones.due(now).into_iter().chain(others.due(now)).collect();
        tell_counted(failed.due(now), not_generated.due(now), counted);
        match notice {
            Err(_) => {}
            Ok(None) => break,
            Ok(Some(Notice::MessageFailed { id, kind, attempt, reason, took, .. })) => {
                let what = format!("{} {reason}", kind.as_deref().unwrap_or_default());
                if failed.is_new(&what, now) {
                    let took = std::time::Duration::from_micros(took.as_micros() as u64);
                    tracing::warn!(%id, kind, attempt, reason, ?took, "{FAILED}");
                }
            }
            Ok(Some(Notice::GenerateFailed { reason })) => {
                if not_generated.is_new(&reason, now) {
                    tracing::error!(reason, "{NOT_GENERATED}");
                }
            }
            Ok(Some(
                notice @ (Notice::Joined { .. }
                | Notice::BecameGenerator { .. }
                | Notice::LeaseLost { .. }),
            )) => {
                say(notice, &label);
            }
            Ok(Some(notice)) => {
                let what = format!("{notice:?}");
                let is_new = match about_one(&notice) {
                    Some(reason) => {
                        ones.is_new_of(format!("{} {}", notice.name(), same(reason)), &what, now)
                    }
                    None => others.is_new_of(notice.name().to_owned(), &what, now),
                };
                if is_new {
                    say(notice, &label);
                }
            }
        }
    }
    let counted = ones.rest().into_iter().chain(others.rest()).collect();
    tell_counted(failed.rest(), not_generated.rest(), counted);
}

/// What tells notices apart that are about one message or one entry. `None`: it is about this member or the fleet.
fn about_one(notice: &Notice) -> Option<&str> {
    match notice {
        Notice::Retried { reason, .. } => Some(reason),
        Notice::Snoozed { reason, .. } => Some(reason.as_deref().unwrap_or_default()),
        Notice::Fired { entry, .. }
        | Notice::Skipped { entry, .. }
        | Notice::CronReplaced { entry, .. } => Some(entry),
        Notice::ClaimLost { .. } | Notice::Unread { .. } => Some(""),
        _ => None,
    }
}

fn tell_counted(failed: Vec<Counted>, not_generated: Vec<Counted>, others: Vec<Counted>) {
    for Counted { more, last } in failed {
        tracing::warn!(more, like = last.trim_start(), "{FAILED}");
    }
    for Counted { more, last } in not_generated {
        tracing::error!(more, like = last, "{NOT_GENERATED}");
    }
    for Counted { more, last } in others {
        tracing::warn!(more, like = last, "more notices like this");
    }
}

fn say(notice: Notice, label: &str) {
    let pid = std::process::id();
    match notice {
        Notice::Joined { member } => tracing::info!(%member, label, pid, "{JOINED}"),
        Notice::BecameGenerator { term, gap } => {
            let gap_ms = gap.map(|gap| gap.as_millis() as u64);
            tracing::info!(%term, label, pid, gap_ms, "{LEADS}")
        }
        Notice::LeaseLost { term, reason } => {
            tracing::info!(%term, reason, "{DEPOSED}")
        }
        Notice::Fenced { term } => {
            tracing::warn!(%term, "fenced: Redis refused a write of a stale term")
        }
        Notice::NoWorker => tracing::info!("{NO_WORKER}"),
        Notice::Full { reason } => tracing::warn!(reason, "generating waits"),
        Notice::Flowing => tracing::info!("generating goes on"),
        Notice::MemberDied { member, label, process } => {
            tracing::warn!(%member, who = label, process, "member died");
        }
        Notice::Adopted { member, returned, failed } => {
            tracing::info!(%member, returned, failed, "put back its messages");
        }
        Notice::ClaimLost { id } => {
            tracing::warn!(%id, "claim lost: its outcome is not recorded")
        }
        Notice::SessionLost { member } => tracing::warn!(%member, "session lost, joining anew"),
        Notice::Unread { id, failed: false } => {
            tracing::warn!(%id, "message not read in time over this link: given back");
        }
        Notice::Unread { id, failed: true } => {
            tracing::error!(%id, "message failed: too many workers could not read it in time");
        }
        Notice::Exhausted { keys } => tracing::error!(
            keys = keys.join(", "),
            "no larger term or token can be granted: Redis's clock is, or was, past the year 2112 \
                 (docs/operations.md, \"Clocks\")"
        ),
        Notice::GaveBack { messages } => tracing::info!(messages, "handed back unstarted"),
        Notice::Missed { notices } => {
            tracing::warn!(notices, "too many notices: some are not logged")
        }
        other => say_of_redis(other),
    }
}

/// Notices about the server.
fn say_of_redis(notice: Notice) {
    match notice {
        Notice::Disconnected { reason } => {
            tracing::warn!(reason, "Redis does not answer: waiting for it");
        }
        Notice::Denied { reason } => tracing::error!(
            reason,
            "Redis denies access now: was its password, or this user's rights, changed? Waiting"
        ),
        Notice::Reconnected { after } => {
            tracing::info!(after_ms = after.as_millis() as u64, "Redis answers again");
        }
        Notice::DataLossSeen { what } => {
            tracing::error!(what, "data loss: Redis has lost acknowledged writes");
        }
        Notice::Replicated { after } => {
            tracing::info!(?after, "enough replicas have everything again");
        }
        Notice::Unreplicated { replicas, wanted } => {
            tracing::warn!(replicas, wanted, "waiting for replicas");
        }
        Notice::ServerChanged { from, to, forgotten: 0 } => {
            tracing::info!(from, to, "another server process answers");
        }
        Notice::ServerChanged { from, to, forgotten } => {
            tracing::error!(from, to, forgotten, "another server answers, and has forgotten steps");
        }
        Notice::SlotMoving { slot, after } => {
            let after = times::span(after);
            tracing::warn!(slot, after, "the slot of this fleet is being moved: everything waits");
        }
        Notice::Refused { reason } => {
            tracing::error!(reason, "Redis refuses writes: this member gives up its messages");
        }
        other => say_of_jobs(other),
    }
}

/// Notices about messages that run again or wait for a time.
fn say_of_jobs(notice: Notice) {
    match notice {
        Notice::Retried { id, kind, attempt, retry, reason, after } => {
            let after = times::span(after);
            tracing::info!(%id, kind, attempt, retry, reason, after, "message will be retried");
        }
        Notice::Snoozed { id, kind, attempt, reason: None, after } => {
            let after = times::span(after);
            tracing::debug!(%id, kind, attempt, after, "message is snoozed");
        }
        Notice::Snoozed { id, kind, attempt, reason: Some(reason), after } => {
            let after = times::span(after);
            tracing::warn!(%id, kind, attempt, reason, after, "message waits for a member that knows its kind");
        }
        Notice::Fired { entry, due } => {
            tracing::info!(entry, due = times::point(due), "periodic entry fired");
        }
        Notice::Skipped { entry, due, reason } => {
            tracing::warn!(entry, due = times::point(due), reason, "periodic entry skipped a time");
        }
        Notice::CronReplaced { entry, before } => tracing::warn!(
            entry,
            before,
            "this periodic entry was declared differently before: this declaration counts now"
        ),
        Notice::Paused { lanes, drained: false } => {
            let lanes: Vec<&str> = lanes.iter().map(|lane| lane.name()).collect();
            tracing::info!(lanes = lanes.join(","), "paused: nothing is fetched from these lanes");
        }
        Notice::Paused { .. } => {
            tracing::info!("drained: this member fetches nothing and does not lead");
        }
        Notice::Resumed => tracing::info!("resumed: nothing is paused any more"),
        Notice::Overdue { late } => {
            tracing::warn!(late = times::span(late), "a scheduled message is overdue");
        }
        other => tracing::info!(?other, "notice"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: messages of many senders filled the table, and a loss of data was only counted.
    #[test]
    fn no_flood_of_messages_hides_a_loss() {
        let (mut ones, mut others) = (Repeats::after(5), Repeats::after(20));
        let now = Instant::now();
        for sender in 0..1000 {
            let retried =
                Notice::ClaimLost { id: format!("s{sender:x}ab-1").parse().expect("an id") };
            let reason = about_one(&retried).expect("it is about one message");
            ones.is_new_of(format!("{} {reason}", retried.name()), "x", now);
        }
        let loss = Notice::DataLossSeen { what: "terms that were granted" };
        assert!(about_one(&loss).is_none());
        assert!(others.is_new_of(loss.name().to_owned(), "x", now));
    }
}
