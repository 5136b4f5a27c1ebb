//! The books: what was generated, where it is, how it ended.
//!
//! **Invariant:** `generated + sent = waiting + scheduled + claimed + done + failed`, at every
//! moment. They are read by one script, so they never tear; [`Books::balance`] is the difference.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::error_store::drains;
use crate::Error;
use crate::fleet::Fleet;
use crate::id::MemberId;
use crate::json_time::{self, TimeLeft, at_ms};
use crate::queue::Lane;
use crate::role::Role;
use crate::store::{PROTOCOL, Reply, Script, Store, StoreError};
use crate::term::Term;

/// No term or token is granted past this: see `acquire.lua`.
const NUMBER_MAX: u64 = 1 << 52;

static BOOKS: Script = Script::new("books", include_str!("books.lua"));

/// Where the messages of a fleet are.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MessageCounts {
    /// Added by generators.
    pub generated: u64,
    /// Added by anybody else.
    pub sent: u64,
    /// In a lane.
    pub waiting: u64,
    /// To be added later.
    pub scheduled: u64,
    /// With a worker.
    pub claimed: u64,
    /// Completed.
    pub done: u64,
    /// Found in error.
    pub failed: u64,
    /// What does not add up: always 0.
    pub balance: i64,
    /// Handed on because their worker died, over the life of the fleet.
    pub returned: u64,
}

/// The counts by themselves.
pub type Books = MessageCounts;

impl MessageCounts {
    /// Nothing is waiting, scheduled or claimed.
    pub fn is_settled(&self) -> bool {
        self.waiting + self.scheduled + self.claimed == 0
    }
}

/// Waiting messages by lane.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LaneLengths {
    /// What dead workers left.
    pub returned: u64,
    /// Sent, urgent.
    pub high: u64,
    /// Of the generator.
    pub generated: u64,
    /// Sent.
    pub normal: u64,
    /// Sent, can wait.
    pub low: u64,
}

/// One member, as the others see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MemberStatus {
    /// Its session.
    pub id: MemberId,
    /// What people call it.
    pub label: String,
    /// What it does.
    pub role: Role,
    /// Where it runs.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Completed by this session.
    pub done: u64,
    /// Found in error by this session.
    pub failed: u64,
    /// Handlers that run.
    pub in_flight: u64,
    /// Messages it has claimed, those that wait for a free handler included.
    pub claimed: u64,
    /// It has a generator, so it may be elected.
    pub can_lead: bool,
    /// It handles messages at present: a leader only if it is set to.
    pub works: bool,
    /// How long ago its session was refreshed.
    #[serde(rename = "seen_ms", with = "json_time::span_ms")]
    pub seen: Duration,
    /// How long its session lasts unless it is refreshed.
    #[serde(rename = "left_ms")]
    pub left: TimeLeft,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GeneratorStatus {
    /// Its session.
    pub member: MemberId,
    /// What people call it.
    pub label: String,
    /// Its fencing token.
    pub term: Term,
    /// How long its lease would last without a refresh.
    #[serde(rename = "lease_ms", with = "json_time::span_ms")]
    pub lease: Duration,
}

/// The server.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RedisStatus {
    /// `Redis` or `Valkey`.
    pub server: &'static str,
    /// What it says it is.
    pub version: String,
    /// Round trip.
    #[serde(rename = "rtt_ms", with = "json_time::fine_ms")]
    pub rtt: Duration,
}

/// Stored failures.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ErrorsStatus {
    /// Kept, those being taken included. `failed = stored + taken + requeued + dropped`.
    pub stored: u64,
    /// Taken, over the life of the fleet.
    pub taken: u64,
    /// Put back to work, each as a new message.
    pub requeued: u64,
    /// Dropped by an operator.
    pub dropped: u64,
}

/// A fleet at one moment. Serialized, it is the documented `status --json`.
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
    /// Who leads, if anybody does.
    pub generator: Option<GeneratorStatus>,
    /// For how long the members that could lead have seen nobody lead; zero if somebody does, or nobody could.
    #[serde(rename = "leaderless_ms", with = "json_time::span_ms")]
    pub leaderless: Duration,
    /// Who is here.
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
    /// Stored failures.
    pub errors: ErrorsStatus,
    /// Keys whose number cannot grow any more, so that nobody can be elected or get a lock: Redis's clock
    /// is, or once was, past the year 2112. An operator must help.
    pub exhausted: Vec<String>,
}

