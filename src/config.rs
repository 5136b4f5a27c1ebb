//! [`Config`]: every limit and duration, its default, and its range.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::Error;
use crate::backoff::Backoff;
use crate::message::RETRIES_MAX;

/// The most replicas that can be asked for.
const REPLICAS_MAX: u32 = 100;

/// What is kept about settled messages, to look them up later.
///
/// ```
/// use artel::{Config, Ledger};
///
/// let mut config = Config::default();
/// config.ledger = Some(Ledger::Last(100_000));
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Ledger {
    /// Nothing: the counters are enough.
    #[default]
    Off,
    /// An entry per message, for ever. For tests and audits.
    All,
    /// About this many of the latest entries.
    Last(u64),
}

impl Ledger {
    /// The value for scripts.
    pub(crate) fn arg(self) -> i64 {
        match self {
            Ledger::Off => 0,
            Ledger::All => -1,
            Ledger::Last(n) => n as i64,
        }
    }
}

/// When something that a user is told counts as done: a message that was sent, an outcome, a lock.
///
/// A failover of Redis may forget what the new primary did not have yet. This says how much of what was told may be
/// forgotten; docs/operations.md has a table. It is a promise of one process to its user, so processes of one fleet may
/// differ.
///
/// ```
/// use artel::{Config, Durability};
///
/// let mut config = Config::default();
/// config.durability = Durability::Replicated(1);
/// assert!(config.validate().is_ok());
/// assert_eq!("replicated:1".parse::<Durability>()?, Durability::Replicated(1));
/// # Ok::<(), artel::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Durability {
    /// When the primary did it. A failover may forget the last of it; what is forgotten is reported.
    #[default]
    Local,
    /// When this many replicas have it, too (`WAIT`). It survives if one of those becomes the primary. It costs a round trip
    /// to the slowest of them, shared by all calls that wait. While they are down, everything waits.
    Replicated(u32),
    /// When as many replicas have it as this process ever saw in sync at once, or as the sentinels know, and at least one. It
    /// survives whichever of them becomes the primary. If one of them is removed for good, restart with a number.
    All,
}

impl Durability {
    pub(crate) fn check(self) -> Result<(), Error> {
        match self {
            Durability::Replicated(n) if !(1..=REPLICAS_MAX).contains(&n) => Err(Error::Config {
                field: "durability",
                problem: format!("waits for 1 to {REPLICAS_MAX} replicas, not {n}"),
            }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Durability::Local => f.write_str("local"),
            Durability::Replicated(n) => write!(f, "replicated:{n}"),
            Durability::All => f.write_str("all"),
        }
    }
}

impl FromStr for Durability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Durability, Error> {
        let number = |n: &str| n.parse().ok().filter(|n| (1..=REPLICAS_MAX).contains(n));
        match (text, text.strip_prefix("replicated:").and_then(number)) {
            ("local", _) => Ok(Durability::Local),
            ("all", _) => Ok(Durability::All),
            (_, Some(n)) => Ok(Durability::Replicated(n)),
            _ => Err(Error::Config {
                field: "durability",
                problem: format!(
                    "is local, replicated:1 to replicated:{REPLICAS_MAX}, or all, not {text:?}"
                ),
            }),
        }
    }
}

/// Whether the member that leads handles messages, too.
///
/// ```
/// use artel::{Config, LeaderWorks};
///
/// let mut config = Config::default();
/// config.leader_works = LeaderWorks::Alone;
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum LeaderWorks {
    /// It only generates: all others work.
    #[default]
    Never,
    /// It works as long as no other member does. When a worker joins, it finishes the messages it has
    /// started, gives back the rest and fetches no more.
    Alone,
    /// It works like every other member. A handler that blocks its thread then delays its ticks, too.
    Always,
}

/// How often each lane is the first to be served. In as many blocks as these weights add up to, each
/// lane is first as often as its weight. What the first lane cannot fill is filled from the others, the
/// most urgent first. A lane of weight 0 is served only then.
///
/// ```
/// let mut config = artel::Config::default();
/// config.lane_weights.low = 4;
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LaneWeights {
    /// Sent, urgent.
    pub high: u32,
    /// From the generator.
    pub generated: u32,
    /// Sent.
    pub normal: u32,
    /// Sent, can wait.
    pub low: u32,
}

impl Default for LaneWeights {
    /// Of sixteen blocks ten start with `high`, three with `generated`, two with `normal`, one with
    /// `low`.
    fn default() -> LaneWeights {
        LaneWeights { high: 10, generated: 3, normal: 2, low: 1 }
    }
}

