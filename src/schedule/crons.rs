//! [`Crons`]: the periodic entries of a fleet.
//!
//! **Invariant:** whoever changes an entry names the state it knows. A call that comes too late changes nothing, and does not
//! bring back an entry that was removed. Of two who declare an entry differently the last one wins.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::entry::{BYTES_MAX, Cron, Stored, check_name};
use crate::Error;
use crate::fleet::Fleet;
use crate::json_time::at_ms;
use crate::lane::Lane;
use crate::message::NewMessage;
use crate::queue::Sent;
use crate::store::{Call, Link, ONCE_TIMEOUT, Reply, Script, Store, StoreError};

static CRON_SET: Script =
    Script::new("cron_set", include_str!("cron_set.lua")).lasting(&["ok", "same"]);

/// The most entries of a fleet.
const ENTRIES_MAX: usize = 1000;
/// How often a change is tried if another one comes first.
const TRIES: usize = 10;
/// Entries that are read at once.
const PIECE: usize = 4;

/// A periodic entry. Made by [`Crons::list`].
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{Cron, Fleet};
///
/// let fleet = Fleet::connect(url, "orders").await?;
/// fleet.crons().set("nightly", &Cron::new("0 2 * * *").tz("Europe/Berlin")).await?;
/// for entry in fleet.crons().list().await? {
///     assert_eq!((entry.tz.as_str(), entry.catch_up), ("Europe/Berlin", "once"));
///     assert!(entry.fired_at.is_none() && entry.next_at.is_some());
/// }
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CronEntry {
    /// Its name.
    pub name: String,
    /// Its times.
    pub spec: String,
    /// The time zone of its times.
    pub tz: String,
    /// What happens to missed times: `once`, `skip` or `all`.
    pub catch_up: &'static str,
    /// False if a time is skipped while the message of an earlier one is not over.
    pub overlap: bool,
    /// It fires nothing until it is resumed.
    pub is_paused: bool,
    /// The lane of its message.
    pub lane: Lane,
    /// The kind of its message, if it has one.
    pub kind: Option<String>,
    /// The payload of its message.
    pub payload: Vec<u8>,
    /// The program that declared it, or `artel cron`.
    pub by: String,
    /// When it was last changed, Redis time.
    pub changed_at: SystemTime,
    /// The time for which it fired last, if it did.
    pub fired_at: Option<SystemTime>,
    /// The next time; `None` if there is none, or if this version cannot read it.
    pub next_at: Option<SystemTime>,
}

/// What a declaration changed.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{Cron, CronSet, Fleet};
///
/// let fleet = Fleet::connect(url, "orders").await?;
/// fleet.crons().set("nightly", &Cron::new("0 2 * * *")).await?;
/// let changed = fleet.crons().set("nightly", &Cron::new("0 3 * * *")).await?;
/// assert!(matches!(changed, CronSet::Replaced(before) if before.contains("0 2 * * *")));
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum CronSet {
    /// It is new.
    New,
    /// It was declared like this before.
    Same,
    /// It was declared differently before, as this JSON. Its payload is left out.
    Replaced(String),
}

/// The periodic entries of a fleet. Made by [`Fleet::crons`].
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{Cron, CronSet, Fleet};
///
/// let fleet = Fleet::connect(url, "orders").await?;
/// let nightly = Cron::new("0 2 * * *").message("report");
/// assert_eq!(fleet.crons().set("nightly", &nightly).await?, CronSet::New);
/// assert_eq!(fleet.crons().set("nightly", &nightly).await?, CronSet::Same);
/// assert_eq!(fleet.crons().list().await?[0].spec, "0 2 * * *");
/// assert!(fleet.crons().remove("nightly").await?);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Crons {
    fleet: Fleet,
}

impl Fleet {
    /// The periodic entries.
    pub fn crons(&self) -> Crons {
        Crons { fleet: self.clone() }
    }
}

/// An entry as it is in Redis: its revision and its JSON. Revision 0: there never was one; an empty JSON: it was removed.
#[derive(Clone, Debug, Default)]
struct Known {
    rev: String,
    json: String,
}

impl Known {
    fn read(text: &str) -> Known {
        let (rev, json) = text.split_once('|').unwrap_or(("0", ""));
        Known { rev: rev.to_owned(), json: json.to_owned() }
    }
}

