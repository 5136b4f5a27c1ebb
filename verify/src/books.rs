//! The data in Redis, read in one piece and without trusting any counter.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::{Connection, RedisResult};

use crate::history::{Id, Source, id_of};
use crate::member::{EFFECTS, FLEET, PULSE, REFUSED};

/// How long one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How long replicas may take to have what was read, ms.
const BELIEVED_MS: u64 = 500;
/// Entries of the ledger that are read at once.
const PAGE: usize = 5_000;

const BEAT: &str = r"
local t = redis.call('TIME')
-- From the clock, so that it grows even if Redis lost the last value.
local gen = math.max(tonumber(redis.call('HGET', KEYS[1], 'gen') or 0) + 1, t[1] * 1000 + math.floor(t[2] / 1000))
redis.call('HSET', KEYS[1], 'gen', string.format('%.0f', gen), 'flag', '1')
redis.call('SPUBLISH', KEYS[2], 'set')
redis.call('HSET', KEYS[1], 'flag', '0')
return string.format('%.0f', gen)
";

fn key(name: &str) -> String {
    format!("artel:{{{FLEET}}}:{name}")
}

/// Everything that is in Redis at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) waiting: u64,
    pub(crate) held: u64,
    /// Messages that wait for a time.
    pub(crate) later: u64,
    /// For how long the first of them is overdue.
    pub(crate) overdue_ms: u64,
    /// What is wrong with times and duties, and what of them is left.
    pub(crate) duties: Vec<String>,
    pub(crate) left_behind: String,
    /// Entries ever added to the ledger.
    pub(crate) settled: u64,
    /// Messages in the error store and in drains.
    pub(crate) errors: Vec<Id>,
    pub(crate) counts: HashMap<String, i64>,
    pub(crate) members: u64,
    /// The term of a valid lease.
    pub(crate) leads: Option<u64>,
    /// What effects wrote, per term or sender: the number of messages, and the sum of their
    /// numbers.
    pub(crate) effects: HashMap<Source, (i64, i64)>,
    /// Effects that had to be refused have written something.
    pub(crate) refused: bool,
    /// Packs that are torn, and counts of them that are wrong.
    pub(crate) torn: Vec<String>,
    /// The state that the generators keep: how many messages they have made in total.
    pub(crate) state: i64,
}

impl Snapshot {
    pub(crate) fn count(&self, name: &str) -> i64 {
        self.counts.get(name).copied().unwrap_or(0)
    }
}

/// One entry of the ledger.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settled {
    pub(crate) id: Id,
    pub(crate) failed: bool,
    /// The attempt that settled it.
    pub(crate) attempt: u32,
}

/// A connection to Redis without a proxy.
pub(crate) struct Books {
    /// The server, or all servers: one of them is the primary.
    urls: Vec<String>,
    /// Which of them is asked.
    at: usize,
    /// What is read is believed when this many replicas have it: then no failover can make it untrue.
    replicas: usize,
    connection: Option<Connection>,
    /// What was read of the ledger is removed.
    trims: bool,
    /// When Redis last answered.
    pub(crate) answered: Instant,
    /// The last entry of the ledger that was read, and the last entry of the page before.
    read: String,
    before: String,
}

/// Do this many replicas have everything that was read on this connection? A replica does not answer that.
fn believe(connection: &mut Connection, replicas: usize) -> RedisResult<()> {
    if replicas == 0 {
        return Ok(());
    }
    // Since Redis 7.2 a connection waits for its own last write only.
    let () = redis::cmd("SET").arg(&[&key("mark"), "1", "PX", "60000"]).query(connection)?;
    let have: usize = redis::cmd("WAIT").arg(replicas).arg(BELIEVED_MS).query(connection)?;
    match have >= replicas {
        true => Ok(()),
        false => Err(std::io::Error::other("not on all replicas").into()),
    }
}

impl Books {
    pub(crate) fn new(url: String) -> Books {
        Books::at(vec![url], 0)
    }

    /// Of servers that replace one another. If they may lose what was read, all of it stays, to be read again.
    pub(crate) fn of(ports: &[u16], replicas: usize, loses: bool) -> Books {
        let urls = ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect();
        Books { trims: !loses, ..Books::at(urls, replicas) }
    }