/// The settings of a member. Start from `Config::default()` and assign.
///
/// ```
/// use std::time::Duration;
/// let mut config = artel::Config::default();
/// config.interval = Duration::from_millis(20);
/// config.concurrency = 8;
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// How long a session lasts without a refresh. One value for the whole fleet, set by its first
    /// member; `None` uses the fleet's value (default 3 s).
    pub lease: Option<Duration>,
    /// How long presence must be missing before a member counts as dead. One value for the fleet;
    /// `None` uses the fleet's value (default 300 ms).
    pub presence_grace: Option<Duration>,
    /// How many workers may die while they hold a message before it goes to the error store. One value
    /// for the fleet; `None` uses the fleet's value (default 5).
    pub attempts_max: Option<u32>,
    /// Time between two ticks of the generator.
    pub interval: Duration,
    /// How long each further standby waits before it tries to take over.
    pub takeover_step: Duration,
    /// Whether this member handles messages while it leads.
    pub leader_works: LeaderWorks,
    /// How many messages this process handles at the same time.
    pub concurrency: usize,
    /// A handler that runs longer is stopped. Its message is retried, or it fails.
    pub handler_timeout: Duration,
    /// How often a message is retried whose handler ended with an error, panicked or ran too long. `None` retries
    /// never, and at most ten times if a handler asks for it. A [`Kind`](crate::Kind) and a message can have
    /// their own number.
    pub retries: Option<u32>,
    /// How long a message waits before it is retried.
    pub backoff: Backoff,
    /// How many messages the generator adds over the life of the fleet. Then it keeps its lease and
    /// rests.
    pub messages_max: Option<u64>,
    /// How many messages may wait in a lane. Beyond that the generator waits and sending is refused.
    /// One value for the fleet; `None` uses the fleet's value (default 1,000,000).
    pub backlog_max: Option<usize>,
    /// How many failed messages may be stored. Beyond that the generator waits and sending is refused
    /// until some are taken, put back or dropped. Messages that are under way may still fail. One value
    /// for the fleet; `None` uses the fleet's value (default 1,000,000).
    pub errors_max: Option<usize>,
    /// How often each lane is the first to be served.
    pub lane_weights: LaneWeights,
    /// The most messages per push and per fetch.
    pub batch_max: usize,
    /// The most bytes of messages per fetch.
    pub block_bytes_max: usize,
    /// The most bytes of one payload.
    pub payload_bytes_max: usize,
    /// How long a graceful stop waits for running handlers.
    pub stop_grace: Duration,
    /// When a push or an outcome counts as recorded.
    pub durability: Durability,
    /// What is kept about settled messages. One value for the fleet; `None` uses the fleet's value
    /// (default nothing).
    pub ledger: Option<Ledger>,
    /// This process's name for people. If it is empty: its program and its process id.
    pub label: String,
}

/// A setting with one value for the whole fleet: it is stored in Redis, where scripts read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FleetSetting {
    /// Its field in `config`.
    pub(crate) field: &'static str,
    /// The value this member wants; `None` uses the fleet's value.
    pub(crate) wanted: Option<i64>,
    /// The value that the first member sets if it wants no other.
    pub(crate) default: i64,
}

const MS: Duration = Duration::from_millis(1);
/// The longest time a handler may run.
pub(crate) const HANDLER_TIMEOUT_MAX: Duration = Duration::from_secs(7 * 86_400);

impl Default for Config {
    fn default() -> Config {
        Config {
            lease: None,
            presence_grace: None,
            attempts_max: None,
            interval: Duration::from_millis(500),
            takeover_step: Duration::from_millis(50),
            leader_works: LeaderWorks::Never,
            concurrency: std::thread::available_parallelism().map_or(2, usize::from),
            handler_timeout: Duration::from_secs(300),
            retries: None,
            backoff: Backoff::DEFAULT,
            messages_max: None,
            backlog_max: None,
            errors_max: None,
            lane_weights: LaneWeights::default(),
            batch_max: 1000,
            block_bytes_max: 1 << 20,
            payload_bytes_max: 1 << 20,
            stop_grace: Duration::from_secs(10),
            durability: Durability::Local,
            ledger: None,
            label: String::new(),
        }
    }
}

