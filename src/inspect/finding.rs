//! [`Finding`]: what is good or bad about a Redis and a fleet, decided from facts.
//!
//! **Invariant:** what is not good says what follows from it, and how to mend it. [`Level::Danger`] is for what endangers a
//! promise, and for nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::fleet_findings::fleet_findings;
use crate::Error;
use crate::outcome::Status;
use crate::store::{WrongType, evicts, info_field, is_too_old};

/// A clock that is further away from ours than this is worth a word.
const CLOCK_OFF: Duration = Duration::from_secs(1);
/// From this part of a bound on it is worth a word.
pub(super) const NEARLY: f64 = 0.9;

/// How bad it is.
///
/// ```
/// use artel::{Finding, Level};
///
/// let finding = Finding::good("disk", "plenty of room");
/// assert!(finding.level < Level::Advice && Level::Advice < Level::Danger);
/// ```
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Level {
    /// Nothing to do.
    Good,
    /// It could be better. No promise is in danger.
    Advice,
    /// It endangers a promise.
    Danger,
}

/// One thing that was looked at.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// use artel::Level;
///
/// for finding in fleet.examine().await? {
///     if finding.level == Level::Danger {
///         println!("{}: {}", finding.check, finding.what);
///     }
/// }
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at, such as `persistence`.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// What was found.
    pub what: String,
    /// What follows from it, if it is not good.
    pub consequence: Option<String>,
    /// What mends it, if it is not good.
    pub mend: Option<String>,
}

impl Finding {
    /// Nothing to do.
    pub fn good(check: &'static str, what: impl Into<String>) -> Finding {
        Finding { check, level: Level::Good, what: what.into(), consequence: None, mend: None }
    }

    /// It is not good: what was found, what follows from it, and what mends it.
    pub fn bad(
        (check, level): (&'static str, Level),
        what: impl Into<String>,
        consequence: impl Into<String>,
        mend: impl Into<String>,
    ) -> Finding {
        let (consequence, mend) = (Some(consequence.into()), Some(mend.into()));
        Finding { check, level, what: what.into(), consequence, mend }
    }
}

/// What was read.
#[derive(Debug)]
pub(super) struct Facts {
    /// `Redis` or `Valkey`, and its version.
    pub(super) server: (&'static str, String),
    pub(super) round_trips: Vec<Duration>,
    /// The answer to `INFO`.
    pub(super) info: String,
    /// The answers to `CONFIG GET`; none if this user may not ask.
    pub(super) settings: BTreeMap<String, String>,
    /// Rights that this user lacks, or why that could not be asked.
    pub(super) missing: Result<Vec<String>, String>,
    pub(super) wrong_types: Vec<WrongType>,
    /// How far the clock of Redis is ahead of ours, ms.
    pub(super) ahead_ms: i64,
    /// The fleet, or why it cannot be read.
    pub(super) status: Result<Box<Status>, Error>,
    /// Messages that may wait in a lane, and failed messages that may be stored.
    pub(super) bounds: (u64, u64),
}

use Level::{Advice, Danger};

/// All findings, in the order in which a person would look.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut all = vec![
        version(facts),
        latency(facts),
        rights(facts),
        memory(facts),
        persistence(facts),
        fsync(facts),
        replication(facts),
        clock(facts),
        connections(facts),
    ];
    all.extend(keys(facts));
    all.extend(match &facts.status {
        Ok(status) => fleet_findings(status, facts.bounds),
        Err(error) => vec![unreadable(error)],
    });
    all
}

/// The fleet cannot be read.
fn unreadable(error: &Error) -> Finding {
    let (consequence, mend) = match error {
        Error::Protocol { .. } => (
            "members of this version cannot take part",
            "stop all processes of the fleet, then start all of them with one version",
        ),
        Error::BeingRemoved { .. } => {
            ("nobody can join it", "`artel fleet remove NAME` finishes the removal")
        }
        _ => ("members and books are not known", "mend what else is found, and ask again"),
    };
    Finding::bad(("fleet", Danger), error.to_string(), consequence, mend)
}

fn version(facts: &Facts) -> Finding {
    let (name, version) = &facts.server;
    let what = format!("{name} {version} answers");
    match is_too_old(version) {
        false => Finding::good("server", what),
        true => Finding::bad(
            ("server", Danger),
            what,
            "members do not start: functions they need came with version 7.0",
            "install Redis 7.0 or Valkey 7.2, or later",
        ),
    }
}

