//! [`MemberInfo`]: what a member reports about itself with every heartbeat. For people only.

use std::collections::HashMap;
use std::time::Duration;

use rand::seq::SliceRandom;

use super::Orders;
use crate::id::MemberId;
use crate::store::{Call, Keys, Link, Reply, StoreError};

/// What a member last reported about itself. Empty if it left long ago.
#[derive(Debug, Default)]
pub(crate) struct MemberInfo {
    pub(crate) label: String,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) in_flight: u64,
    pub(crate) claimed: u64,
    /// It has a generator.
    pub(crate) can_lead: bool,
    /// It has a handler.
    pub(crate) handles: bool,
    /// It has a handler and uses it now.
    pub(crate) works: bool,
    /// For how long it has seen no member lead.
    pub(crate) leaderless_ms: u64,
    /// The kinds for which it has a handler of their own.
    pub(crate) kinds: Vec<String>,
}

impl MemberInfo {
    pub(crate) async fn read(
        link: &Link,
        keys: &Keys,
        id: &MemberId,
        timeout: Duration,
    ) -> Result<MemberInfo, StoreError> {
        let call = Call::plain("HGETALL").arg(keys.member(id)).reading(Reply::into_pairs);
        let fields = link.call(&call, timeout).await?.into_iter();
        let fields: HashMap<String, String> = fields
            .map(|(name, value)| Ok((name, value.into_text()?)))
            .collect::<Result<_, StoreError>>()?;
        let word = |name: &str| fields.get(name).cloned().unwrap_or_default();
        let count = |name: &str| word(name).parse().unwrap_or(0);
        // An info without this field belongs to a version in which every worker could lead.
        let is = |name: &str| !id.is_observer() && word(name) != "0";
        Ok(MemberInfo {
            label: word("label"),
            host: word("host"),
            pid: count("pid") as u32,
            done: count("done"),
            failed: count("failed"),
            in_flight: count("in_flight"),
            claimed: count("claimed"),
            can_lead: is("can_lead"),
            handles: is("handles"),
            works: is("works"),
            leaderless_ms: count("leaderless_ms"),
            kinds: serde_json::from_str(&word("kinds")).unwrap_or_default(),
        })
    }
}

/// How many infos are read to find a member that is idle, or that works.
const SAMPLE: i64 = 16;
/// How many ids they are chosen from. Observers never work, and their ids show that.
const IDS: i64 = 1000;

/// Does the info of some other member say that it has a handler and uses it? This is a hint. If there are many
/// members, only a sample is read.
pub(crate) async fn another_handles(
    link: &Link,
    keys: &Keys,
    me: &MemberId,
    timeout: Duration,
) -> Result<bool, StoreError> {
    let ids = window(link, keys, IDS, timeout).await?;
    let mut others: Vec<_> = ids.iter().filter(|id| *id != me && !id.is_observer()).collect();
    // Another sample each time: a member that was overlooked once is found soon.
    others.shuffle(&mut rand::rng());
    for id in others.into_iter().take(SAMPLE as usize) {
        let call = Call::plain("HGET").arg(keys.member(id)).arg("handles");
        let handles = link.call(&call, timeout).await?.into_text().is_ok_and(|it| it != "0");
        // A member that is drained has a handler and does not work.
        let call = Call::plain("HEXISTS").arg(keys.control()).arg(Orders::drain_field(id));
        if handles && link.call(&call, timeout).await?.into_number()? == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// At most `count` ids of members. If there are more, it begins at a random place.
async fn window(
    link: &Link,
    keys: &Keys,
    count: i64,
    timeout: Duration,
) -> Result<Vec<MemberId>, StoreError> {
    let all = Call::plain("ZCARD").arg(keys.members()).reading(Reply::into_number);
    let all = link.call(&all, timeout).await?;
    let from = rand::random_range(0..(all - count + 1).max(1));
    let call = Call::plain("ZRANGE").arg(keys.members()).arg(from).arg(from + count - 1);
    let ids = link.call(&call, timeout).await?.into_texts()?;
    Ok(ids.iter().filter_map(|id| MemberId::from_redis(id)).collect())
}

/// Does the info of some other member say that it has nothing to do? This is a hint. If there are many
/// members, only a sample is read.
pub(crate) async fn somebody_idle(
    link: &Link,
    keys: &Keys,
    me: &MemberId,
    timeout: Duration,
) -> Result<bool, StoreError> {
    for id in window(link, keys, SAMPLE, timeout).await?.iter().filter(|id| *id != me) {
        let call = Call::plain("HGET").arg(keys.member(id)).arg("idle");
        if link.call(&call, timeout).await?.into_text().is_ok_and(|idle| idle == "1") {
            return Ok(true);
        }
    }
    Ok(false)
}
