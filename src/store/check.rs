//! Checks whether a Redis server is fit for a fleet, before a member joins.
//!
//! **Invariant:** a server that could break the promise silently is refused at the start, with the
//! reason, before anything is written to it.

use std::time::{Duration, Instant};

use super::{Call, PROTOCOL, Reply, Script, Store, StoreError, in_sync};
use crate::Error;
use crate::config::Durability;
use crate::error::{Denial, Unfit};

static PERMISSIONS: Script = Script::new("permissions", include_str!("permissions.lua"));
static OPEN: Script = Script::new("open", include_str!("open.lua"));

/// The server of a fleet.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// `Redis` or `Valkey`.
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) rtt: Duration,
}

/// What a client reads about a fleet without joining it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    /// How many messages may wait in a lane.
    pub(crate) backlog_max: usize,
    /// At least one member has joined it at some time.
    pub(crate) was_joined: bool,
}

impl Store {
    /// Reads the server's version and settings, and refuses a server that cannot keep the promise.
    pub(crate) async fn check(&self) -> Result<Server, Error> {
        let server = self.server().await?;
        let unfit = |why| Error::Unfit { redis: self.address().to_owned(), why };
        if is_too_old(&server.version) {
            return Err(unfit(Unfit::TooOld { version: server.version }));
        }
        let memory = self.info("memory").await?;
        if let Some(policy) = evicts(&memory) {
            return Err(unfit(Unfit::Evicts { policy: policy.to_owned() }));
        }
        if let Some(WrongType { key, found, expected }) =
            self.wrong_types().await?.into_iter().next()
        {
            return Err(unfit(Unfit::WrongType { key, found, expected }));
        }
        let missing = self.missing_rights().await?;
        if !missing.is_empty() {
            return Err(Error::Denied {
                redis: self.address().to_owned(),
                reason: format!("this user lacks the right to {}", missing.join(", ")),
                why: Denial::Access,
            });
        }
        self.check_replicas().await?;
        Ok(server)
    }

    /// Refuses to begin with fewer replicas than are waited for: nothing would ever be done.
    pub(crate) async fn check_replicas(&self) -> Result<(), Error> {
        let wanted = match self.durability() {
            Durability::Local => return Ok(()),
            Durability::Replicated(n) => n,
            Durability::All => 1,
        };
        let info = self.info("replication").await?;
        self.replication().saw(&info);
        let replicas = in_sync(&info);
        match replicas < wanted {
            true => {
                let redis = self.address().to_owned();
                Err(Error::TooFewReplicas { redis, replicas, wanted })
            }
            false => Ok(()),
        }
    }

    /// What may be lost with this Redis, as it is set up.
    pub(crate) async fn risks(&self) -> Vec<&'static str> {
        let mut risks = Vec::new();
        if self.is_persistent().await.is_ok_and(|persistent| !persistent) {
            risks.push("Redis has no append-only file: its data is lost when it dies");
        }
        let Ok(info) = self.info("replication").await else { return risks };
        let replicas = in_sync(&info);
        let may_fail_over =
            replicas > 0 || self.work.is_cluster() || self.client.place().has_sentinels();
        if may_fail_over && self.durability() == Durability::Local {
            risks.push(
                "durability is local: a failover may forget the last of what was told; `all` waits for all replicas",
            );
        }
        // It is shown only if it is set.
        if replicas > 0 && info_field(&info, "min_slaves_good_slaves").is_none() {
            risks.push(
                "min-replicas-to-write is 0: a primary that is cut off from its replicas goes on alone",
            );
        }
        risks
    }

    /// The keys of the fleet that hold something else.
    pub(crate) async fn wrong_types(&self) -> Result<Vec<WrongType>, Error> {
        let mut wrong = Vec::new();
        for (key, expected) in self.keys.typed() {
            let found = Call::plain("TYPE").arg(&key).reading(Reply::into_text);
            let found = self.once(&found).await?;
            if found != "none" && found != expected {
                wrong.push(WrongType { key, found, expected });
            }
        }
        Ok(wrong)
    }

    /// The commands that this user may not run.
    pub(crate) async fn missing_rights(&self) -> Result<Vec<String>, Error> {
        let keys = [self.keys.counts(), self.keys.ctl()];
        self.once(&PERMISSIONS.call(&keys).reading(Reply::into_texts)).await
    }

    /// Compares the protocol of the fleet with ours, for a client that is not a member.
    pub(crate) async fn open_fleet(&self) -> Result<Opened, Error> {
        let opened = self.try_open_fleet().await.map_err(|error| self.explain(error))?;
        opened.map_err(|theirs| self.other_protocol(&theirs))
    }

    /// As [`open_fleet`](Self::open_fleet), for a caller that explains the errors itself.
    pub(crate) async fn try_open_fleet(&self) -> Result<Result<Opened, String>, StoreError> {
        let call = OPEN.call(&[self.keys.config(), self.keys.members()]).arg(PROTOCOL);
        let reply = self.try_repeat(&call).await?;
        match reply.tag() {
            "ok" => {
                let (backlog_max, was_joined) = (reply.number(0)? as usize, reply.number(1)? == 1);
                Ok(Ok(Opened { backlog_max, was_joined }))
            }
            "protocol" => Ok(Err(reply.text(0)?)),
            _ => Err(reply.unexpected()),
        }
    }

    /// Does the server keep its data when its process dies?
    async fn is_persistent(&self) -> Result<bool, Error> {
        let info = self.info("persistence").await?;
        Ok(info_field(&info, "aof_enabled") != Some("0"))
    }

    /// A section of what the server says about itself.
    pub(crate) async fn info(&self, section: &str) -> Result<String, Error> {
        self.once(&Call::plain("INFO").arg(section).reading(Reply::into_text)).await
    }

    /// Version and round-trip time of the server.
    pub(crate) async fn server(&self) -> Result<Server, Error> {
        let info = self.info("server").await?;
        let valkey = info_field(&info, "valkey_version");
        let name = if valkey.is_some() { "Valkey" } else { "Redis" };
        let version =
            valkey.or_else(|| info_field(&info, "redis_version")).unwrap_or("0").to_owned();
        let sent = Instant::now();
        self.once(&Call::plain("PING")).await?;
        Ok(Server { name, version, rtt: sent.elapsed() })
    }
}

/// A key of the fleet that holds something else.
#[derive(Clone, Debug)]
pub(crate) struct WrongType {
    pub(crate) key: String,
    pub(crate) found: String,
    pub(crate) expected: &'static str,
}

/// Does this version lack what the scripts need?
pub(crate) fn is_too_old(version: &str) -> bool {
    version.split('.').next().and_then(|major| major.parse::<u32>().ok()).unwrap_or(0) < 7
}

/// The policy by which this server evicts data, if it does.
pub(crate) fn evicts(memory: &str) -> Option<&str> {
    // The records of senders have a time to live. They must not be evicted before it ends.
    let bounded = info_field(memory, "maxmemory").is_some_and(|bytes| bytes != "0");
    info_field(memory, "maxmemory_policy").filter(|policy| {
        policy.starts_with("allkeys") || (policy.starts_with("volatile") && bounded)
    })
}

/// A field of an answer to `INFO`.
pub(crate) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::info_field;

    #[test]
    fn a_field_of_info_is_found_by_its_whole_name() {
        let info = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n";
        assert_eq!(info_field(info, "redis_version"), Some("7.0.15"));
        assert_eq!(info_field(info, "redis"), None);
    }
}