fn latency(facts: &Facts) -> Finding {
    // A fleet that nobody joined yet has no lease.
    let lease = facts.status.as_ref().map(|status| status.lease).unwrap_or_default();
    let lease = if lease.is_zero() { Duration::from_secs(3) } else { lease };
    let mut times = facts.round_trips.clone();
    times.sort();
    let (median, longest) =
        (times.get(times.len() / 2).copied().unwrap_or_default(), times.last().copied());
    let longest = longest.unwrap_or_default();
    let what = format!("an answer takes {median:.1?}, {longest:.1?} at most");
    if median > lease / 3 {
        let consequence = "members lose their sessions: they wait a third of a lease for an answer";
        let mend = "stop all members, and start them with a longer lease: `artel run --lease 30s`";
        return Finding::bad(("latency", Danger), what, consequence, mend);
    }
    if median > lease / 30 {
        let consequence = "everything takes longer, also the takeover from a dead generator";
        return Finding::bad(
            ("latency", Advice),
            what,
            consequence,
            "run the members nearer to Redis",
        );
    }
    Finding::good("latency", what)
}

fn rights(facts: &Facts) -> Finding {
    let consequence = "members do not start, or stop when they need it";
    match &facts.missing {
        Ok(missing) if missing.is_empty() => {
            Finding::good("rights", "this user may do all that is needed")
        }
        Ok(missing) => {
            // With `RPUSH KEY` comes the key, with `PUBSUB SHARDNUMSUB` a second word of the command.
            let command = |name: &String| {
                let mut words = name.split(' ');
                let first = words.next().unwrap_or_default().to_lowercase();
                match words.next() {
                    Some("SHARDNUMSUB") => format!("+{first}|shardnumsub"),
                    _ => format!("+{first}"),
                }
            };
            let mut all: Vec<String> = missing.iter().map(command).collect();
            all.sort();
            all.dedup();
            let what = format!("this user lacks the right to {}", missing.join(", "));
            let mend = format!("`redis-cli ACL SETUSER <user> {}`", all.join(" "));
            Finding::bad(("rights", Danger), what, consequence, mend)
        }
        Err(why) => Finding::bad(
            ("rights", Danger),
            why,
            consequence,
            "docs/operations.md has the line that makes a user with all rights that are needed",
        ),
    }
}

fn memory(facts: &Facts) -> Finding {
    let number = |name| number(&facts.info, name);
    let (used, most) = (number("used_memory"), number("maxmemory"));
    if let Some(policy) = evicts(&facts.info) {
        return Finding::bad(
            ("memory", Danger),
            format!("maxmemory-policy is {policy}"),
            "a full Redis drops messages silently, or forgets that they were sent; members do not start",
            "`redis-cli CONFIG SET maxmemory-policy noeviction`",
        );
    }
    let what = match most {
        0 => format!("{} used, no bound; nothing is evicted", bytes(used)),
        most => format!("{} of {} used; nothing is evicted", bytes(used), bytes(most)),
    };
    match most > 0 && used as f64 >= most as f64 * NEARLY {
        false => Finding::good("memory", what),
        true => Finding::bad(
            ("memory", Advice),
            what,
            "when it is full, the generator and senders wait; nothing is lost",
            format!("`redis-cli CONFIG SET maxmemory {}`, or start more workers", 2 * most),
        ),
    }
}

fn persistence(facts: &Facts) -> Finding {
    let field = |name| info_field(&facts.info, name);
    let failed = |name| field(name).is_some_and(|status| status != "ok");
    let stops =
        facts.settings.get("stop-writes-on-bgsave-error").is_some_and(|value| value == "yes");
    if field("aof_enabled") == Some("0") {
        return Finding::bad(
            ("persistence", Danger),
            "there is no append-only file",
            "if Redis dies, messages and outcomes since its last snapshot are gone",
            "`redis-cli CONFIG SET appendonly yes` and `redis-cli CONFIG REWRITE`",
        );
    }
    let free = "make room on the disk of Redis; its log says what failed";
    if failed("aof_last_write_status") {
        let consequence = "Redis refuses writes until its file can be written";
        let what = "the last write to the append-only file failed";
        return Finding::bad(("persistence", Danger), what, consequence, free);
    }
    if failed("rdb_last_bgsave_status") && stops {
        let consequence = "Redis refuses all writes: stop-writes-on-bgsave-error is set";
        return Finding::bad(
            ("persistence", Danger),
            "the last snapshot failed",
            consequence,
            free,
        );
    }
    if failed("aof_last_bgrewrite_status") {
        let consequence = "the file grows until the disk is full";
        let what = "the last rewrite of the append-only file failed";
        return Finding::bad(("persistence", Advice), what, consequence, free);
    }
    Finding::good("persistence", "the append-only file is on, and is written")
}

