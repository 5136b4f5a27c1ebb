//! The only code that speaks to Redis.
//!
//! **Invariant:** every call ends within its own deadline, answered or not, and only its caller repeats
//! it. The client library's retries are off. A repeat has exactly the same bytes.
//!
//! A process has three connections: *session* (heartbeat, presence and all subscriptions; on a thread
//! of its own), *work* (everything else) and *wait* (the blocking wait for a wake token). If it waits for
//! replicas, it has a fourth one for that: *replicas*.

mod address;
mod check;
mod client;
mod control;
mod dialer;
mod floor;
mod keys;
mod link;
mod place;
mod prelude;
mod push_router;
mod replication;
mod reply;
mod reply_limit;
mod script;
mod sentinels;
mod server_list;
mod session_link;

use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use address::Address;
pub(crate) use check::{Opened, WrongType, evicts, info_field, is_too_old};
pub(crate) use control::Control;
pub(crate) use floor::Floor;
pub(crate) use keys::{Keys, Signal};
pub(crate) use link::{CALLS, Link};
pub(crate) use push_router::{Hint, Listener, PushRouter, Route};
pub(crate) use replication::{Replication, in_sync};
pub(crate) use reply::Reply;
pub(crate) use script::{Call, Script};
pub(crate) use session_link::{Hints, SessionLink};

use client::Client;

use crate::Error;
use crate::config::Durability;
use crate::error::{Denial, Unreached};

/// The version of the keys, channels and scripts. All members and clients of one fleet must have the
/// same one.
pub(crate) const PROTOCOL: u32 = 5;
/// The protocol of a fleet that is being removed. No process has this protocol, so no process can join.
pub(crate) const REMOVING: &str = "4294967295";
/// How long a start-up or one-off command waits for Redis.
pub(crate) const ONCE_TIMEOUT: Duration = Duration::from_secs(5);
/// After this time such a command is not repeated.
const REPEAT_MAX: Duration = Duration::from_secs(8);
/// The first pause before such a command is repeated. Later pauses are longer.
const ONCE_PAUSE: Duration = Duration::from_millis(50);

/// Why a call has no usable answer.
#[derive(Clone, Debug)]
pub(crate) enum StoreError {
    /// No answer in time. The call may take effect now, later or never.
    Silent(Duration),
    /// The connection broke. The call may take effect now, later or never.
    Broken(String),
    /// No connection could be made: nothing was sent.
    Unconnected(String),
    /// Redis answered with an error; the call had no effect.
    Server {
        /// The first word of the error, such as `OOM`.
        code: String,
        /// The whole error.
        text: String,
    },
    /// The primary did it. Too few replicas have it, so it may yet be forgotten.
    Unreplicated { replicas: u32, wanted: u32 },
    /// An answer that this version does not understand.
    Odd(String),
    /// An answer that shows that the caller's session is over.
    Gone,
}

impl StoreError {
    pub(crate) fn odd(text: impl AsRef<str>) -> StoreError {
        StoreError::Odd(quoted(text.as_ref()).to_owned())
    }