impl Config {
    /// The settings with one value for the fleet: lease, grace, attempts, ledger, backlog, errors.
    pub(crate) fn fleet_wide(&self) -> [FleetSetting; 6] {
        let ms = |time: Duration| time.as_millis() as i64;
        let setting = |field, wanted, default| FleetSetting { field, wanted, default };
        [
            setting("lease_ms", self.lease.map(ms), 3_000),
            setting("grace_ms", self.presence_grace.map(ms), 300),
            setting("attempts_max", self.attempts_max.map(i64::from), 5),
            setting("ledger", self.ledger.map(Ledger::arg), Ledger::Off.arg()),
            setting("backlog_max", self.backlog_max.map(|n| n as i64), 1_000_000),
            setting("errors_max", self.errors_max.map(|n| n as i64), 1_000_000),
        ]
    }

    /// Checks every setting against its range.
    pub fn validate(&self) -> Result<(), Error> {
        self.durability.check()?;
        if let Some(lease) = self.lease {
            within("lease", lease, 500 * MS, Duration::from_secs(3600))?;
        }
        if let Some(grace) = self.presence_grace {
            within("presence_grace", grace, 100 * MS, Duration::from_secs(3600))?;
        }
        if let Some(attempts) = self.attempts_max {
            counted("attempts_max", attempts as usize, 1, 1_000_000)?;
        }
        within("interval", self.interval, MS, Duration::from_secs(86_400))?;
        within("takeover_step", self.takeover_step, MS, Duration::from_secs(10))?;
        within("handler_timeout", self.handler_timeout, MS, HANDLER_TIMEOUT_MAX)?;
        counted("concurrency", self.concurrency, 1, 10_000)?;
        counted("retries", self.retries.unwrap_or(0) as usize, 0, RETRIES_MAX as usize)?;
        self.backoff.check()?;
        let bounds = [("backlog_max", self.backlog_max), ("errors_max", self.errors_max)];
        for (field, bound) in bounds {
            // Scripts compare it. Beyond this their numbers are not exact.
            bound.map_or(Ok(()), |bound| counted(field, bound, 1, 1 << 52))?;
        }
        counted("batch_max", self.batch_max, 1, 5_000)?;
        counted("block_bytes_max", self.block_bytes_max, 1, 256 << 20)?;
        counted("payload_bytes_max", self.payload_bytes_max, 1, 256 << 20)?;
        let LaneWeights { high, generated, normal, low } = self.lane_weights;
        let lanes = [high, generated, normal, low].map(|weight| weight as usize);
        counted("lane_weights", lanes.iter().sum(), 1, 1000)?;
        if self.label.len() > 200 || self.label.chars().any(char::is_control) {
            return Err(bad("label", "must have at most 200 bytes and no control characters"));
        }
        Ok(())
    }
}

/// Fleet names are part of every key, between braces, and of shell commands, so they are plain words.
pub(crate) fn check_fleet_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > 100 {
        return Err(bad("fleet", "must have 1 to 100 characters"));
    }
    match name.chars().find(|c| !c.is_ascii_alphanumeric() && !"._-".contains(*c)) {
        Some(odd) => Err(bad(
            "fleet",
            format!("must consist of letters, digits, `.`, `_` and `-`, and has {odd:?}"),
        )),
        None => Ok(()),
    }
}

fn within(field: &'static str, value: Duration, min: Duration, max: Duration) -> Result<(), Error> {
    if value < min || value > max {
        return Err(bad(field, format!("must be between {min:?} and {max:?}, not {value:?}")));
    }
    Ok(())
}

fn counted(field: &'static str, value: usize, min: usize, max: usize) -> Result<(), Error> {
    if value < min || value > max {
        return Err(bad(field, format!("must be between {min} and {max}, not {value}")));
    }
    Ok(())
}

fn bad(field: &'static str, problem: impl Into<String>) -> Error {
    Error::Config { field, problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        assert!(Config::default().validate().is_ok());
    }

    #[test]
    fn out_of_range_is_named() {
        let config = Config { interval: Duration::ZERO, ..Config::default() };
        let error = config.validate().expect_err("zero").to_string();
        assert!(error.starts_with("interval must be between 1ms"), "{error}");
    }

    #[test]
    fn fleet_names_are_plain_words() {
        assert!(check_fleet_name("orders-2.eu_west").is_ok());
        for bad in ["", "a b", "a{b}", "ü", &"x".repeat(300)] {
            assert!(check_fleet_name(bad).is_err(), "{bad:?}");
        }
    }
}