/// What keeps a fleet from doing its work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Trouble {
    /// No member is here, or all of them are overdue.
    NoMember,
    /// A member could lead, and nobody has led for longer than a lease.
    NoLeader,
    /// Messages wait, and no member works.
    NoWorker,
    /// A number cannot grow any more: see [`Status::exhausted`].
    Exhausted,
}

impl Status {
    /// What is wrong with the fleet, if anything is.
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
    /// The fleet at this moment: who leads, who is here, the books. Over the connection that is
    /// there, as far as it is.
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
    let raw = read_raw(store).await?;
    let (members, leaderless) = raw.members(store).await?;
    let generator = raw.generator(&members);
    Ok(Status {
        v: 1,
        time: at_ms(raw.now_ms as u64),
        fleet: store.fleet().to_owned(),
        lease: Duration::from_millis(raw.lease_ms() as u64),
        redis: RedisStatus { server: server.name, version: server.version, rtt: server.rtt },
        leaderless: if generator.is_some() { Duration::ZERO } else { leaderless },
        generator,
        members,
        orphans: raw.orphans,
        messages: raw.messages,
        lanes: raw.lanes,
        oldest_waiting: raw
            .oldest_ms
            .map(|at| Duration::from_millis((raw.now_ms - at).max(0) as u64)),
        errors: raw.errors,
        exhausted: raw.exhausted(store),
    })
}

/// Reads the books; an error if they are kept with another protocol.
async fn read_raw(store: &Store) -> Result<Raw, Error> {
    let keys = &store.keys;
    let mut all = vec![
        keys.members(),
        keys.lease(),
        keys.counts(),
        keys.errors(),
        keys.returned(),
        keys.lane(Lane::High.name()),
        keys.lane(Lane::Generated.name()),
        keys.lane(Lane::Normal.name()),
        keys.lane(Lane::Low.name()),
        keys.orphans(),
        keys.config(),
        keys.term(),
        keys.token(),
    ];
    all.extend(drains(store).await?.iter().map(|token| keys.drain(token)));
    let raw = store.once(&BOOKS.call(&all).reading(Raw::read)).await?;
    let protocol = raw.config.get("protocol").map_or("1", String::as_str);
    let newer = protocol.parse::<u32>().is_ok_and(|theirs| theirs > PROTOCOL);
    let other = !raw.config.is_empty() && protocol != PROTOCOL.to_string();
    if other && (newer || !raw.members.is_empty()) {
        return Err(store.other_protocol(protocol));
    }
    Ok(raw)
}

struct Raw {
    now_ms: i64,
    lease: Option<(MemberId, Term)>,
    messages: MessageCounts,
    lanes: LaneLengths,
    oldest_ms: Option<i64>,
    errors: ErrorsStatus,
    members: Vec<(MemberId, i64)>,
    orphans: u64,
    config: HashMap<String, String>,
    /// The highest that were granted.
    term: u64,
    token: u64,
    now_us: u64,
}

fn map(reply: Reply) -> Result<HashMap<String, String>, StoreError> {
    let pairs = reply.into_pairs()?.into_iter();
    pairs.map(|(name, value)| Ok((name, value.into_text()?))).collect()
}

impl Raw {
    fn lease_ms(&self) -> i64 {
        self.config.get("lease_ms").and_then(|ms| ms.parse().ok()).unwrap_or(0)
    }

    /// Keys whose number cannot grow any more.
    fn exhausted(&self, store: &Store) -> Vec<String> {
        let is_spent = |highest: u64| (highest + 1).max(self.now_us) > NUMBER_MAX;
        let numbers = [(store.keys.term(), self.term), (store.keys.token(), self.token)];
        let spent = numbers.into_iter().filter(|(_, highest)| is_spent(*highest));
        spent.map(|(key, _)| key).collect()
    }

