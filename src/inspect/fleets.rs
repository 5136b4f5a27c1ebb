//! Listing the fleets, and removing one.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::Error;
use crate::config::check_fleet_name;
use crate::fleet::Fleet;
use crate::store::{Call, REMOVING, Reply, Script, nonce};

/// A removal must begin within this time: later the fleet may be another one.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);

static REMOVE: Script = Script::new("remove", include_str!("remove.lua"));

impl Fleet {
    /// The names of all fleets in this database of this Redis, including fleets that got messages but
    /// that nobody ever joined. It reads the names of all keys of the database, in pages.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn fleets(&self) -> Result<Vec<String>, Error> {
        let mut names = BTreeSet::new();
        let mut cursor = None;
        loop {
            // Every fleet has `config` once it was joined, or `counts` once a message was sent to it. A
            // fleet that nobody joined may have events or latches.
            let page = self.store.scan_page("artel:{*}:[cel][ova][unet]*", cursor.as_deref()).await;
            let (keys, next) = page.map_err(|error| self.store.explain(error))?;
            for key in keys {
                let name = key.strip_prefix("artel:{").and_then(|rest| rest.split_once("}:"));
                names.extend(name.and_then(|(name, rest)| {
                    let shared = ["event:", "latch:"].iter().any(|prefix| rest.starts_with(prefix));
                    let known = ["config", "counts"].contains(&rest) || shared;
                    (known && check_fleet_name(name).is_ok()).then(|| name.to_owned())
                }));
            }
            match next {
                Some(next) => cursor = Some(next),
                None => return Ok(names.into_iter().collect()),
            }
        }
    }

    /// Was this fleet found on a node of a cluster, by the last connection? Then [`fleets`](Fleet::fleets) lists only those of
    /// that node.
    pub fn is_on_cluster(&self) -> bool {
        self.store.work.is_cluster()
    }

    /// Removes this fleet with everything in it: messages, failed messages, books, locks, events and
    /// the data that effects wrote. Returns how many keys were removed. The fleet must have no members.
    /// While it is being removed, nobody can join it or send to it. If a removal was not finished,
    /// another call finishes it.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if a member is in the fleet. If Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, a part of the fleet may be removed. Nobody can join until
    /// another call has removed the rest.
    pub async fn remove(&self) -> Result<u64, Error> {
        let keys = &self.store.keys;
        let name = self.begin_removal().await?;
        let everything = self.store.pattern_of(&keys.of_fleet());
        let (mut removed, mut cursor) = (0, None);
        loop {
            let page = self.store.scan_page(&everything, cursor.as_deref()).await;
            let (found, next) = page.map_err(|error| self.store.explain(error))?;
            removed += self.remove_keys("piece", &name, &found).await?;
            match next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        Ok(removed + self.remove_keys("last", &name, &[]).await?)
    }

    /// Keeps everybody out of the fleet. Returns the name of this removal, or of an earlier one that
    /// was not finished.
    async fn begin_removal(&self) -> Result<String, Error> {
        let explain = |error| self.store.explain(error);
        let keys = &self.store.keys;
        let born = self.store.once(&Call::plain("HGET").arg(keys.config()).arg("born")).await?;
        let born = born.into_text().unwrap_or_default();
        let until = self.store.time_ms().await.map_err(explain)? + BEGIN_WITHIN.as_millis() as u64;
        let call = REMOVE.call(&[keys.members(), keys.config()]).arg("begin").arg(nonce());
        let reply = self.store.repeat(&call.arg(REMOVING).arg(born).arg(until)).await?;
        match reply.tag() {
            "ok" => reply.text(0).map_err(explain),
            "busy" => Err(self.in_use(&reply)),
            "over" => {
                let reason =
                    "the fleet was created again meanwhile, so it was not removed".to_owned();
                Err(Error::Refused { reason })
            }
            _ => Err(explain(reply.unexpected())),
        }
    }

    async fn remove_keys(&self, what: &str, name: &str, found: &[String]) -> Result<u64, Error> {
        let keys = &self.store.keys;
        let mut all = vec![keys.members(), keys.config()];
        all.extend_from_slice(found);
        let reply = self.store.repeat(&REMOVE.call(&all).arg(what).arg(name)).await?;
        match reply.tag() {
            "ok" => Ok(reply.number(0).map_err(|error| self.store.explain(error))? as u64),
            // Another call has finished it.
            "over" => Ok(0),
            "busy" => Err(self.in_use(&reply)),
            _ => Err(self.store.explain(reply.unexpected())),
        }
    }

    fn in_use(&self, reply: &Reply) -> Error {
        let members = reply.number(0).unwrap_or(1) as u64;
        Error::InUse { fleet: self.store.fleet().to_owned(), members }
    }
}