    /// The kind of error in one word, for the log. It has no data of a user.
    fn kind(&self) -> &'static str {
        match self {
            StoreError::Silent(_) => "silent",
            StoreError::Broken(_) => "broken",
            StoreError::Unconnected(_) => "unconnected",
            StoreError::Server { .. } => "refused",
            StoreError::Unreplicated { .. } => "unreplicated",
            StoreError::Odd(_) => "odd",
            StoreError::Gone => "gone",
        }
    }

    /// There is no usable answer: the call may have taken effect, or may still do so.
    pub(crate) fn is_unheard(&self) -> bool {
        !matches!(self, StoreError::Server { .. } | StoreError::Unconnected(_))
    }

    /// The same call may succeed later: Redis did not answer, or it is not ready.
    pub(crate) fn is_passing(&self) -> bool {
        const PASSING: [&str; 12] = [
            "MOVED",
            "ASK",
            "LOADING",
            "NOSCRIPT",
            "BUSY",
            "READONLY",
            "MASTERDOWN",
            "CLUSTERDOWN",
            "TRYAGAIN",
            "UNBLOCKED",
            "NOREPLICAS",
            "MISCONF",
        ];
        match self {
            StoreError::Silent(_)
            | StoreError::Broken(_)
            | StoreError::Unconnected(_)
            | StoreError::Unreplicated { .. } => true,
            StoreError::Server { code, .. } => PASSING.contains(&code.as_str()),
            StoreError::Odd(_) | StoreError::Gone => false,
        }
    }

    /// Redis refuses the credentials, or the user lacks a right.
    pub(crate) fn is_denied(&self) -> bool {
        let StoreError::Server { code, text } = self else { return false };
        ["NOAUTH", "WRONGPASS", "NOPERM"].contains(&code.as_str())
            || text.contains("ACL failure")
            || text.contains("can't run this command")
            || text.contains("AUTH")
            || text.to_lowercase().contains("password")
    }

    /// The slot is on its way to another server. As long as it is, nearly no call can be answered.
    pub(crate) fn is_moving(&self) -> bool {
        matches!(self, StoreError::Server { code, .. } if code == "ASK" || code == "TRYAGAIN")
    }

    /// The primary is elsewhere, or there is none at this moment. Nothing was done.
    fn is_change(&self) -> bool {
        const CHANGES: [&str; 7] =
            ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "MASTERDOWN", "UNBLOCKED"];
        matches!(self, StoreError::Server { code, .. } if CHANGES.contains(&code.as_str()))
    }

    /// Redis is out of memory, so it refuses new messages. Everything else goes on.
    pub(crate) fn is_oom(&self) -> bool {
        matches!(self, StoreError::Server { code, .. } if code == "OOM")
    }
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreError::Silent(after) => write!(f, "no answer within {after:?}"),
            StoreError::Broken(reason) | StoreError::Unconnected(reason) => write!(f, "{reason}"),
            StoreError::Server { code, text } => match code.as_str() {
                "ASK" | "TRYAGAIN" => write!(f, "the slot of this fleet is being moved"),
                "MOVED" | "READONLY" | "MASTERDOWN" | "UNBLOCKED" => {
                    write!(f, "the primary changed: following")
                }
                "CLUSTERDOWN" => write!(f, "no primary: waiting for a failover ({text})"),
                _ => write!(f, "{text}"),
            },
            StoreError::Unreplicated { replicas, wanted } => {
                write!(f, "{replicas} of {wanted} replicas have it")
            }
            StoreError::Odd(text) => write!(f, "{text}"),
            StoreError::Gone => write!(f, "the session is over"),
        }
    }
}

impl From<redis::RedisError> for StoreError {
    fn from(error: redis::RedisError) -> StoreError {
        if error.is_unrecoverable_error() || error.is_io_error() {
            return StoreError::Broken(reason(&error));
        }
        // A transaction that was not executed says why behind this.
        let detail = error.detail().unwrap_or_default();
        if let (Some("EXECABORT"), Some((_, why))) =
            (error.code(), detail.split_once("because of: "))
        {
            let code = why.split([' ', '\'']).next().unwrap_or_default().to_owned();
            return StoreError::Server { code, text: without_arguments(why) };
        }
        match error.code() {
            Some(code) => {
                let text = format!("{code} {detail}");
                StoreError::Server { code: code.to_owned(), text: without_arguments(&text) }
            }
            None => {
                let text = without_arguments(&reason(&error));
                StoreError::Server { code: String::new(), text }
            }
        }
    }
}

/// How many bytes of a foreign text are quoted.
const QUOTED_BYTES_MAX: usize = 200;

/// The beginning of a text, at most [`QUOTED_BYTES_MAX`] bytes.
pub(crate) fn quoted(text: &str) -> &str {
    let mut end = text.len().min(QUOTED_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Cuts off the arguments of a command. A server that does not know the command repeats them, and a
/// password may be among them.
fn without_arguments(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    quoted(&text[..lower.find("with args beginning with").unwrap_or(text.len())])
        .trim_end_matches([',', ' '])
        .to_owned()
}

/// What went wrong, without the client library's decoration.
fn reason(error: &redis::RedisError) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    // Behind this is how long ago a certificate expired, which is of no use here.
    let text = text.split(": verification time").next().unwrap_or(text);
    quoted(text.strip_suffix("- io-err").unwrap_or(text).trim()).to_lowercase()
}

/// A random name for a sender or a drain. No other one has it.
pub(crate) fn nonce() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// One fleet's place in one Redis.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) keys: Keys,
    pub(crate) work: Arc<Link>,
    pub(crate) wait: Arc<Link>,
    session: Arc<Mutex<Option<Arc<SessionLink>>>>,
    client: Client,
    replication: Replication,
    /// When what a user is told counts as done.
    durability: Durability,
    pub(crate) floor: Arc<Floor>,
    address: String,
    fleet: String,
}