    fn at(urls: Vec<String>, replicas: usize) -> Books {
        let (answered, start) = (Instant::now(), String::from("0"));
        let (at, connection, trims) = (0, None, true);
        Books {
            urls,
            at,
            replicas,
            connection,
            trims,
            answered,
            read: start.clone(),
            before: start,
        }
    }

    /// Redis lost all its data: reads the ledger from its beginning again.
    pub(crate) fn forget(&mut self) {
        (self.connection, self.read, self.before) = (None, "0".into(), "0".into());
    }

    fn connect(&self) -> RedisResult<Connection> {
        let client = redis::Client::open(self.urls[self.at % self.urls.len()].as_str())?;
        let connection = client.get_connection_with_timeout(ANSWER_MAX)?;
        connection.set_read_timeout(Some(ANSWER_MAX * 5))?;
        connection.set_write_timeout(Some(ANSWER_MAX))?;
        Ok(connection)
    }

    fn with<T>(&mut self, ask: impl FnOnce(&mut Connection) -> RedisResult<T>) -> RedisResult<T> {
        let asked = self.connection.take().map_or_else(|| self.connect(), Ok);
        let answer = asked.and_then(|mut connection| {
            let answer = ask(&mut connection)?;
            believe(&mut connection, self.replicas)?;
            self.connection = Some(connection);
            Ok(answer)
        });
        match &answer {
            Ok(_) => self.answered = Instant::now(),
            // Perhaps another one is the primary now.
            Err(_) => self.at += 1,
        }
        answer
    }

    /// From now on the fleet keeps its ledger, or does not.
    pub(crate) fn keep_ledger(&mut self, keep: bool) -> RedisResult<()> {
        let (config, keep) = (key("config"), if keep { "-1" } else { "0" });
        self.say(&["HSET", &config, "ledger", keep])
    }

    /// Sends a command whose answer does not matter.
    pub(crate) fn say(&mut self, words: &[&str]) -> RedisResult<()> {
        self.with(|connection| {
            let mut command = redis::cmd(words[0]);
            words[1..].iter().for_each(|word| {
                command.arg(*word);
            });
            command.query::<redis::Value>(connection).map(|_| ())
        })
    }

    pub(crate) fn keys(&mut self) -> RedisResult<u64> {
        self.with(|connection| redis::cmd("DBSIZE").query(connection))
    }

    /// Removes all keys of the fleet.
    pub(crate) fn clear(&mut self) -> RedisResult<()> {
        let own = "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end";
        self.say(&["EVAL", own, "0", &format!("{}*", key(""))])
    }

