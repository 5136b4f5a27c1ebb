//! The report about a message whose outcome is recorded.

use std::time::Duration;

use tracing::Level;

use crate::notice::{Board, Notice};
use crate::outcome::{Outcome, Report};
use crate::queue::{Block, Claim};

/// A failure is a notice. A done message is logged at the level `debug`. Generated messages and sent
/// messages have separate targets, for programs that show only one of them.
pub(super) fn report(board: &Board, block: &Block, claim: &Claim, outcome: Outcome, about: Report) {
    let (attempt, kind) = (block.attempt(claim), about.kind);
    if let Some(failure) = outcome.into_failure() {
        return board.publish(Notice::MessageFailed {
            id: block.id(claim),
            kind: kind.map(String::from),
            attempt,
            cause: failure.cause,
            reason: failure.reason,
            took: about.took,
        });
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
