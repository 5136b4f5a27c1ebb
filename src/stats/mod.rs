//! [`FleetStats`]: the numbers of every member, requested and collected in one round.
//!
//! **Invariant:** the caller gets a result within [`PATIENCE`] and a little: all answers until then,
//! and the names of the members that did not answer. The question is an event, so asking costs one
//! wake-up per member however many callers ask at once: they share the round.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::fleet::Fleet;
use crate::id::MemberId;
use crate::json_time::{self, TimeLeft, at_ms};
use crate::membership::MemberInfo;
use crate::role::Role;
use crate::store::{Reply, Script, StoreError};
use crate::sync::{clear_flag, set_flag};
use crate::term::Term;

static COLLECT: Script = Script::new("collect", include_str!("collect.lua"));

/// How long to wait for the members.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait for Redis, in addition to that.
const REDIS_TIMEOUT: Duration = Duration::from_secs(1);
/// A round that nobody ended is over after this time.
const ROUND_TTL: Duration = Duration::from_secs(3);
/// The first and the longest pause between two reads of the answers.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// One subscriber of a member's hub.
///
/// ```
/// let subscriber = artel::HubSubscriber::default();
/// assert_eq!((subscriber.lag, subscriber.dropped), (0, 0));
/// ```
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HubSubscriber {
    /// Its name.
    pub name: String,
    /// Events it handled.
    pub processed: u64,
    /// Events that wait for it.
    pub lag: u64,
    /// Attempts that failed.
    pub errors: u64,
    /// New handlers it got.
    pub restarts: u64,
    /// Events it lost because its queue was full.
    pub dropped: u64,
}

/// The numbers of one member.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let member = fleet.join().start().await?;
/// let stats = fleet.gather_stats().await?;
/// assert_eq!(stats.members[0].role, artel::Role::Observer);
/// assert_eq!(stats.members[0].handler_p99, None);
/// # member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MemberStats {
    /// Its session.
    pub id: MemberId,
    /// Its name for people.
    pub label: String,
    /// Where it runs.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// What it does.
    pub role: Role,
    /// Its fencing token, if it leads.
    pub term: Option<Term>,
    /// Completed by this session.
    pub done: u64,
    /// Failed in this session.
    pub failed: u64,
    /// Messages that are being handled.
    pub in_flight: u64,
    /// For how long it has run.
    #[serde(rename = "uptime_ms", with = "json_time::span_ms")]
    pub uptime: Duration,
    /// Memory it uses, if the system reports it.
    pub memory_bytes: Option<u64>,
    /// Half of its handlers took no longer than this; `None` if none ran in this session.
    #[serde(rename = "handler_p50_ms", with = "json_time::fine_ms_option")]
    pub handler_p50: Option<Duration>,
    /// 99 of 100 of its handlers took no longer than this.
    #[serde(rename = "handler_p99_ms", with = "json_time::fine_ms_option")]
    pub handler_p99: Option<Duration>,
    /// One round trip to Redis, measured for this answer.
    #[serde(rename = "redis_rtt_ms", with = "json_time::fine_ms")]
    pub redis_rtt: Duration,
    /// The subscribers of its hub, if it has one: at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hub: Vec<HubSubscriber>,
}

/// A member that did not answer in time.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// # let dead = redis::cmd("ZADD").arg("artel:{orders}:members").arg("9999999999999").arg("a1").exec(&mut server.connect());
/// # dead.expect("added");
/// // A member that is frozen says nothing.
/// let stats = fleet.gather_stats().await?;
/// assert_eq!(stats.missing[0].id.as_str(), "a1");
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MissingMember {
    /// Its session.
    pub id: MemberId,
    /// Its name for people.
    pub label: String,
    /// Where it runs.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// How long its session lasts unless it is refreshed.
    #[serde(rename = "left_ms")]
    pub left: TimeLeft,
}

/// Sums over all members that answered.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let totals = fleet.gather_stats().await?.totals;
/// assert_eq!((totals.members, totals.done), (0, 0));
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StatsTotals {
    /// All members.
    pub members: u64,
    /// Members that answered.
    pub answered: u64,
    /// Completed by their current sessions.
    pub done: u64,
    /// Failed in their current sessions.
    pub failed: u64,
    /// Messages that are being handled.
    pub in_flight: u64,
    /// Memory they use, for members whose system reports it.
    pub memory_bytes: u64,
}