impl Store {
    /// Reads the address. It does not connect yet.
    pub(crate) fn open(address: &Address, fleet: &str) -> Result<Store, Error> {
        let (client, database) = (address.client()?, address.database()?);
        let (address, keys) = (address.to_string(), Keys::new(fleet, database));
        let client = client.of(&keys);
        let replication = Replication::new(Link::new("replicas", client.clone()), &keys);
        Ok(Store {
            keys,
            work: Arc::new(Link::new("work", client.clone())),
            wait: Arc::new(Link::new("wait", client.clone())),
            session: Arc::default(),
            client,
            replication,
            durability: Durability::Local,
            floor: Arc::default(),
            address,
            fleet: fleet.to_owned(),
        })
    }

    /// The same place in Redis, over connections of its own.
    pub(crate) fn anew(&self) -> Store {
        let client = self.client.clone();
        let work = Link::new("work", client.clone()).lasting(self.durability, &self.replication);
        Store {
            work: Arc::new(work),
            wait: Arc::new(Link::new("wait", client)),
            session: Arc::default(),
            ..self.clone()
        }
    }

    /// The same place in Redis, over the same connections. What a user is told waits until it lasts as he asks for.
    pub(crate) fn lasting(&self, durability: Durability) -> Store {
        let work = self.work.lasting(durability, &self.replication);
        Store { work: Arc::new(work), durability, ..self.clone() }
    }

    pub(crate) fn durability(&self) -> Durability {
        self.durability
    }

    /// From now on this process takes steps that are counted: each server is listed before that.
    pub(crate) fn count_steps(&self) {
        if let Some(servers) = self.client.servers() {
            servers.begin();
        }
    }

    /// Where it is waited for replicas.
    pub(crate) fn replication(&self) -> &Replication {
        &self.replication
    }

    /// The connection with the subscriptions. All clones of this store share it.
    pub(crate) fn session_link(&self) -> Result<Arc<SessionLink>, Error> {
        let mut session = self.session.lock().expect("never poisoned");
        match &*session {
            Some(link) => Ok(link.clone()),
            None => {
                let link = SessionLink::open(self.client.clone(), &self.keys)?;
                Ok(session.insert(Arc::new(link)).clone())
            }
        }
    }

    /// The error for a fleet that runs with another protocol.
    pub(crate) fn other_protocol(&self, theirs: &str) -> Error {
        let (fleet, theirs) = (self.fleet.clone(), theirs.to_owned());
        match theirs == REMOVING {
            true => Error::BeingRemoved { fleet },
            false => Error::Protocol { fleet, theirs, ours: PROTOCOL },
        }
    }

