//! Which fleets there are, and the end of one.

use std::collections::BTreeSet;

use crate::Error;
use crate::config::check_fleet_name;
use crate::store::{REMOVING, Script};
use crate::sync::Redis;

static REMOVE: Script = Script::new("remove", include_str!("remove.lua"));

impl Redis {
    /// The names of all fleets in this database of this Redis, also of those that nobody ever joined and
    /// something was sent to. It reads the names of all keys there are, in pages.
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
            // Every fleet has `config` once it was joined, or `counts` once something was sent to it.
            let page = self.store.scan_page("artel:{*}:co[nu]*", cursor.as_deref()).await;
            let (keys, next) = page.map_err(|error| self.store.explain(error))?;
            for key in keys {
                let name = key.strip_prefix("artel:{").and_then(|rest| rest.split_once("}:"));
                names.extend(name.and_then(|(name, rest)| {
                    let known = ["config", "counts"].contains(&rest);
                    (known && check_fleet_name(name).is_ok()).then(|| name.to_owned())
                }));
            }
            match next {
                Some(next) => cursor = Some(next),
                None => return Ok(names.into_iter().collect()),
            }
        }
    }

    /// Removes this fleet with everything in it: messages, failed ones, books, locks, events and what
    /// effects wrote; says how many keys that were. Nobody may be in it; while it is being removed nobody can
    /// join it or send to it. What was begun and not finished is finished by another call.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if a member is in the fleet. If Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, a part of it may be gone; nobody can join until another call has removed
    /// the rest.
    pub async fn remove_fleet(&self) -> Result<u64, Error> {
        let keys = &self.store.keys;
        let everything = self.store.pattern_of(&keys.of_fleet());
        let (mut removed, mut cursor) = (0, None);
        loop {
            let page = self.store.scan_page(&everything, cursor.as_deref()).await;
            let (mut found, next) = page.map_err(|error| self.store.explain(error))?;
            found.splice(0..0, [keys.members(), keys.config()]);
            removed += self.remove_keys(&found, false).await?;
            match next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        Ok(removed + self.remove_keys(&[keys.members(), keys.config()], true).await?)
    }

    async fn remove_keys(&self, keys: &[String], last: bool) -> Result<u64, Error> {
        let call = REMOVE.call(keys).arg(REMOVING).arg(u8::from(last));
        let reply = self.store.repeat(&call).await?;
        let count = reply.number(0).map_err(|error| self.store.explain(error))? as u64;
        match reply.tag.as_str() {
            "ok" => Ok(count),
            "busy" => Err(Error::InUse { fleet: self.store.fleet().to_owned(), members: count }),
            _ => Err(self.store.explain(reply.unexpected())),
        }
    }
}
