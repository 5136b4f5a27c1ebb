//! [`Session`]: what the stages of one process share while one session lasts.
//!
//! **Invariant:** a session ends once, for the first reason given. Everything that runs under it stops
//! then.

use std::sync::Mutex;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::orders::{OrderBook, Orders};
use super::{HeldBlocks, Tally, Trust, Views};
use crate::clock::Moment;
use crate::id::MemberId;
use crate::notice::Board;
use crate::tenure::Tenures;

/// Why a session ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// Redis says it is not a member: it was judged dead, or Redis lost its data.
    Gone,
    /// Its records and those of Redis differ: Redis lost data.
    DataLoss,
    /// Redis keeps refusing a call that must be recorded: others must get what this session holds.
    Refused,
    /// It leaves on purpose.
    Leave,
}

/// One session of this process.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: MemberId,
    /// How many messages may wait in a lane of this fleet.
    pub(crate) backlog_max: usize,
    /// Cancelled when the session is over: what runs under it stops.
    pub(crate) over: CancellationToken,
    end: Mutex<Option<End>>,
    /// How long the process may act on it.
    pub(crate) trust: Trust,
    /// The counts of its work.
    pub(crate) tally: Tally,
    /// The blocks of its worker.
    pub(crate) blocks: HeldBlocks,
    /// What it does with the lease, and its locks.
    pub(crate) tenures: Tenures,
    /// What it last learned about the fleet.
    pub(crate) views: Views,
    /// What operators ask of it.
    pub(crate) orders: OrderBook,
    pub(crate) board: Board,
}

impl Session {
    /// Does this member speak for the fleet? The generator does, or the lowest rank where nobody leads.
    pub(crate) fn speaks(&self) -> bool {
        let view = self.views.follow();
        let view = view.borrow();
        match &view.lease {
            Some(holder) => holder.member == self.id,
            None => view.known && view.rank == 0,
        }
    }

    pub(super) fn new(
        id: MemberId,
        (lease, grace): (Duration, Duration),
        backlog_max: usize,
        orders: Orders,
        sent: Moment,
        board: Board,
    ) -> Session {
        let over = CancellationToken::new();
        Session {
            id,
            backlog_max,
            end: Mutex::new(None),
            trust: Trust::new(lease, grace, sent, over.clone()),
            over,
            tally: Tally::default(),
            blocks: HeldBlocks::default(),
            tenures: Tenures::new(sent),
            views: Views::new(sent),
            orders: OrderBook::new(orders),
            board,
        }
    }

    /// Ends the session, for the first reason given.
    pub(crate) fn end(&self, why: End) {
        self.end.lock().expect("never poisoned").get_or_insert(why);
        self.over.cancel();
    }

    pub(super) fn ended(&self) -> Option<End> {
        *self.end.lock().expect("never poisoned")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_once_and_is_not_trusted_after() {
        let times = (Duration::from_secs(3), Duration::ZERO);
        let session = Session::new(
            MemberId::random(),
            times,
            1,
            Orders::default(),
            Moment::now(),
            Board::new(None),
        );
        session.end(End::DataLoss);
        session.end(End::Gone);
        assert_eq!(session.ended(), Some(End::DataLoss));
        assert!(!session.trust.holds());
    }
}
