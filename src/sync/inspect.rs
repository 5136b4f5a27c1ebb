//! Reading the events and the locks of a fleet.
//!
//! **Invariant:** it only reads. Each entry is true by itself. Between two reads the fleet goes on.

use std::time::Duration;

use serde::Serialize;

use super::{DistributedEvent, EventState, check_name};
use crate::Error;
use crate::fleet::Fleet;
use crate::id::MemberId;
use crate::json_time::{self, TimeLeft};
use crate::membership::MemberInfo;
use crate::store::{Call, Reply};
use crate::tenure::locks_of;
use crate::term::Token;
use crate::watch::read_call;

/// An event at one moment.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// fleet.event("new-prices")?.set().await?;
/// let events = fleet.events().await?;
/// assert_eq!(events[0].name, "new-prices");
/// assert!(events[0].state.is_set);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EventStatus {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: EventState,
}

/// A lock that is held.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let member = fleet.join().start().await?;
/// let guard = member.lock("nightly")?.acquire().await?;
/// let status = fleet.lock_status("nightly").await?.expect("held");
/// assert_eq!(status.token, guard.token());
/// # guard.release().await?;
/// # member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LockStatus {
    /// Its name.
    pub name: String,
    /// The session that holds it.
    pub member: MemberId,
    /// That member's name for people.
    pub label: String,
    /// Where it runs.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// The fencing token.
    pub token: Token,
    /// For how long it has been held, judged by its token.
    #[serde(rename = "held_ms", with = "json_time::span_ms")]
    pub held: Duration,
    /// How many processes wait for it.
    pub waiting: u64,
    /// How long its holder's session lasts unless it is refreshed.
    #[serde(rename = "left_ms")]
    pub left: TimeLeft,
}

impl Fleet {
    /// Every event that was ever set or cleared, by name.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn events(&self) -> Result<Vec<EventStatus>, Error> {
        self.compare().await?;
        let prefix = self.store.keys.event("").key;
        let found = self.store.scan(&prefix).await.map_err(|error| self.store.explain(error))?;
        let mut events = Vec::new();
        for key in found {
            let read = self.store.once(&read_call(&key)).await;
            // A key that holds something else, or whose name is invalid, is not an event.
            let name = key[prefix.len()..].to_owned();
            let (Ok(read), Ok(())) = (read, check_name("event", &name)) else { continue };
            events.push(EventStatus { name, state: DistributedEvent::state_of(&read) });
        }
        events.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(events)
    }

    /// Every lock that is held, by name.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn locks(&self) -> Result<Vec<LockStatus>, Error> {
        self.compare().await?;
        let (store, keys) = (&self.store, &self.store.keys);
        let call = Call::plain("ZRANGE").arg(keys.members()).arg(0).arg(-1);
        let members = store.once(&call.reading(Reply::into_texts)).await?;
        let mut locks = Vec::new();
        for id in members.iter().filter_map(|id| MemberId::from_redis(id)) {
            for (name, _) in store.once(&locks_of(store, &id)).await? {
                // A lock whose name is invalid, or whose key holds something else, is left out.
                match self.lock_status(&name).await {
                    Ok(lock) => locks.extend(lock),
                    Err(Error::Config { .. } | Error::Unfit { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        locks.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(locks)
    }

    /// The status of a lock. `None` if nobody holds it.
    ///
    /// # Errors
    ///
    /// If the name is invalid, Redis cannot be reached or refuses, or the key holds something else.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn lock_status(&self, name: &str) -> Result<Option<LockStatus>, Error> {
        check_name("lock", name)?;
        self.compare().await?;
        let (store, keys) = (&self.store, &self.store.keys);
        let key = keys.lock(name);
        let held = store.try_repeat(&Call::plain("GET").arg(&key)).await;
        let held = held.map_err(|error| self.explain(&key, error))?;
        let Ok(held) = held.into_text() else { return Ok(None) };
        let Some((member, token)) = held.split_once('|') else { return Ok(None) };
        let Some(id) = MemberId::from_redis(member) else { return Ok(None) };
        let Some(token) = Token::parse(token) else { return Ok(None) };
        let alive = store.once(&Call::plain("ZSCORE").arg(keys.members()).arg(member)).await?;
        let Ok(deadline) = alive.into_number() else { return Ok(None) };
        let MemberInfo { label, host, pid, .. } = store.member_info(&id).await?;
        let waiting = Call::plain("ZCARD").arg(keys.waiters(name)).reading(Reply::into_number);
        let waiting = store.once(&waiting).await? as u64;
        let now_ms = store.time_ms().await.map_err(|error| store.explain(error))?;
        Ok(Some(LockStatus {
            name: name.to_owned(),
            member: id,
            label,
            host,
            pid,
            token,
            held: Duration::from_millis(now_ms.saturating_sub(token.get() / 1000)),
            waiting,
            left: TimeLeft::between(now_ms as i64, deadline),
        }))
    }
}
