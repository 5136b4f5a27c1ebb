//! [`FleetNumbers`]: the numbers of a whole fleet, from one script.

use std::time::Duration;

use super::books::{Books, read_books};
use crate::Error;
use crate::fleet::Fleet;
use crate::lane::Lane;

/// One lane.
#[derive(Clone, Debug)]
pub(crate) struct LaneNumbers {
    pub(crate) name: &'static str,
    pub(crate) waiting: u64,
    /// The age of its oldest message; zero if it is empty.
    pub(crate) oldest: Duration,
    pub(crate) is_paused: bool,
}

/// A whole fleet.
#[derive(Clone, Debug)]
pub(crate) struct FleetNumbers {
    pub(crate) lanes: Vec<LaneNumbers>,
    pub(crate) claimed: u64,
    pub(crate) scheduled: u64,
    /// Failed messages that are kept.
    pub(crate) errors: u64,
    /// What became of messages, since the fleet was born.
    pub(crate) totals: Vec<(&'static str, u64)>,
    /// How many members have each role. Those that can lead and do not handle count as workers.
    pub(crate) members: Vec<(&'static str, usize)>,
    pub(crate) orphans: u64,
    pub(crate) has_generator: bool,
    pub(crate) term: u64,
    pub(crate) balance: i64,
}

impl Fleet {
    pub(crate) async fn numbers(&self) -> Result<FleetNumbers, Error> {
        let books = read_books(&self.store).await?;
        Ok(numbers(&books))
    }
}

fn numbers(books: &Books) -> FleetNumbers {
    let (counts, paused) = (&books.messages, books.paused());
    let lengths = &books.lanes;
    let lanes = [
        ("returned", lengths.returned),
        (Lane::High.name(), lengths.high),
        (Lane::Generated.name(), lengths.generated),
        (Lane::Normal.name(), lengths.normal),
        (Lane::Low.name(), lengths.low),
    ];
    let lane = |((name, waiting), oldest): ((&'static str, u64), &Option<i64>)| LaneNumbers {
        name,
        waiting,
        oldest: Duration::from_millis(oldest.map_or(0, |at| (books.now_ms - at).max(0)) as u64),
        is_paused: name != "returned" && paused.iter().any(|what| what == "all" || what == name),
    };
    let is_late = |deadline: i64| deadline <= books.now_ms;
    let leads =
        |id: &crate::id::MemberId| books.lease.as_ref().is_some_and(|(holder, _)| holder == id);
    let has_generator = books.members.iter().any(|(id, deadline)| leads(id) && !is_late(*deadline));
    let mut members = [("generator", 0), ("worker", 0), ("observer", 0), ("overdue", 0)];
    for (id, deadline) in &books.members {
        let role = match () {
            () if is_late(*deadline) => 3,
            () if leads(id) => 0,
            () if id.is_observer() => 2,
            () => 1,
        };
        members[role].1 += 1;
    }
    FleetNumbers {
        lanes: lanes.into_iter().zip(&books.oldest_ms).map(lane).collect(),
        claimed: counts.claimed,
        scheduled: counts.scheduled,
        errors: books.errors.stored,
        totals: vec![
            ("generated", counts.generated),
            ("sent", counts.sent),
            ("done", counts.done),
            ("failed", counts.failed),
            ("retried", counts.retried),
            ("returned", counts.returned),
        ],
        members: members.to_vec(),
        orphans: books.orphans,
        has_generator,
        term: books.term,
        balance: counts.balance,
    }
}
