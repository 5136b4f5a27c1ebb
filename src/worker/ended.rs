//! What is told of a message whose outcome is recorded.

use std::time::Duration;

use crate::notice::{Board, Notice};
use crate::outcome::{Outcome, Report};
use crate::queue::Claim;

/// A failure is a notice. What is done is said in the log, if anybody reads it: apart from each other what was
/// generated and what was sent, for programs that show only one of them.
pub(super) fn tell(board: &Board, claim: Claim, outcome: Outcome, report: Report) {
    let (id, attempt, kind) = (claim.id, claim.attempt, report.kind);
    if let Some(failure) = outcome.failure {
        return board.publish(Notice::MessageFailed {
            id,
            kind: kind.map(String::from),
            attempt,
            cause: failure.cause,
            reason: failure.reason,
            took: report.took,
        });
    }
    let took = Duration::from_micros(report.took.as_micros() as u64);
    match id.term() {
        Some(_) => {
            tracing::debug!(target: "artel::done", %id, kind, attempt, ?took, "message done")
        }
        None => tracing::debug!(target: "artel::sent", %id, kind, attempt, ?took, "message done"),
    }
}
