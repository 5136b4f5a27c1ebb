//! [`Status`]: a fleet at one moment.
//!
//! **Invariant:** serialized, it is the documented `status --json`. Its fields stay.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::books::read_books;
use super::losses::{Loss, read_losses};
use crate::Error;
use crate::fleet::Fleet;
use crate::id::MemberId;
use crate::json_time::{self, TimeLeft, at_ms};
use crate::role::Role;
use crate::store::Store;
use crate::term::Term;

/// Where the messages of a fleet are.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// fleet.send("order 7").await?;
/// let messages = fleet.status().await?.messages;
/// assert_eq!((messages.sent, messages.waiting, messages.balance), (1, 1, 0));
/// assert!(!messages.is_settled());
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MessageCounts {
    /// Added by generators.
    pub generated: u64,
    /// Added by anybody else.
    pub sent: u64,
    /// In a lane.
    pub waiting: u64,
    /// Waiting for a time: sent for later, or to be retried or snoozed.
    pub scheduled: u64,
    /// With a worker.
    pub claimed: u64,
    /// Completed.
    pub done: u64,
    /// Failed.
    pub failed: u64,
    /// The difference in the books: always 0.
    pub balance: i64,
    /// Put back because their worker died, over the life of the fleet.
    pub returned: u64,
    /// Runs that ended with a retry, so far.
    pub retried: u64,
}

impl MessageCounts {
    /// Is nothing waiting, scheduled or claimed?
    pub fn is_settled(&self) -> bool {
        self.waiting + self.scheduled + self.claimed == 0
    }
}

/// Waiting messages by lane.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// fleet.sender().lane(artel::Lane::Low).send("tidy up").await?;
/// assert_eq!(fleet.status().await?.lanes.low, 1);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LaneLengths {
    /// Messages of dead workers.
    pub returned: u64,
    /// Sent, urgent.
    pub high: u64,
    /// From the generator.
    pub generated: u64,
    /// Sent.
    pub normal: u64,
    /// Sent, can wait.
    pub low: u64,
    /// Messages that stand in line for others of their key.
    pub parked: u64,
}

/// One member, as the others see it.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let member = fleet.join().start().await?;
/// let status = fleet.status().await?;
/// assert_eq!(status.members[0].role, artel::Role::Observer);
/// assert!(!status.members[0].left.is_overdue());
/// # member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MemberStatus {
    /// Its session.
    pub id: MemberId,
    /// Its name for people.
    pub label: String,
    /// What it does.
    pub role: Role,
    /// Where it runs.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Completed by this session.
    pub done: u64,
    /// Failed in this session.
    pub failed: u64,
    /// Handlers that run now.
    pub in_flight: u64,
    /// Messages it has claimed, including those that wait for a free handler.
    pub claimed: u64,
    /// It has a generator, so it may be elected.
    pub can_lead: bool,
    /// It handles messages now. A leader does so only if it is configured to.
    pub works: bool,
    /// It was asked to fetch nothing and not to lead.
    pub is_drained: bool,
    /// The kinds for which it has a handler of their own.
    pub kinds: Vec<String>,
    /// How long ago its session was refreshed.
    #[serde(rename = "seen_ms", with = "json_time::span_ms")]
    pub seen: Duration,
    /// How long its session lasts unless it is refreshed.
    #[serde(rename = "left_ms")]
    pub left: TimeLeft,
}

/// The member that leads.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// // Nobody has joined, so nobody leads.
/// assert!(fleet.status().await?.generator.is_none());
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GeneratorStatus {
    /// Its session.
    pub member: MemberId,
    /// Its name for people.
    pub label: String,
    /// Its fencing token.
    pub term: Term,
    /// How long its lease would last without a refresh.
    #[serde(rename = "lease_ms", with = "json_time::span_ms")]
    pub lease: Duration,
}

/// The server.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let redis = fleet.status().await?.redis;
/// println!("{} {}, {:?}", redis.server, redis.version, redis.rtt);
/// # assert!(redis.server == "Redis" || redis.server == "Valkey");
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RedisStatus {
    /// `Redis` or `Valkey`.
    pub server: &'static str,
    /// Its version.
    pub version: String,
    /// Round trip.
    #[serde(rename = "rtt_ms", with = "json_time::fine_ms")]
    pub rtt: Duration,
}

/// Stored failures.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// # let handler = |_: artel::Message, _: artel::Context| async { artel::Outcome::failed("no such customer") };
/// # let member = fleet.join().handle(handler).start().await?;
/// # fleet.send("order 7").await?;
/// # while fleet.errors().count().await? == 0 {
/// #     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
/// # }
/// # member.shutdown().await;
///
/// let errors = fleet.status().await?.errors;
/// assert_eq!((errors.stored, errors.taken), (1, 0));
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ErrorsStatus {
    /// Stored, including those that are being taken. `failed = stored + taken + requeued + dropped + forgotten`.
    pub stored: u64,
    /// Taken, over the life of the fleet.
    pub taken: u64,
    /// Put back to work, each as a new message.
    pub requeued: u64,
    /// Dropped by an operator.
    pub dropped: u64,
    /// Failed messages that were not kept, so far.
    pub forgotten: u64,
}