/// An entry as it is in Redis, with the times for which it fired.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) rev: String,
    pub(super) json: String,
    /// The last time, as text.
    pub(super) fired: Option<String>,
    /// The last time with a message, as text.
    sent: Option<String>,
}

/// All entries, in pieces: one large answer would hold up what else uses this connection.
pub(super) async fn read_all(
    store: &Store,
    link: &Link,
    timeout: Duration,
) -> Result<Vec<Declared>, StoreError> {
    let keys = &store.keys;
    let names = Call::plain("HKEYS").arg(keys.crons()).reading(Reply::into_texts);
    let names = link.call(&names, timeout).await?;
    let times = Call::plain("HGETALL").arg(keys.fired()).reading(Reply::into_pairs);
    let times = link.call(&times, timeout).await?.into_iter();
    let times: Result<BTreeMap<String, String>, StoreError> =
        times.map(|(name, ms)| Ok((name, ms.into_text()?))).collect();
    let (mut times, mut all) = (times?, Vec::new());
    for piece in names.chunks(PIECE) {
        let mut call = Call::plain("HMGET").arg(keys.crons());
        for name in piece {
            call = call.arg(name);
        }
        let call = call.answering(PIECE * BYTES_MAX).reading(Reply::into_list);
        for (name, text) in piece.iter().zip(link.call(&call, timeout).await?) {
            // It was removed meanwhile, or before.
            let text = if text.is_nil() { String::new() } else { text.into_text()? };
            let Known { rev, json } = Known::read(&text);
            if json.is_empty() {
                continue;
            }
            let (fired, sent) = (times.remove(name), times.remove(&format!("{name}!")));
            all.push(Declared { name: name.clone(), rev, json, fired, sent });
        }
    }
    Ok(all)
}

/// What Redis answered to a change.
enum Answer {
    Done,
    Same,
    Moved(Known),
    Full,
}