/// The numbers of a fleet. Serialized, it is the documented answer of `/gather_stats`.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let member = fleet.join().start().await?;
/// let stats = fleet.gather_stats().await?;
/// assert_eq!((stats.totals.answered, stats.missing.len()), (1, 0));
/// # member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FleetStats {
    /// Version of this document.
    pub v: u8,
    /// Redis time, in JSON in RFC 3339.
    #[serde(with = "json_time::point_text")]
    pub time: SystemTime,
    /// The fleet's name.
    pub fleet: String,
    /// How long the collecting took.
    #[serde(rename = "took_ms", with = "json_time::fine_ms")]
    pub took: Duration,
    /// Sums over all members that answered.
    pub totals: StatsTotals,
    /// The members that answered, by label.
    pub members: Vec<MemberStats>,
    /// The members that did not answer.
    pub missing: Vec<MissingMember>,
}

impl Fleet {
    /// Asks every member of the fleet for its numbers. Returns when all have answered, or after two
    /// seconds with the names of the members that have not. The caller need not be a member.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached, refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Safe: a round that nobody waits for ends by itself.
    pub async fn gather_stats(&self) -> Result<FleetStats, Error> {
        gather(self).await
    }
}

/// Asks all members and waits for the answers, for a bounded time.
async fn gather(fleet: &Fleet) -> Result<FleetStats, Error> {
    let began = Instant::now();
    let store = &fleet.store;
    // If Redis is down, that is noticed at once, before waiting for members.
    let answers = tokio::time::timeout(REDIS_TIMEOUT, store.server()).await;
    answers.map_err(|_| Error::NoAnswer { after: REDIS_TIMEOUT })??;
    let limit = PATIENCE + REDIS_TIMEOUT;
    match tokio::time::timeout(limit, collect(fleet, began)).await {
        Ok(stats) => stats,
        Err(_) => Err(Error::NoAnswer { after: limit }),
    }
}

