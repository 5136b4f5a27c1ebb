//! Orders of operators: pause lanes or everything, drain a member, have the generator step down.
//!
//! **Invariant:** an order is one field in Redis, changed only by who knows its value. Members follow it within half a lease.
//! While paused, nothing is lost: entries fire and delayed messages are let go, and wait in their lanes.

use std::time::SystemTime;

use crate::Error;
use crate::fleet::Fleet;
use crate::id::MemberId;
use crate::json_time::at_ms;
use crate::lane::Lane;
use crate::membership::Orders;
use crate::store::{Call, Reply, Script, StoreError};

static CONTROL_SET: Script =
    Script::new("control_set", include_str!("control_set.lua")).lasting(&["ok", "same"]);

/// A copy that is on its way for longer than this changes nothing.
const LATE_AFTER_MS: u64 = 10_000;
/// How often a change is tried if another one comes first.
const TRIES: usize = 5;

/// What is paused or drained. Made by [`Fleet::orders`].
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{About, Fleet};
///
/// let fleet = Fleet::connect(url, "orders").await?;
/// fleet.pause_all().await?;
/// assert_eq!(fleet.orders().await?[0].about, About::All);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Order {
    /// What it is about.
    pub about: About,
    /// Since when, Redis time.
    pub since: SystemTime,
}

/// What an order is about.
///
/// ```
/// use artel::{About, Lane};
///
/// assert_ne!(About::Lane(Lane::Low), About::All);
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum About {
    /// Everything is paused: no member fetches.
    All,
    /// This lane is paused.
    Lane(Lane),
    /// This member fetches nothing and does not lead.
    Drained(MemberId),
}

/// What Redis answered to an order.
enum Answer {
    Done,
    Same,
    Moved(String),
    Late,
    Absent,
}

