//! [`Card`]: what a member tells about itself with every heartbeat. For people only.

use std::collections::HashMap;
use std::time::Duration;

use super::MemberId;
use crate::store::{Call, Keys, Link, StoreError, list, number, text};

/// A member's own words; empty if it is long gone.
#[derive(Debug, Default)]
pub(crate) struct Card {
    pub(crate) label: String,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) in_flight: u64,
    pub(crate) claimed: u64,
}

impl Card {
    pub(crate) async fn read(
        link: &Link,
        keys: &Keys,
        id: &MemberId,
        timeout: Duration,
    ) -> Result<Card, StoreError> {
        let fields = list(link.call(&Call::plain("HGETALL").arg(keys.member(id)), timeout).await?)?;
        let fields: HashMap<String, String> = fields
            .chunks_exact(2)
            .map(|pair| Ok((text(&pair[0])?, text(&pair[1])?)))
            .collect::<Result<_, StoreError>>()?;
        let word = |name: &str| fields.get(name).cloned().unwrap_or_default();
        let count = |name: &str| word(name).parse().unwrap_or(0);
        Ok(Card {
            label: word("label"),
            host: word("host"),
            pid: count("pid") as u32,
            done: count("done"),
            failed: count("failed"),
            in_flight: count("in_flight"),
            claimed: count("claimed"),
        })
    }
}

/// Cards that are looked at to find somebody who is idle.
const SAMPLE: i64 = 16;

/// Does the card of some other member say that it has nothing to do? A hint, and of a sample if there are
/// many.
pub(crate) async fn somebody_idle(
    link: &Link,
    keys: &Keys,
    me: &MemberId,
    timeout: Duration,
) -> Result<bool, StoreError> {
    let count = number(&link.call(&Call::plain("ZCARD").arg(keys.members()), timeout).await?)?;
    let from = rand::random_range(0..(count - SAMPLE + 1).max(1));
    let call = Call::plain("ZRANGE").arg(keys.members()).arg(from).arg(from + SAMPLE - 1);
    for id in list(link.call(&call, timeout).await?)? {
        let id = MemberId::from_redis(&text(&id)?);
        if let Some(id) = id.filter(|id| id != me) {
            let call = Call::plain("HGET").arg(keys.member(&id)).arg("idle");
            if text(&link.call(&call, timeout).await?).is_ok_and(|idle| idle == "1") {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
