//! How outcomes get from the slots to Redis.
//!
//! **Invariant:** an outcome is counted and reported when Redis has recorded it, and only then.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::exchange::Exchange;
use super::report::report;
use super::runner::{SETTLES_MAX, Worker};
use crate::meter::{End, KindMeter};
use crate::notice::Notice;
use crate::outcome::{Ended, How, Outcome, Report, Settled, SettledBy};
use crate::queue::Claim;
use crate::store::{CALLS, StoreError};
use crate::trace;

impl Worker {
    pub(super) fn settle(&mut self, claim: Claim, outcome: Outcome, report: Report) {
        if let Some(block) = self.blocks.get_mut(&claim.block) {
            block.settle(claim, outcome, report, self.config.payload_bytes_max);
        }
    }

    /// Settles the blocks that are due. With a fetch it also settles every block that is finished.
    pub(super) fn settle_with(&mut self, exchange: &mut Exchange, now: Instant, fetches: bool) {
        let settled_by = SettledBy { label: &self.config.label };
        let due = self.blocks.values_mut().filter(|block| {
            let due = block.due_in(now);
            due.is_some_and(|due| due.is_zero() || (fetches && block.open() == 0))
        });
        for block in due.take(SETTLES_MAX) {
            exchange.settle(block.block.n, block.call(&self.store, &self.session, &settled_by));
        }
    }

    pub(super) fn apply_settled(&mut self, n: u64, answer: Result<Settled, StoreError>) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                tracing::error!(%error, "the answer to a settle is invalid");
                return self.data_loss("the answer to a settle");
            }
        };
        let Some(settlement) = self.blocks.get_mut(&n) else { return };
        let recorded = settlement.answered(&answer);
        let block = settlement.block.clone();
        match answer {
            Settled::Recorded(lost) => {
                let (tally, mut done) = (&self.session.tally, 0);
                // Messages of one kind usually come together.
                let mut last: Option<(Option<Box<str>>, Arc<KindMeter>)> = None;
                for Ended { claim, outcome, report: mut about } in recorded {
                    let span = about.span.take();
                    if !lost.is_empty() && lost.contains(&block.position(&claim)) {
                        trace::ended(span, "lost");
                        self.board.publish(Notice::ClaimLost { id: block.id(&claim) });
                        continue;
                    }
                    if tracing::enabled!(target: CALLS, tracing::Level::TRACE) {
                        let (id, attempt) = (block.id(&claim), u64::from(block.tries(&claim).runs));
                        match outcome.is_retry() || outcome.is_snooze() {
                            true => {
                                tracing::trace!(target: CALLS, id = id.as_str(), attempt, "again")
                            }
                            false => {
                                tracing::trace!(target: CALLS, id = id.as_str(), attempt, "recorded");
                            }
                        }
                    }
                    let end = match outcome.how() {
                        None | Some(How::Done) => End::Done,
                        Some(How::Failed(_)) => End::Failed,
                        Some(How::Retry(_)) => End::Retried,
                        Some(How::Snooze(_)) => End::Snoozed,
                    };
                    trace::ended(span, end.name());
                    done += u64::from(end == End::Done);
                    if end == End::Failed {
                        tally.failed.fetch_add(1, Ordering::Relaxed);
                    }
                    let known = last.take().filter(|(kind, _)| *kind == about.kind);
                    let (kind, meter) = known.unwrap_or_else(|| {
                        let name = about.kind.as_deref().unwrap_or_default();
                        (about.kind.clone(), self.board.meter.kind(name))
                    });
                    meter.end(end, about.took, about.wait);
                    last = Some((kind, meter));
                    report(&self.board, &block, &claim, outcome, about);
                }
                tally.done.fetch_add(done, Ordering::Relaxed);
            }
            Settled::BadEffect(..) => {}
            Settled::DataLoss => self.data_loss("the messages left in a block"),
        }
    }
}