fn fsync(facts: &Facts) -> Finding {
    let mend = "`redis-cli CONFIG SET appendfsync always`";
    match facts.settings.get("appendfsync").map(String::as_str) {
        // Nothing is written, so nothing can be flushed: said already.
        _ if info_field(&facts.info, "aof_enabled") == Some("0") => {
            Finding::good("fsync", "not used")
        }
        Some("always") => {
            Finding::good("fsync", "every write is on the disk before it is answered")
        }
        Some("everysec") => Finding::bad(
            ("fsync", Advice),
            "the file is flushed once a second",
            "a power cut, not a crash of Redis, loses up to two seconds of what was answered",
            format!("if that is too much: {mend}; it is slower"),
        ),
        Some(other) => Finding::bad(
            ("fsync", Danger),
            format!("appendfsync is {other}"),
            "a power cut loses half a minute of what was answered",
            mend,
        ),
        None => Finding::bad(
            ("fsync", Advice),
            "this user may not read how often the file is flushed",
            "a power cut may lose what was answered",
            "`redis-cli CONFIG GET appendfsync`, as another user",
        ),
    }
}

/// A server that is not used at all.
pub(super) fn replica() -> Finding {
    Finding::bad(
        ("replicas", Danger),
        "this is a replica",
        "it refuses all writes, and what it answers may be old: nobody uses it",
        "use the address of its primary, or of the sentinels: redis-sentinel://HOST:26379?master=NAME",
    )
}

fn replication(facts: &Facts) -> Finding {
    let number = |name| number(&facts.info, name);
    if info_field(&facts.info, "role") == Some("slave") {
        return replica();
    }
    let wanted =
        facts.settings.get("min-replicas-to-write").and_then(|n| n.parse().ok()).unwrap_or(0);
    let (there, good) = (number("connected_slaves"), number("min_slaves_good_slaves"));
    if wanted > good {
        return Finding::bad(
            ("replicas", Danger),
            format!("{good} replicas are up to date, min-replicas-to-write asks for {wanted}"),
            "Redis refuses all writes",
            "start the replicas, or `redis-cli CONFIG SET min-replicas-to-write 0`",
        );
    }
    if there > 0 && wanted == 0 {
        return Finding::bad(
            ("replicas", Advice),
            format!("{there} replicas, and writes do not wait for them"),
            "a failover loses what the new primary has not got",
            "`redis-cli CONFIG SET min-replicas-to-write 1`, and members with `--durability all`",
        );
    }
    let what = match there {
        0 => "no replicas".to_owned(),
        there => format!("{there} replicas, {wanted} must be up to date"),
    };
    Finding::good("replicas", what)
}

fn clock(facts: &Facts) -> Finding {
    if let Ok(status) = &facts.status
        && !status.exhausted.is_empty()
    {
        return Finding::bad(
            ("clock", Danger),
            format!(
                "{} can no longer grow: Redis's clock is, or was, past the year 2112",
                status.exhausted.join(", ")
            ),
            "nobody can be elected, or no lock can be acquired",
            "set the clock right; docs/operations.md, \"Clocks\", says how to lower the number",
        );
    }
    let off = Duration::from_millis(facts.ahead_ms.unsigned_abs());
    let side = if facts.ahead_ms >= 0 { "ahead of" } else { "behind" };
    let what = match facts.ahead_ms {
        0 => "Redis and this machine agree".to_owned(),
        _ => format!("Redis is {off:.1?} {side} this machine"),
    };
    match off > CLOCK_OFF {
        false => Finding::good("clock", what),
        true => Finding::bad(
            ("clock", Advice),
            what,
            "messages for later and periodic entries follow the clock of Redis, not this one; logs do not agree",
            "let a time service (NTP) set both clocks",
        ),
    }
}

fn connections(facts: &Facts) -> Finding {
    let number = |name| number(&facts.info, name);
    let (here, most) = (number("connected_clients"), number("maxclients"));
    let what = match most {
        0 => format!("{here} clients"),
        most => format!("{here} of {most} clients"),
    };
    match most > 0 && here as f64 >= most as f64 * NEARLY {
        false => Finding::good("connections", what),
        true => Finding::bad(
            ("connections", Danger),
            what,
            "a member that reconnects is refused, and the fleet loses it",
            format!("`redis-cli CONFIG SET maxclients {}`", 2 * most),
        ),
    }
}

fn keys(facts: &Facts) -> Vec<Finding> {
    let wrong = facts.wrong_types.iter().map(|WrongType { key, found, expected }| {
        Finding::bad(
            ("keys", Danger),
            format!("{key} holds a {found}, not a {expected}"),
            "members do not start, or what needs this key fails",
            format!("`redis-cli RENAME '{key}' '{key}.old'`, or another `--fleet`"),
        )
    });
    let all: Vec<Finding> = wrong.collect();
    match all.is_empty() {
        true => vec![Finding::good("keys", "all keys have the right type")],
        false => all,
    }
}

fn number(info: &str, name: &str) -> u64 {
    info_field(info, name).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A number of bytes, for people.
fn bytes(count: u64) -> String {
    match count {
        0..1_048_576 => format!("{} KiB", count.div_ceil(1024)),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", count as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", count as f64 / 1_073_741_824.0),
    }
}