    /// Brings messages forward that wait for a time far away: they were scheduled while the clock of Redis was ahead. An
    /// operator would do the same.
    pub(crate) fn bring_forward(&mut self) -> RedisResult<()> {
        let own = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000)
            for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + 60000, '(inf')) do
              redis.call('ZADD', KEYS[1], 'XX', now, id)
            end";
        self.say(&["EVAL", own, "1", &key("scheduled")])
    }

    /// The number of drains.
    pub(crate) fn drains(&mut self) -> RedisResult<u64> {
        self.with(|connection| redis::cmd("HLEN").arg(key("drains")).query(connection))
    }

    /// Sets the event and clears it in one step; returns its generation.
    pub(crate) fn beat(&mut self) -> RedisResult<u64> {
        let (event, channel) = (format!("event:{PULSE}"), format!("@0:event:{PULSE}"));
        let mut beat = redis::cmd("EVAL");
        beat.arg(BEAT).arg(2).arg(key(&event)).arg(key(&channel));
        self.with(|connection| beat.query(connection))
    }

    /// How many milliseconds the wall clock of Redis is ahead of ours.
    pub(crate) fn clock_off(&mut self) -> RedisResult<i64> {
        let theirs = self.time()?;
        let ours = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Ok((theirs / 1000) as i64 - ours.unwrap_or_default().as_millis() as i64)
    }

    /// What the clock of Redis shows, µs since 1970.
    pub(crate) fn time(&mut self) -> RedisResult<u64> {
        let (seconds, micros): (u64, u64) =
            self.with(|connection| redis::cmd("TIME").query(connection))?;
        Ok(seconds * 1_000_000 + micros)
    }

    /// Removes a key under which nobody sends a message any more.
    pub(crate) fn drop_key(&mut self, number: u64) -> RedisResult<()> {
        self.say(&["DEL", &key(&format!("dedup:{number}"))])
    }

    /// Removes an event for which nobody waits any more.
    pub(crate) fn drop_event(&mut self, name: &str) -> RedisResult<()> {
        self.say(&["DEL", &key(&format!("event:{name}"))])
    }

    pub(crate) fn snapshot(&mut self) -> RedisResult<Snapshot> {
        let all =
            |connection: &mut Connection| artel_rig::Snapshot::try_read(connection, FLEET, false);
        let all = self.with(all)?;
        let mut effects: HashMap<Source, (i64, i64)> = HashMap::new();
        for (field, value) in all.data.get(EFFECTS).into_iter().flatten() {
            let Some((source, what)) = field.rsplit_once(':') else { continue };
            let Some(source) = Source::read(source) else { continue };
            let entry = effects.entry(source).or_default();
            *(if what == "n" { &mut entry.0 } else { &mut entry.1 }) = value.parse().unwrap_or(0);
        }
        let term = all.lease.as_deref().and_then(|lease| lease.split_once('|'));
        Ok(Snapshot {
            waiting: all.waiting() as u64,
            held: all.claimed() as u64,
            later: all.later() as u64,
            overdue_ms: all.overdue_ms(),
            duties: all.duties.problems(),
            left_behind: all.duties.left(),
            settled: all.settled,
            errors: all.errors.iter().filter_map(|id| id_of(id)).collect(),
            members: all.members.len() as u64,
            leads: term.and_then(|(_, term)| term.parse().ok()),
            effects,
            refused: all.data.contains_key(REFUSED),
            state: all.state.and_then(|state| state.parse().ok()).unwrap_or(0),
            counts: all.counts,
            torn: all.torn,
        })
    }

    /// For how long the first message that waits for a time is overdue, ms, and the term of the lease after that.
    pub(crate) fn overdue(&mut self) -> RedisResult<(u64, Option<u64>)> {
        self.with(|connection| {
            let mut first = redis::cmd("ZRANGE");
            first.arg(key("scheduled")).arg(0).arg(0).arg("WITHSCORES");
            let first: Vec<(String, f64)> = first.query(connection)?;
            let (s, us): (u64, u64) = redis::cmd("TIME").query(connection)?;
            let lease: Option<String> = redis::cmd("GET").arg(key("lease")).query(connection)?;
            let now = (s * 1000 + us / 1000) as f64;
            let overdue = first.first().map_or(0.0, |(_, due)| (now - due).max(0.0)) as u64;
            let term = lease.as_deref().and_then(|lease| lease.split_once('|'));
            Ok((overdue, term.and_then(|(_, term)| term.parse().ok())))
        })
    }

    /// The last accepted message of any generator: its term and its number.
    pub(crate) fn last(&mut self) -> RedisResult<Option<(u64, u64)>> {
        let get = |connection: &mut Connection| {
            redis::cmd("GET").arg(key("last")).query::<Option<String>>(connection)
        };
        let last = self.with(get)?.as_deref().and_then(id_of);
        Ok(last.and_then(|(source, seq)| match source {
            Source::Term(term) => Some((term, seq)),
            Source::Sender(_) | Source::Outcome(_) | Source::Entry(..) => None,
        }))
    }

    /// The next entries of the ledger. Entries that were read before are removed, so that the
    /// ledger stays small.
    pub(crate) fn ledger(&mut self) -> RedisResult<Vec<Settled>> {
        let (from, old, trims) = (format!("({}", self.read), self.before.clone(), self.trims);
        type Raw = Vec<(String, Vec<(String, String)>)>;
        let entries: Raw = self.with(|connection| {
            if old != "0" && trims {
                let mut trim = redis::cmd("XTRIM");
                trim.arg(key("ledger")).arg("MINID").arg(old).query::<u64>(connection)?;
            }
            redis::cmd("XRANGE")
                .arg(key("ledger"))
                .arg(from)
                .arg("+")
                .arg("COUNT")
                .arg(PAGE)
                .query(connection)
        })?;
        if let Some((last, _)) = entries.last() {
            self.before = std::mem::replace(&mut self.read, last.clone());
        }
        let settled = |(_, fields): &(String, Vec<(String, String)>)| {
            let field = |name: &str| {
                fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
            };
            Some(Settled {
                id: id_of(field("id")?)?,
                failed: field("outcome")? == "failed",
                attempt: field("attempt")?.parse().ok()?,
            })
        };
        Ok(entries.iter().filter_map(settled).collect())
    }
}
