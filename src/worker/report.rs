//! The report about a message whose outcome is recorded.

use std::time::Duration;

use tracing::Level;

use crate::feed::Step;
use crate::notice::{Board, Notice};
use crate::outcome::{Failure, How, Outcome, Report, Retry, Snooze};
use crate::queue::{Block, Claim};

/// A failure, a retry and a snooze are notices. A done message is logged at the level `debug`. Generated messages and sent
/// messages have separate targets, for programs that show only one of them.
pub(super) fn report(board: &Board, block: &Block, claim: &Claim, outcome: Outcome, about: Report) {
    let (attempt, kind) = (block.tries(claim).runs, about.kind.clone());
    let (id, retry) = (|| block.id(claim), block.tries(claim).retries + 1);
    if let Some(feed) = &board.feed {
        let (step, reason) = match outcome.how() {
            None | Some(How::Done) => (Step::Done, None),
            Some(How::Failed(failure)) => (Step::Failed, Some(failure.reason.clone())),
            Some(How::Retry(retry)) => (Step::Retried, Some(retry.reason.clone())),
            Some(How::Snooze(snooze)) => (Step::Snoozed, snooze.reason.clone()),
        };
        feed.tell(
            step,
            (id(), attempt),
            kind.as_deref(),
            about.took,
            (reason, about.payload.as_deref()),
        );
    }
    match outcome.into_how() {
        How::Done => {}
        How::Failed(Failure { cause, reason, .. }) => {
            let (id, kind, took) = (id(), kind.map(String::from), about.took);
            return board.publish(Notice::MessageFailed { id, kind, attempt, cause, reason, took });
        }
        How::Retry(Retry { reason, after }) => {
            let (id, kind) = (id(), kind.map(String::from));
            let after = after.unwrap_or_default();
            return board.publish(Notice::Retried { id, kind, attempt, retry, reason, after });
        }
        How::Snooze(Snooze { after, reason }) => {
            let (id, kind) = (id(), kind.map(String::from));
            return board.publish(Notice::Snoozed { id, kind, attempt, reason, after });
        }
    }
    // An id is made only if somebody reads it.
    if !tracing::enabled!(target: "artel::done", Level::DEBUG)
        && !tracing::enabled!(target: "artel::sent", Level::DEBUG)
    {
        return;
    }
    let id = block.id(claim);
    let took = Duration::from_micros(about.took.as_micros() as u64);
    match id.term() {
        Some(_) => {
            tracing::debug!(target: "artel::done", %id, kind, attempt, ?took, "message done")
        }
        None => tracing::debug!(target: "artel::sent", %id, kind, attempt, ?took, "message done"),
    }
}