impl Answer {
    fn read(reply: Reply) -> Result<Answer, StoreError> {
        match reply.tag() {
            "ok" => Ok(Answer::Done),
            "same" => Ok(Answer::Same),
            "moved" => Ok(Answer::Moved(reply.text(0)?)),
            "late" => Ok(Answer::Late),
            "absent" => Ok(Answer::Absent),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Fleet {
    /// Pauses a lane: no member fetches from it until it is resumed. Messages that were fetched are finished, and
    /// messages of dead workers run. False if it is paused already.
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use artel::{Fleet, Lane};
    ///
    /// let fleet = Fleet::connect(url, "orders").await?;
    /// assert!(fleet.pause(Lane::Low).await?);
    /// assert_eq!(fleet.orders().await?.len(), 1);
    /// assert!(fleet.resume(Lane::Low).await?);
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached, refuses or does not answer, or the fleet runs with another protocol.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the order may have been given or not.
    pub async fn pause(&self, lane: Lane) -> Result<bool, Error> {
        self.order(&Orders::lane_field(lane), "now", None).await
    }

    /// Resumes a lane. False if it is not paused.
    ///
    /// # Errors
    ///
    /// As [`pause`](Self::pause).
    ///
    /// # Cancel safety
    ///
    /// As [`pause`](Self::pause).
    pub async fn resume(&self, lane: Lane) -> Result<bool, Error> {
        self.order(&Orders::lane_field(lane), "", None).await
    }

    /// Pauses everything: no member fetches until it is resumed. False if it is paused already.
    ///
    /// # Errors
    ///
    /// As [`pause`](Self::pause).
    ///
    /// # Cancel safety
    ///
    /// As [`pause`](Self::pause).
    pub async fn pause_all(&self) -> Result<bool, Error> {
        self.order(Orders::ALL, "now", None).await
    }

    /// Resumes everything; lanes that are paused stay so. False if it is not paused.
    ///
    /// # Errors
    ///
    /// As [`pause`](Self::pause).
    ///
    /// # Cancel safety
    ///
    /// As [`pause`](Self::pause).
    pub async fn resume_all(&self) -> Result<bool, Error> {
        self.order(Orders::ALL, "", None).await
    }

    /// Drains a member: it finishes what it has started, gives back the rest, fetches nothing, and does not lead. The order
    /// ends with its session. False if it is drained already.
    ///
    /// # Errors
    ///
    /// As [`pause`](Self::pause), and if it is not a member.
    ///
    /// # Cancel safety
    ///
    /// As [`pause`](Self::pause).
    pub async fn drain(&self, member: &MemberId) -> Result<bool, Error> {
        self.order(&Orders::drain_field(member), "now", Some(member)).await
    }

    /// Ends the drain of a member. False if it is not drained.
    ///
    /// # Errors
    ///
    /// As [`drain`](Self::drain).
    ///
    /// # Cancel safety
    ///
    /// As [`pause`](Self::pause).
    pub async fn end_drain(&self, member: &MemberId) -> Result<bool, Error> {
        self.order(&Orders::drain_field(member), "", Some(member)).await
    }

    /// Has the generator step down: it gives up its lease, and does not stand for election for one lease. False if no
    /// member leads.
    ///
    /// # Errors
    ///
    /// As [`pause`](Self::pause).
    ///
    /// # Cancel safety
    ///
    /// As [`pause`](Self::pause).
    pub async fn step_down(&self) -> Result<bool, Error> {
        let lease = Call::plain("GET").arg(self.store.keys.lease()).reading(text_or_empty);
        let lease = self.store.once(&lease).await?;
        let holder = lease.split_once('|').and_then(|(member, _)| MemberId::from_redis(member));
        let Some(holder) = holder else { return Ok(false) };
        match self.order(Orders::STEP_DOWN, &lease, Some(&holder)).await {
            Err(Error::Config { field: "member", .. }) => Ok(false),
            ordered => ordered.map(|_| true),
        }
    }

    /// What is paused or drained now.
    ///
    /// # Errors
    ///
    /// As [`pause`](Self::pause).
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn orders(&self) -> Result<Vec<Order>, Error> {
        let call = Call::plain("HGETALL").arg(self.store.keys.control()).reading(Order::read_all);
        self.store.once(&call).await
    }

    async fn order(
        &self,
        field: &str,
        value: &str,
        member: Option<&MemberId>,
    ) -> Result<bool, Error> {
        self.compare().await?;
        let (store, keys) = (&self.store, &self.store.keys);
        let known = Call::plain("HGET").arg(keys.control()).arg(field).reading(text_or_empty);
        let mut known = store.once(&known).await?;
        let now = store.once(&Call::plain("TIME").reading(seconds)).await?;
        let until = now * 1000 + LATE_AFTER_MS;
        for _ in 0..TRIES {
            let call = CONTROL_SET
                .call(&[keys.control(), keys.members(), keys.ctl(), keys.notices()])
                .arg(field)
                .arg(value)
                .arg(&known)
                .arg(until)
                .arg(member.map_or("", MemberId::as_str))
                .arg(self.who())
                .reading(Answer::read);
            match store.repeat(&call).await? {
                Answer::Done => return Ok(true),
                // If it was not so before, a copy of this call made it so.
                Answer::Same => return Ok(known.is_empty() != value.is_empty()),
                Answer::Moved(now) => known = now,
                Answer::Absent => {
                    let problem = "is not a member of this fleet".to_owned();
                    return Err(Error::Config { field: "member", problem });
                }
                Answer::Late => break,
            }
        }
        let reason = "the order was on its way for too long, or others changed it again and again";
        Err(Error::Refused { reason: reason.to_owned() })
    }
}

fn text_or_empty(reply: Reply) -> Result<String, StoreError> {
    if reply.is_nil() { Ok(String::new()) } else { reply.into_text() }
}

fn seconds(reply: Reply) -> Result<u64, StoreError> {
    let first = reply.into_list()?.into_iter().next();
    let first = first.ok_or_else(|| StoreError::odd("a time without seconds"))?;
    Ok(first.into_text()?.parse().unwrap_or(0))
}

impl Order {
    fn read_all(reply: Reply) -> Result<Vec<Order>, StoreError> {
        let mut all = Vec::new();
        for (field, value) in reply.into_pairs()? {
            let about = match field.split_once(':') {
                None if field == Orders::ALL => Some(About::All),
                Some(("lane", name)) => name.parse().ok().map(About::Lane),
                Some(("drain", id)) => MemberId::from_redis(id).map(About::Drained),
                _ => None,
            };
            let since = at_ms(value.into_text()?.parse().unwrap_or(0));
            all.extend(about.map(|about| Order { about, since }));
        }
        all.sort_by_key(|order| order.since);
        Ok(all)
    }
}
