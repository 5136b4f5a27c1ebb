//! What is good or bad about a fleet: its books, its members, the room it has.

use std::time::Duration;

use super::finding::Level::{Advice, Danger};
use super::finding::{Finding, NEARLY};
use crate::json_time::TimeLeft;
use crate::outcome::{Status, Trouble};

/// A scheduled message that is overdue for this long.
const OVERDUE: Duration = Duration::from_secs(5);

/// All findings about the fleet itself. `bounds`: messages in a lane, and failed messages.
pub(super) fn fleet_findings(
    status: &Status,
    (backlog_max, errors_max): (u64, u64),
) -> Vec<Finding> {
    vec![books(status), members(status), room(status, backlog_max, errors_max), overdue(status)]
}

fn books(status: &Status) -> Finding {
    let m = &status.messages;
    let what = format!(
        "{} waiting, {} scheduled, {} claimed, {} failed and stored; difference {}",
        m.waiting, m.scheduled, m.claimed, status.errors.stored, m.balance
    );
    match m.balance {
        0 => Finding::good("books", what),
        _ => Finding::bad(
            ("books", Danger),
            what,
            "messages are missing or counted twice: somebody changed keys by hand, or Redis lost data",
            "compare the counters (`artel status --json`) with the log of Redis; please report it if neither explains it",
        ),
    }
}

fn members(status: &Status) -> Finding {
    let what = match &status.generator {
        Some(leader) => format!("{} members, {} leads", status.members.len(), leader.label),
        None => format!("{} members, nobody leads", status.members.len()),
    };
    let more = "`artel run`";
    match status.trouble() {
        Some(Trouble::NoLeader) => {
            let consequence = "nobody generates, although somebody could";
            let mend = "`artel status` shows who can lead; look into the logs of those members";
            Finding::bad(("members", Danger), what, consequence, mend)
        }
        Some(Trouble::NoWorker) => {
            let consequence = "messages wait, and nobody handles them";
            Finding::bad(("members", Danger), what, consequence, "`artel work --handler …`")
        }
        Some(Trouble::NoMember) if status.orphans > 0 => {
            let what = format!(
                "no members, and {} dead ones still hold messages or locks",
                status.orphans
            );
            let consequence = "nobody puts back what they hold";
            Finding::bad(("members", Danger), what, consequence, format!("start a member: {more}"))
        }
        Some(Trouble::NoMember) => {
            let consequence = "messages wait until a member joins";
            Finding::bad(("members", Advice), "no members", consequence, more)
        }
        _ if status.orphans > 0 => {
            let what = format!("{what}; {} dead ones still hold messages or locks", status.orphans);
            let consequence = "what they hold is put back within seconds";
            let mend = "if it stays: `artel status`, and the logs of the members";
            Finding::bad(("members", Advice), what, consequence, mend)
        }
        _ => Finding::good("members", what),
    }
}

fn room(status: &Status, backlog_max: u64, errors_max: u64) -> Finding {
    let lanes = &status.lanes;
    let fullest = [lanes.high, lanes.generated, lanes.normal, lanes.low, status.messages.scheduled];
    let fullest = fullest.into_iter().max().unwrap_or(0);
    let nearly = |count: u64, most: u64| count as f64 >= most as f64 * NEARLY;
    let errors = status.errors.stored;
    let what = format!(
        "{fullest} of {backlog_max} in the fullest lane, {errors} of {errors_max} failed messages"
    );
    let consequence = "when it is full, the generator and senders wait; nothing is dropped";
    if nearly(errors, errors_max) {
        let mend = "take the failed messages: `artel getErrors > FILE`, or `artel errors requeue`";
        return Finding::bad(("room", Advice), what, consequence, mend);
    }
    match nearly(fullest, backlog_max) {
        true => Finding::bad(
            ("room", Advice),
            what,
            consequence,
            "start more workers: `artel work --handler …`",
        ),
        false => Finding::good("room", what),
    }
}

fn overdue(status: &Status) -> Finding {
    let scheduled = status.messages.scheduled;
    match &status.next_due {
        Some(TimeLeft::Overdue(late)) if *late > OVERDUE => Finding::bad(
            ("schedule", if status.members.is_empty() { Advice } else { Danger }),
            format!("{scheduled} scheduled, the first should have started {late:.0?} ago"),
            "messages for later, retries and periodic entries do not start",
            "`artel status` shows the members; without one: `artel run`",
        ),
        _ => Finding::good(
            "schedule",
            format!("{scheduled} scheduled, {} periodic entries", status.crons),
        ),
    }
}
