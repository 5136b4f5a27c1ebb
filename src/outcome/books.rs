//! The books: how many messages were added, where they are, and how they ended.
//!
//! **Invariant:** `generated + sent = waiting + scheduled + claimed + done + failed`, at every moment.
//! One script reads them, so the numbers fit together. [`MessageCounts::balance`] is the difference.

use std::collections::HashMap;
use std::time::Duration;

use super::error_store::drains;
use super::status::{ErrorsStatus, GeneratorStatus, LaneLengths, MemberStatus, MessageCounts};
use crate::Error;
use crate::id::MemberId;
use crate::json_time::TimeLeft;
use crate::lane::Lane;
use crate::membership::Orders;
use crate::role::Role;
use crate::store::{PROTOCOL, Reply, Script, Store, StoreError};
use crate::term::Term;

/// No term or token is granted past this: see `acquire.lua`.
const NUMBER_MAX: u64 = 1 << 52;

static BOOKS: Script = Script::new("books", include_str!("books.lua"));

/// Reads the books. It is an error if the fleet runs with another protocol.
pub(super) async fn read_books(store: &Store) -> Result<Books, Error> {
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
        keys.scheduled(),
        keys.parked(),
        keys.crons(),
        keys.control(),
    ];
    all.extend(drains(store).await?.iter().map(|token| keys.drain(token)));
    let raw = store.once(&BOOKS.call(&all).reading(Books::read)).await?;
    let protocol = raw.config.get("protocol").map_or("1", String::as_str);
    let newer = protocol.parse::<u32>().is_ok_and(|theirs| theirs > PROTOCOL);
    let other = !raw.config.is_empty() && protocol != PROTOCOL.to_string();
    if other && (newer || !raw.members.is_empty()) {
        return Err(store.other_protocol(protocol));
    }
    Ok(raw)
}

/// What the script answers.
pub(super) struct Books {
    pub(super) now_ms: i64,
    pub(super) lease: Option<(MemberId, Term)>,
    pub(super) messages: MessageCounts,
    pub(super) lanes: LaneLengths,
    /// The oldest message that waits, of each lane.
    pub(super) oldest_ms: Vec<Option<i64>>,
    pub(super) errors: ErrorsStatus,
    pub(super) members: Vec<(MemberId, i64)>,
    pub(super) orphans: u64,
    config: HashMap<String, String>,
    /// The highest term and token that were granted.
    pub(super) term: u64,
    token: u64,
    now_us: u64,
    next_due_ms: Option<i64>,
    pub(super) crons: u64,
    /// The orders of operators.
    control: HashMap<String, String>,
}

fn map(reply: Reply) -> Result<HashMap<String, String>, StoreError> {
    let pairs = reply.into_pairs()?.into_iter();
    pairs.map(|(name, value)| Ok((name, value.into_text()?))).collect()
}

/// A counter. It may be below zero only if Redis lost data.
fn counted(counts: &HashMap<String, String>, name: &str) -> i64 {
    counts.get(name).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The failed messages.
fn errors(counts: &HashMap<String, String>, stored: u64) -> ErrorsStatus {
    let count = |name: &str| counted(counts, name).max(0) as u64;
    ErrorsStatus {
        stored,
        taken: count("taken"),
        requeued: count("requeued"),
        dropped: count("dropped"),
        forgotten: count("forgotten"),
    }
}

impl Books {
    pub(super) fn lease_ms(&self) -> i64 {
        self.config.get("lease_ms").and_then(|ms| ms.parse().ok()).unwrap_or(0)
    }

    /// Keys whose number can no longer grow.
    pub(super) fn exhausted(&self, store: &Store) -> Vec<String> {
        let is_spent = |highest: u64| (highest + 1).max(self.now_us) > NUMBER_MAX;
        let numbers = [(store.keys.term(), self.term), (store.keys.token(), self.token)];
        let spent = numbers.into_iter().filter(|(_, highest)| is_spent(*highest));
        spent.map(|(key, _)| key).collect()
    }

    /// How long until the first scheduled message is due.
    pub(super) fn next_due(&self) -> Option<TimeLeft> {
        self.next_due_ms.map(|due| TimeLeft::between(self.now_ms, due))
    }

    /// What is paused: `all`, or lanes.
    pub(super) fn paused(&self) -> Vec<String> {
        let lane = |field: &String| field.strip_prefix("lane:")?.parse::<Lane>().ok();
        let lanes = self.control.keys().filter_map(lane);
        let mut all: Vec<String> = lanes.map(|lane| lane.name().to_owned()).collect();
        all.sort();
        if self.control.contains_key(Orders::ALL) {
            all.insert(0, Orders::ALL.to_owned());
        }
        all
    }

    /// The members, and for how long those that can lead have seen no member lead.
    pub(super) async fn members(
        &self,
        store: &Store,
    ) -> Result<(Vec<MemberStatus>, Duration), Error> {
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
                works: info.handles && info.works,
                is_drained: self.control.contains_key(&Orders::drain_field(id)),
                kinds: info.kinds,
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

    /// The age of the oldest message that waits.
    pub(super) fn oldest_waiting(&self) -> Option<Duration> {
        let oldest = self.oldest_ms.iter().flatten().min();
        oldest.map(|at| Duration::from_millis((self.now_ms - at).max(0) as u64))
    }

    /// The member that leads. After its deadline no member leads, even if nobody is there to judge.
    pub(super) fn generator(&self, members: &[MemberStatus]) -> Option<GeneratorStatus> {
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

    fn read(reply: Reply) -> Result<Books, StoreError> {
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
            .map(|n| n.into_number().map(|n| n.max(0) as u64))
            .collect::<Result<_, _>>()?;
        let [returned, high, generated_lane, normal, low] = lanes[..] else {
            return Err(StoreError::odd("the books do not have five lanes"));
        };
        let oldest = next()?.into_list()?.into_iter();
        let oldest_ms = oldest.map(|ms| ms.into_number().ok()).collect();
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
        let scheduled = next()?.into_number()? as u64;
        let next_due_ms = next()?.into_number().ok();
        let (parked, crons) = (next()?.into_number()? as u64, next()?.into_number()? as u64);
        let control = map(next()?)?;
        let signed = |name: &str| counted(&counts, name);
        let waiting = returned + high + generated_lane + normal + low + parked;
        let (generated, sent) = (signed("generated"), signed("sent"));
        let (claimed, done, failed) = (signed("claimed"), signed("done"), signed("failed"));
        let messages = MessageCounts {
            generated: generated as u64,
            sent: sent as u64,
            waiting,
            scheduled,
            claimed: claimed.max(0) as u64,
            done: done as u64,
            failed: failed as u64,
            balance: generated + sent
                - (waiting as i64 + scheduled as i64 + claimed + done + failed),
            returned: signed("returned") as u64,
            retried: signed("retried").max(0) as u64,
        };
        let lanes = LaneLengths { returned, high, generated: generated_lane, normal, low, parked };
        let errors = errors(&counts, stored);
        Ok(Books {
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
            next_due_ms,
            crons,
            control,
        })
    }
}