    pub(crate) fn fleet(&self) -> &str {
        &self.fleet
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Sends a one-off call, from a command or at start-up. The error says in full what went wrong.
    pub(crate) async fn once<R>(&self, call: &Call<R>) -> Result<R, Error> {
        let began = std::time::Instant::now();
        loop {
            match self.work.call(call, ONCE_TIMEOUT).await {
                Err(error) if self.may_yet_connect(&error, began.elapsed()) => {
                    tokio::time::sleep(ONCE_PAUSE).await;
                }
                answer => return answer.map_err(|error| self.explain(error)),
            }
        }
    }

    /// Sends a call that is safe to repeat, a few times until it is answered.
    pub(crate) async fn repeat<R>(&self, call: &Call<R>) -> Result<R, Error> {
        self.try_repeat(call).await.map_err(|error| self.explain(error))
    }

    /// As [`repeat`](Self::repeat), for a caller that explains the error itself.
    pub(crate) async fn try_repeat<R>(&self, call: &Call<R>) -> Result<R, StoreError> {
        let (mut tries, began) = (0, std::time::Instant::now());
        loop {
            match self.work.call(call, ONCE_TIMEOUT).await {
                // Redis was never reached: report that at once.
                Err(error @ StoreError::Unconnected(_))
                    if self.work.epoch() == 0 && !self.may_yet_connect(&error, began.elapsed()) =>
                {
                    return Err(error);
                }
                // It was done, and has waited for replicas all that time.
                Err(error @ StoreError::Unreplicated { .. }) => return Err(error),
                Err(error) if error.is_passing() && tries < 10 && began.elapsed() < REPEAT_MAX => {
                    tries += 1;
                    tokio::time::sleep(ONCE_PAUSE * tries).await;
                }
                answer => return answer,
            }
        }
    }

    /// Nothing was done, because there is no primary at this moment: perhaps one is being chosen.
    fn may_yet_connect(&self, error: &StoreError, after: Duration) -> bool {
        use Unreached::{Network, NoSentinel, Replica};
        let may = match error {
            StoreError::Unconnected(reason) => {
                [Network, Replica, NoSentinel].contains(&Unreached::of(reason))
                    && self.client.place().has_others()
            }
            error => error.is_change(),
        };
        may && after < ONCE_TIMEOUT
    }

    /// The pattern that matches all keys with this prefix.
    pub(crate) fn pattern_of(&self, prefix: &str) -> String {
        // Braces, as in the hash tag, have no special meaning in a pattern. These characters have one.
        let mut pattern = String::new();
        for c in prefix.chars() {
            if "*?[]\\^-".contains(c) {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.push('*');
        pattern
    }

    /// One page of the matching keys, and the cursor of the next page if there is one. A key may come
    /// twice.
    pub(crate) async fn scan_page(
        &self,
        pattern: &str,
        cursor: Option<&str>,
    ) -> Result<(Vec<String>, Option<String>), StoreError> {
        let call = Call::plain("SCAN").arg(cursor.unwrap_or("0"));
        let call = call.arg("MATCH").arg(pattern).arg("COUNT").arg(500);
        let mut page = self.work.call(&call, ONCE_TIMEOUT).await?.into_list()?.into_iter();
        let mut part = || page.next().ok_or_else(|| StoreError::odd("a page that is too short"));
        let (next, keys) = (part()?.into_text()?, part()?.into_texts()?);
        Ok((keys, Some(next).filter(|next| next != "0")))
    }

    /// All keys with this prefix. It reads the names of all keys of the database, in pages.
    pub(crate) async fn scan(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let pattern = self.pattern_of(prefix);
        let (mut cursor, mut found) = (None, std::collections::BTreeSet::new());
        loop {
            let (keys, next) = self.scan_page(&pattern, cursor.as_deref()).await?;
            found.extend(keys);
            match next {
                Some(next) => cursor = Some(next),
                None => return Ok(found.into_iter().collect()),
            }
        }
    }

    /// Redis time.
    pub(crate) async fn time_ms(&self) -> Result<u64, StoreError> {
        let time = self.work.call(&Call::plain("TIME"), ONCE_TIMEOUT).await?.into_list()?;
        let time: Vec<i64> = time.into_iter().map(Reply::into_number).collect::<Result<_, _>>()?;
        let [seconds, micros] = time[..] else { return Err(StoreError::odd("expected a time")) };
        Ok((seconds * 1000 + micros / 1000) as u64)
    }

    pub(crate) fn explain(&self, error: StoreError) -> Error {
        let redis = self.address.clone();
        let (is_denied, words) = (error.is_denied(), error.to_string());
        let (is_moving, is_change) = (error.is_moving(), error.is_change());
        match error {
            _ if is_moving => Error::SlotMoving { slot: self.keys.slot() },
            StoreError::Silent(after) => Error::NoAnswer { after },
            StoreError::Broken(reason) | StoreError::Unconnected(reason) => {
                let why = Unreached::of(&reason);
                Error::Unreachable { redis, reason, why }
            }
            StoreError::Server { text, .. } if is_denied => {
                let why = Denial::of(&text);
                Error::Denied { redis, reason: text, why }
            }
            // Nothing was done, and the one who could do it was not found.
            StoreError::Server { .. } if is_change => {
                Error::Unreachable { redis, reason: words, why: Unreached::NoPrimary }
            }
            StoreError::Server { .. } => Error::Refused { reason: words },
            StoreError::Unreplicated { replicas, wanted } => {
                Error::Unreplicated { replicas, wanted }
            }
            StoreError::Odd(text) => Error::Refused { reason: text },
            StoreError::Gone => Error::Refused { reason: words },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_the_server_repeats_is_cut_off() {
        let text =
            "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'x' 'hunter2'";
        assert_eq!(without_arguments(text), "ERR unknown command 'HELLO'");
        let odd = format!("ERR {} with args beginning with", "İ".repeat(40));
        assert!(without_arguments(&odd).ends_with('İ'));
    }
}