async fn collect(fleet: &Fleet, began: Instant) -> Result<FleetStats, Error> {
    let store = &fleet.store;
    fleet.compare().await?;
    let gather = store.keys.gather();
    let round = set_flag(fleet, &gather, ROUND_TTL).await?;
    let call = COLLECT.call(&[store.keys.members(), store.keys.stats(round)]);
    let call = call.reading(Collected::read);
    let mut pause = PAUSE.0;
    let mut asked = BTreeMap::new();
    let mut collected = loop {
        let collected = store.once(&call).await?;
        if asked.is_empty() {
            asked.clone_from(&collected.members);
        }
        if collected.is_complete() || began.elapsed() >= PATIENCE {
            break collected;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    };
    clear_flag(fleet, &gather.key, round).await?;
    // A member that was asked and was judged dead meanwhile has not answered, either.
    for (id, deadline) in asked {
        if !collected.answers.contains_key(&id) {
            collected.members.entry(id).or_insert(deadline);
        }
    }
    let mut stats = FleetStats {
        v: 1,
        time: at_ms(collected.now_ms as u64),
        fleet: store.fleet().to_owned(),
        took: Duration::ZERO,
        totals: StatsTotals { members: collected.members.len() as u64, ..StatsTotals::default() },
        members: Vec::new(),
        missing: Vec::new(),
    };
    let missing = collected.members.iter().filter(|(id, _)| !collected.answers.contains_key(*id));
    let missing = missing.map(async |(id, deadline)| {
        // This is for people. Without it the id must be enough.
        let info = store.member_info(id).await.unwrap_or_default();
        let MemberInfo { label, host, pid, .. } = info;
        let left = TimeLeft::between(collected.now_ms, *deadline);
        MissingMember { id: id.clone(), label, host, pid, left }
    });
    stats.missing = join_all(missing).await;
    for id in collected.members.keys() {
        collected.answers.get(id).cloned().into_iter().for_each(|answer| stats.add(answer));
    }
    stats.members.sort_by(|a, b| (&a.label, &a.id).cmp(&(&b.label, &b.id)));
    stats.took = began.elapsed();
    Ok(stats)
}

impl FleetStats {
    fn add(&mut self, member: MemberStats) {
        let totals = &mut self.totals;
        totals.answered += 1;
        // A member may report any numbers.
        for (total, one) in [
            (&mut totals.done, member.done),
            (&mut totals.failed, member.failed),
            (&mut totals.in_flight, member.in_flight),
            (&mut totals.memory_bytes, member.memory_bytes.unwrap_or(0)),
        ] {
            *total = total.saturating_add(one);
        }
        self.members.push(member);
    }
}

/// The state of one round.
struct Collected {
    now_ms: i64,
    members: BTreeMap<MemberId, i64>,
    answers: BTreeMap<MemberId, MemberStats>,
}

impl Collected {
    fn read(reply: Reply) -> Result<Collected, StoreError> {
        let mut items = reply.into_list()?.into_iter();
        let mut next = || items.next().ok_or_else(|| StoreError::odd("the round is too short"));
        let now_ms = next()?.into_number()?;
        let mut members = BTreeMap::new();
        for (id, deadline) in next()?.into_pairs()? {
            let deadline = deadline.into_number()?;
            members.extend(MemberId::from_redis(&id).map(|id| (id, deadline)));
        }
        // An answer of another version that we do not understand counts as no answer.
        let answers = next()?.into_pairs()?.into_iter().filter_map(|(id, numbers)| {
            let answer: MemberStats = serde_json::from_str(&numbers.into_text().ok()?).ok()?;
            (answer.id.as_str() == id).then(|| (answer.id.clone(), answer))
        });
        let answers = answers.collect();
        Ok(Collected { now_ms, members, answers })
    }

    fn is_complete(&self) -> bool {
        self.members.keys().all(|id| self.answers.contains_key(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_complete_when_every_member_has_answered() {
        let bulk = |text: &str| Reply::from(text);
        let numbers = r#"{"id":"a","label":"","host":"","pid":1,"role":"worker","term":null,
            "done":0,"failed":0,"in_flight":0,"uptime_ms":1,"memory_bytes":null,
            "handler_p50_ms":null,"handler_p99_ms":null,"redis_rtt_ms":0.1,"later":"unknown"}"#;
        let round = |answers: Vec<Reply>| {
            let members = ["a", "2", "b", "3"].map(bulk).to_vec();
            let parts: Vec<Reply> = vec![bulk("1"), members.into(), answers.into()];
            Collected::read(parts.into()).expect("a round")
        };
        assert!(!round(vec![bulk("a"), bulk(numbers)]).is_complete());
        assert!(!round(vec![bulk("a"), bulk(numbers), bulk("b"), bulk("{}")]).is_complete());
        // A member cannot answer for another one.
        assert!(!round(vec![bulk("a"), bulk(numbers), bulk("b"), bulk(numbers)]).is_complete());
        let others = numbers.replace(r#""id":"a""#, r#""id":"b""#);
        assert!(round(vec![bulk("a"), bulk(numbers), bulk("b"), bulk(&others)]).is_complete());
    }

    #[test]
    fn no_sum_overflows() {
        let member: MemberStats = serde_json::from_str(
            r#"{"id":"a","label":"","host":"","pid":1,"role":"worker","term":null,
            "done":18446744073709551615,"failed":18446744073709551615,"in_flight":1,"uptime_ms":1,
            "memory_bytes":18446744073709551615,"handler_p50_ms":null,"handler_p99_ms":null,
            "redis_rtt_ms":0.1}"#,
        )
        .expect("numbers");
        let mut stats = FleetStats {
            v: 1,
            time: at_ms(0),
            fleet: String::new(),
            took: Duration::ZERO,
            totals: StatsTotals::default(),
            members: Vec::new(),
            missing: Vec::new(),
        };
        (0..2).for_each(|_| stats.add(member.clone()));
        assert_eq!((stats.totals.done, stats.totals.answered), (u64::MAX, 2));
    }
}
