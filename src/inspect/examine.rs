//! Reads what `artel doctor` judges.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use super::finding::{Facts, Finding, findings, replica};
use crate::Error;
use crate::error::Unreached;
use crate::fleet::Fleet;
use crate::json_time::at_ms;
use crate::store::{Call, Reply};

/// How often the round trip is measured.
const PINGS: usize = 10;
/// Settings of Redis that say how it keeps its data.
const SETTINGS: [&str; 3] = ["appendfsync", "min-replicas-to-write", "stop-writes-on-bgsave-error"];

impl Fleet {
    /// Looks for what endangers the promise or the work of this fleet: the server, its settings, this user's rights, the keys,
    /// the members and the books.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached, or does not let this user in.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn examine(&self) -> Result<Vec<Finding>, Error> {
        let store = &self.store;
        let server = match store.server().await {
            // It is not used at all; what that means is the same as for one that became a replica a moment ago.
            Err(Error::Unreachable { why: Unreached::Replica, .. }) => return Ok(vec![replica()]),
            server => server?,
        };
        let info = store.info("everything").await?;
        let mut round_trips = Vec::new();
        for _ in 0..PINGS {
            let sent = Instant::now();
            store.once(&Call::plain("PING")).await?;
            round_trips.push(sent.elapsed());
        }
        let status = match self.status().await {
            Ok(status) => Ok(Box::new(status)),
            Err(error) if error.is_unreachable() => return Err(error),
            Err(error) => Err(error),
        };
        let facts = Facts {
            server: (server.name, server.version),
            round_trips,
            info,
            settings: self.redis_settings().await,
            missing: store.missing_rights().await.map_err(|error| error.to_string()),
            // Without the right to ask there is a finding about rights.
            wrong_types: store.wrong_types().await.unwrap_or_default(),
            ahead_ms: self.clock_ahead_ms().await.unwrap_or_default(),
            status,
            bounds: self.bounds().await.unwrap_or((1_000_000, 1_000_000)),
        };
        Ok(findings(&facts))
    }

    /// Settings of Redis; none if this user may not read them.
    async fn redis_settings(&self) -> BTreeMap<String, String> {
        let mut call = Call::plain("CONFIG").arg("GET");
        for name in SETTINGS {
            call = call.arg(name);
        }
        let pairs = self.store.once(&call.reading(Reply::into_pairs)).await.unwrap_or_default();
        pairs
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.into_text().ok()?)))
            .collect()
    }

    /// How far the clock of Redis is ahead of ours.
    async fn clock_ahead_ms(&self) -> Result<i64, Error> {
        let asked = SystemTime::now();
        let time = Call::plain("TIME").reading(|reply: Reply| {
            let parts: Vec<Reply> = reply.into_list()?;
            let mut numbers = parts.into_iter().map(Reply::into_number);
            let mut next = || numbers.next().unwrap_or(Ok(0));
            Ok(next()? * 1000 + next()? / 1000)
        });
        let redis = at_ms(self.store.once(&time).await?.max(0) as u64);
        let half = asked.elapsed().unwrap_or_default() / 2;
        let ours = asked + half;
        Ok(match redis.duration_since(ours) {
            Ok(ahead) => ahead.as_millis() as i64,
            Err(behind) => -(behind.duration().as_millis() as i64),
        })
    }

    /// How many messages may wait in a lane, and how many failed ones may be stored.
    async fn bounds(&self) -> Result<(u64, u64), Error> {
        let call =
            Call::plain("HMGET").arg(self.store.keys.config()).arg("backlog_max").arg("errors_max");
        let both = self.store.once(&call.reading(Reply::into_list)).await?;
        let mut both =
            both.into_iter().map(|bound| bound.into_number().unwrap_or(1_000_000) as u64);
        let mut next = || both.next().unwrap_or(1_000_000);
        Ok((next(), next()))
    }
}