impl Answer {
    fn read(reply: Reply) -> Result<Answer, StoreError> {
        match reply.tag() {
            "ok" => Ok(Answer::Done),
            "same" => Ok(Answer::Same),
            "moved" => Ok(Answer::Moved(Known { rev: reply.text(0)?, json: reply.text(1)? })),
            "full" => Ok(Answer::Full),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Crons {
    /// All entries, by name.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached, refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn list(&self) -> Result<Vec<CronEntry>, Error> {
        let store = &self.fleet.store;
        let declared = read_all(store, &store.work, ONCE_TIMEOUT).await;
        let mut all = Vec::new();
        for entry in declared.map_err(|error| store.explain(error))? {
            let Some(stored) = Stored::read(&entry.json) else { continue };
            let ms = |text: Option<String>| text?.parse::<u64>().ok();
            let last = ms(entry.fired);
            let changed_ms = entry.rev.parse::<u64>().unwrap_or(0) / 1000;
            let fired_at = ms(entry.sent).map(at_ms);
            let times = stored.times().ok();
            let next_at =
                times.and_then(|times| times.after(last.unwrap_or(changed_ms))).map(at_ms);
            all.push(CronEntry {
                name: entry.name,
                catch_up: stored.catch_up.name(),
                overlap: stored.overlap,
                is_paused: stored.paused,
                lane: stored.lane(),
                kind: stored.kind.clone(),
                payload: stored.message().payload().to_vec(),
                changed_at: at_ms(changed_ms),
                fired_at,
                next_at: next_at.filter(|_| !stored.paused),
                spec: stored.spec,
                tz: stored.tz,
                by: stored.by,
            });
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Makes an entry, or replaces it. A pause stays.
    ///
    /// # Errors
    ///
    /// If the name, the times, the time zone or the message is not allowed, if there are 1,000 entries already, or as
    /// [`list`](Self::list).
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the entry may be changed or not.
    pub async fn set(&self, name: &str, cron: &Cron) -> Result<CronSet, Error> {
        self.declare(name, cron, &program()).await
    }

    /// As [`set`](Self::set), in this name: for commands.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    ///
    /// # Cancel safety
    ///
    /// As [`set`](Self::set).
    pub async fn declare(&self, name: &str, cron: &Cron, by: &str) -> Result<CronSet, Error> {
        cron.check(name)?;
        let mut before = None;
        let answer = self
            .change(name, |known| {
                before = Some(known.json.clone());
                let (mut stored, before) = (cron.stored(by), Stored::read(&known.json));
                stored.paused = before.as_ref().is_some_and(|known| known.paused);
                // Who declared it is no difference: another program, or a renamed one, may declare the same.
                match before {
                    Some(before)
                        if before == (Stored { by: before.by.clone(), ..stored.clone() }) =>
                    {
                        None
                    }
                    _ => Some(stored.text()),
                }
            })
            .await?;
        Ok(match before.unwrap_or_default() {
            _ if !answer => CronSet::Same,
            json if json.is_empty() => CronSet::New,
            // It goes to logs: no payloads there.
            json => CronSet::Replaced(Stored::read(&json).map_or_else(
                || "an entry of another version".to_owned(),
                |before| Stored { payload: None, payload_b64: None, ..before }.text(),
            )),
        })
    }

    /// Removes an entry. False if there is none.
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list).
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the entry may be removed or not.
    pub async fn remove(&self, name: &str) -> Result<bool, Error> {
        self.change(name, |known| (!known.json.is_empty()).then(String::new)).await
    }

    /// Pauses an entry: its times pass without a message. False if there is none, or it is paused already.
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list).
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the entry may be paused or not.
    pub async fn pause(&self, name: &str) -> Result<bool, Error> {
        self.set_paused(name, true).await
    }

    /// Resumes an entry. Times that passed meanwhile are not made up for. False if there is none, or it is not paused.
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list).
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the entry may be resumed or not.
    pub async fn resume(&self, name: &str) -> Result<bool, Error> {
        self.set_paused(name, false).await
    }

    async fn set_paused(&self, name: &str, paused: bool) -> Result<bool, Error> {
        self.change(name, |known| {
            let mut stored = Stored::read(&known.json).filter(|stored| stored.paused != paused)?;
            stored.paused = paused;
            Some(stored.text())
        })
        .await
    }

    /// Sends the message of an entry now, as an ordinary message. `None` if there is no such entry.
    ///
    /// # Errors
    ///
    /// As [`Fleet::send`].
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the message may have been added or not, but never twice.
    pub async fn run(&self, name: &str) -> Result<Option<Sent>, Error> {
        let Some(stored) = Stored::read(&self.known(name).await?.json) else { return Ok(None) };
        let message: NewMessage = stored.message();
        self.fleet.sender().lane(stored.lane()).send(message).await.map(Some)
    }

    async fn known(&self, name: &str) -> Result<Known, Error> {
        check_name(name)?;
        let store = &self.fleet.store;
        let call = Call::plain("HGET").arg(store.keys.crons()).arg(name);
        let call = call.reading(|reply| match reply.is_nil() {
            true => Ok("0|".to_owned()),
            false => reply.into_text(),
        });
        Ok(Known::read(&store.once(&call).await?))
    }

    /// Changes an entry from what it is to what `wanted` makes of it. False if nothing is to be changed.
    async fn change(
        &self,
        name: &str,
        mut wanted: impl FnMut(&Known) -> Option<String>,
    ) -> Result<bool, Error> {
        self.fleet.compare().await?;
        let store = &self.fleet.store;
        let mut known = self.known(name).await?;
        for _ in 0..TRIES {
            let Some(json) = wanted(&known) else { return Ok(false) };
            if json == known.json && known.rev != "0" {
                return Ok(false);
            }
            let keys = &store.keys;
            let call = CRON_SET
                .call(&[keys.crons(), keys.fired(), keys.control(), keys.ctl(), keys.notices()])
                .arg(name)
                .arg(&json)
                .arg(&known.rev)
                .arg(ENTRIES_MAX)
                .arg(self.fleet.who())
                .reading(Answer::read);
            match store.repeat(&call).await? {
                Answer::Done => return Ok(true),
                // A copy of this call made it so, or somebody else did.
                Answer::Same => return Ok(true),
                Answer::Moved(now) => known = now,
                Answer::Full => {
                    let problem = format!("cannot be added: {ENTRIES_MAX} exist; remove one first");
                    return Err(Error::Config { field: "cron", problem });
                }
            }
        }
        let reason = format!("others keep changing the entry {name}; try again");
        Err(Error::Refused { reason })
    }
}

/// The name of this program.
fn program() -> String {
    let program = std::env::current_exe().ok();
    let name =
        program.as_ref().and_then(|path| path.file_stem()).map(|name| name.to_string_lossy());
    name.as_deref().unwrap_or("a program").replace(char::is_control, "?").chars().take(80).collect()
}