    /// The members, and for how long those that could lead have seen nobody lead.
    async fn members(&self, store: &Store) -> Result<(Vec<MemberStatus>, Duration), Error> {
        let (mut members, mut leaderless_ms) = (Vec::new(), 0);
        for (id, deadline) in &self.members {
            let info = store.member_info(id).await?;
            let leads = self.lease.as_ref().is_some_and(|(holder, _)| holder == id);
            if info.can_lead && *deadline > self.now_ms {
                leaderless_ms = leaderless_ms.max(info.leaderless_ms);
            }
            members.push(MemberStatus {
                id: id.clone(),
                label: info.label,
                role: match leads {
                    _ if *deadline <= self.now_ms => Role::Overdue,
                    true => Role::Generator,
                    false if id.is_observer() => Role::Observer,
                    false if !info.handles => Role::Standby,
                    false => Role::Worker,
                },
                can_lead: info.can_lead,
                works: info.handles && (!leads || info.works),
                host: info.host,
                pid: info.pid,
                done: info.done,
                failed: info.failed,
                in_flight: info.in_flight,
                claimed: info.claimed,
                seen: Duration::from_millis(
                    (self.now_ms - (deadline - self.lease_ms())).max(0) as u64
                ),
                left: TimeLeft::between(self.now_ms, *deadline),
            });
        }
        Ok((members, Duration::from_millis(leaderless_ms)))
    }

    /// Who leads. Past its deadline nobody does, even if nobody is there to judge.
    fn generator(&self, members: &[MemberStatus]) -> Option<GeneratorStatus> {
        let (member, term) = self.lease.as_ref()?;
        let deadline = self.members.iter().find(|(id, _)| id == member).map_or(0, |(_, at)| *at);
        let label = members.iter().find(|other| other.id == *member);
        (deadline > self.now_ms).then(|| GeneratorStatus {
            label: label.map_or_else(String::new, |member| member.label.clone()),
            member: member.clone(),
            term: *term,
            lease: Duration::from_millis((deadline - self.now_ms) as u64),
        })
    }

    fn read(reply: Reply) -> Result<Raw, StoreError> {
        let mut items = reply.into_list()?.into_iter();
        let mut next = || items.next().ok_or_else(|| StoreError::odd("the books are too short"));
        let now_ms = next()?.into_number()?;
        let lease = next()?.into_text()?;
        let lease = lease
            .split_once('|')
            .and_then(|(member, term)| Some((MemberId::from_redis(member)?, Term::parse(term)?)));
        let counts = map(next()?)?;
        let lanes: Vec<u64> = next()?
            .into_list()?
            .into_iter()
            .map(|n| n.into_number().map(|n| n as u64))
            .collect::<Result<_, _>>()?;
        let [returned, high, generated_lane, normal, low] = lanes[..] else {
            return Err(StoreError::odd("the books have other lanes"));
        };
        let oldest_ms = next()?.into_number().ok();
        let stored = next()?.into_number()? as u64;
        let mut members = Vec::new();
        for (id, deadline) in next()?.into_pairs()? {
            let deadline = deadline.into_number()?;
            members.extend(MemberId::from_redis(&id).map(|id| (id, deadline)));
        }
        let orphans = next()?.into_number()? as u64;
        let config = map(next()?)?;
        let (term, token) = (next()?.into_number()? as u64, next()?.into_number()? as u64);
        let now_us = next()?.into_number()? as u64;
        let signed = |name: &str| counts.get(name).and_then(|n| n.parse::<i64>().ok()).unwrap_or(0);
        let waiting = returned + high + generated_lane + normal + low;
        let (generated, sent) = (signed("generated"), signed("sent"));
        let (claimed, done, failed) = (signed("claimed"), signed("done"), signed("failed"));
        let messages = MessageCounts {
            generated: generated as u64,
            sent: sent as u64,
            waiting,
            scheduled: 0,
            claimed: claimed.max(0) as u64,
            done: done as u64,
            failed: failed as u64,
            balance: generated + sent - (waiting as i64 + claimed + done + failed),
            returned: signed("returned") as u64,
        };
        let lanes = LaneLengths { returned, high, generated: generated_lane, normal, low };
        let count = |name: &str| signed(name).max(0) as u64;
        let (taken, requeued, dropped) = (count("taken"), count("requeued"), count("dropped"));
        let errors = ErrorsStatus { stored, taken, requeued, dropped };
        Ok(Raw {
            now_ms,
            lease,
            messages,
            lanes,
            oldest_ms,
            errors,
            members,
            orphans,
            config,
            term,
            token,
            now_us,
        })
    }
}