/// A fleet at one moment. Serialized, it is the documented `status --json`.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// fleet.send("order 7").await?;
/// let status = fleet.status().await?;
/// assert_eq!(status.fleet, "orders");
/// assert_eq!(status.messages.waiting, 1);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// Version of this document.
    pub v: u8,
    /// Redis time. In JSON twice: `time` in RFC 3339, and `time_ms`.
    #[serde(flatten, serialize_with = "json_time::point_both::serialize")]
    pub time: SystemTime,
    /// The fleet's name.
    pub fleet: String,
    /// How long a session of this fleet lasts without a refresh.
    #[serde(rename = "lease_ms", with = "json_time::span_ms")]
    pub lease: Duration,
    /// The server.
    pub redis: RedisStatus,
    /// The member that leads, if there is one.
    pub generator: Option<GeneratorStatus>,
    /// For how long the members that can lead have seen no member lead. Zero if a member leads, or if
    /// none can.
    #[serde(rename = "leaderless_ms", with = "json_time::span_ms")]
    pub leaderless: Duration,
    /// The members of the fleet.
    pub members: Vec<MemberStatus>,
    /// Dead members whose messages are still to be put back.
    pub orphans: u64,
    /// The books.
    pub messages: MessageCounts,
    /// Waiting messages by lane.
    pub lanes: LaneLengths,
    /// Age of the oldest waiting message.
    #[serde(rename = "oldest_waiting_ms", with = "json_time::span_ms_option")]
    pub oldest_waiting: Option<Duration>,
    /// How long until the first scheduled message is due; negative if it is overdue.
    #[serde(rename = "next_due_ms")]
    pub next_due: Option<TimeLeft>,
    /// What is paused: `all`, and lanes by name.
    pub paused: Vec<String>,
    /// How many periodic entries there are.
    pub crons: u64,
    /// Stored failures.
    pub errors: ErrorsStatus,
    /// Keys whose number can no longer grow, so that no member can be elected or get a lock. Redis's
    /// clock is, or once was, past the year 2112. An operator must help.
    pub exhausted: Vec<String>,
    /// What Redis forgot when another server process took over, the newest first. Empty is good.
    pub losses: Vec<Loss>,
}

/// What keeps a fleet from doing its work.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// use artel::Trouble;
///
/// assert_eq!(fleet.status().await?.trouble(), Some(Trouble::NoMember));
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Trouble {
    /// There is no member, or all members are overdue.
    NoMember,
    /// A member could lead, but none has led for longer than a lease.
    NoLeader,
    /// Messages wait, but no member works.
    NoWorker,
    /// A number can no longer grow: see [`Status::exhausted`].
    Exhausted,
}

impl Status {
    /// What keeps the fleet from doing its work, if anything does.
    pub fn trouble(&self) -> Option<Trouble> {
        let mut here = self.members.iter().filter(|member| member.role != Role::Overdue);
        if !self.exhausted.is_empty() {
            return Some(Trouble::Exhausted);
        }
        if here.clone().next().is_none() {
            return Some(Trouble::NoMember);
        }
        if self.generator.is_none() && self.leaderless > self.lease {
            return Some(Trouble::NoLeader);
        }
        let works = here.any(|member| member.works);
        (self.messages.waiting > 0 && !works).then_some(Trouble::NoWorker)
    }
}

impl Fleet {
    /// The fleet at this moment: the member that leads, all members, and the books. It uses the
    /// existing connection, if there is one.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached, refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn status(&self) -> Result<Status, Error> {
        read_status(&self.store).await
    }
}

async fn read_status(store: &Store) -> Result<Status, Error> {
    let server = store.server().await?;
    let books = read_books(store).await?;
    let (members, leaderless) = books.members(store).await?;
    let generator = books.generator(&members);
    Ok(Status {
        v: 1,
        time: at_ms(books.now_ms as u64),
        fleet: store.fleet().to_owned(),
        lease: Duration::from_millis(books.lease_ms() as u64),
        redis: RedisStatus { server: server.name, version: server.version, rtt: server.rtt },
        leaderless: if generator.is_some() { Duration::ZERO } else { leaderless },
        generator,
        members,
        orphans: books.orphans,
        messages: books.messages,
        lanes: books.lanes,
        oldest_waiting: books.oldest_waiting(),
        next_due: books.next_due(),
        paused: books.paused(),
        crons: books.crons,
        errors: books.errors,
        exhausted: books.exhausted(store),
        losses: read_losses(store).await?,
    })
}
