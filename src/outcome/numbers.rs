//! [`FleetNumbers`] and [`FleetCounts`]: the numbers of a whole fleet, from one script.

use std::time::{Duration, SystemTime};

use super::books::{Books, read_books};
use crate::Error;
use crate::fleet::Fleet;
use crate::json_time::at_ms;
use crate::lane::Lane;

use super::status::{LaneLengths, MemberStatus, MessageCounts};

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
    /// Nobody leads, although somebody could. `None` if it is not known.
    pub(crate) is_leaderless: Option<bool>,
    pub(crate) term: u64,
    pub(crate) balance: i64,
}

/// The counts of a fleet at one moment. They cost Redis one script, however many members there are; [`Status`](crate::Status)
/// has the members, too.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// fleet.send("order 7").await?;
/// let counts = fleet.counts().await?;
/// assert_eq!((counts.messages.waiting, counts.members, counts.stored_errors), (1, 0, 0));
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FleetCounts {
    /// Redis time.
    pub time: SystemTime,
    /// The books.
    pub messages: MessageCounts,
    /// How many wait in each lane.
    pub lanes: LaneLengths,
    /// The age of the oldest message that waits.
    pub oldest_waiting: Option<Duration>,
    /// Sessions, observers and overdue members included.
    pub members: u64,
    /// Failed messages that are kept.
    pub stored_errors: u64,
}

impl Fleet {
    /// The counts of this fleet, without its members.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn counts(&self) -> Result<FleetCounts, Error> {
        let books = read_books(&self.store).await?;
        Ok(FleetCounts {
            time: at_ms(books.now_ms as u64),
            messages: books.messages,
            lanes: books.lanes,
            oldest_waiting: books.oldest_waiting(),
            members: books.members.len() as u64,
            stored_errors: books.errors.stored,
        })
    }

    pub(crate) async fn numbers(&self) -> Result<FleetNumbers, Error> {
        let books = read_books(&self.store).await?;
        let mut numbers = numbers(&books);
        // Only now it matters who could lead. The cards of the members say it.
        if numbers.is_leaderless.is_none() {
            let able = |member: &MemberStatus| member.can_lead && !member.is_drained;
            let cards = books.members(&self.store).await.ok();
            numbers.is_leaderless = cards.map(|(members, _)| members.iter().any(able));
        }
        Ok(numbers)
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
        is_leaderless: has_generator.then_some(false),
        term: books.term,
        balance: counts.balance,
    }
}
