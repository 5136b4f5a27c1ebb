//! Checks whether a Redis server is fit for a fleet, before a member joins.
//!
//! **Invariant:** a server that could break the promise silently is refused at the start, with the
//! reason, before anything is written to it.

use std::time::{Duration, Instant};

use super::{Call, PROTOCOL, Reply, Script, Store, StoreError};
use crate::Error;
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
        let major: u32 = server.version.split('.').next().and_then(|x| x.parse().ok()).unwrap_or(0);
        if major < 7 {
            return Err(unfit(Unfit::TooOld { version: server.version }));
        }
        let memory = self.info("memory").await?;
        // The records of senders have a time to live. They must not be evicted before it ends.
        let bounded = field(&memory, "maxmemory").is_some_and(|bytes| bytes != "0");
        if let Some(policy) = field(&memory, "maxmemory_policy")
            && (policy.starts_with("allkeys") || (policy.starts_with("volatile") && bounded))
        {
            return Err(unfit(Unfit::Evicts { policy: policy.to_owned() }));
        }
        for (key, expected) in self.keys.typed() {
            let found = Call::plain("TYPE").arg(&key).reading(Reply::into_text);
            let found = self.once(&found).await?;
            if found != "none" && found != expected {
                return Err(unfit(Unfit::WrongType { key, found, expected }));
            }
        }
        let keys = [self.keys.counts(), self.keys.ctl()];
        let missing = self.once(&PERMISSIONS.call(&keys).reading(Reply::into_texts)).await?;
        if !missing.is_empty() {
            return Err(Error::Denied {
                redis: self.address().to_owned(),
                reason: format!("this user lacks the right to {}", missing.join(", ")),
                why: Denial::Access,
            });
        }
        Ok(server)
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
    pub(crate) async fn is_persistent(&self) -> Result<bool, Error> {
        let info = self.info("persistence").await?;
        Ok(field(&info, "aof_enabled") != Some("0"))
    }

    async fn info(&self, section: &str) -> Result<String, Error> {
        self.once(&Call::plain("INFO").arg(section).reading(Reply::into_text)).await
    }

    /// Version and round-trip time of the server.
    pub(crate) async fn server(&self) -> Result<Server, Error> {
        let info = self.info("server").await?;
        let valkey = field(&info, "valkey_version");
        let name = if valkey.is_some() { "Valkey" } else { "Redis" };
        let version = valkey.or_else(|| field(&info, "redis_version")).unwrap_or("0").to_owned();
        let sent = Instant::now();
        self.once(&Call::plain("PING")).await?;
        Ok(Server { name, version, rtt: sent.elapsed() })
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn a_field_of_info_is_found_by_its_whole_name() {
        let info = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n";
        assert_eq!(field(info, "redis_version"), Some("7.0.15"));
        assert_eq!(field(info, "redis"), None);
    }
}
