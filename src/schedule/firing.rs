//! Firing periodic entries: for which times, and with which message.
//!
//! **Invariant:** the next time is a function of the entry and of the time for which it fired last, which is in Redis. No
//! process remembers anything. One script fires, once for an entry and a time.

use std::collections::BTreeMap;

use super::crons::{Declared, read_all};
use super::entry::{CatchUp, Stored};
use super::times::Times;
use crate::membership::Session;
use crate::store::{Call, Link, PROTOCOL, Reply, Script, Store, StoreError};
use crate::term::Term;

static FIRE: Script = Script::new("fire", include_str!("fire.lua"));

/// The most missed times that are made up for at once.
const CATCH_UP_MAX: usize = 1000;
/// A time that is later than this was missed.
const MISSED_AFTER_MS: u64 = 10_000;

/// The entries of a fleet, as one member read them.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    all: BTreeMap<String, Entry>,
}

/// One entry.
#[derive(Debug)]
struct Entry {
    rev: String,
    stored: Stored,
    times: Times,
    /// The time for which it fired last.
    fired: u64,
}

/// What to do about one entry now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Firing {
    pub(crate) entry: String,
    pub(crate) due: u64,
    /// False: this time passes without a message.
    sends: bool,
    /// Older times were left out.
    pub(crate) left_out: bool,
}

impl Firing {
    /// Does it add a message?
    pub(crate) fn sends(&self) -> bool {
        self.sends
    }
}

/// What Redis answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fired {
    /// It fired, or this time passed without a message.
    Now,
    /// The message of an earlier time is not over.
    Skipped,
    /// Somebody else fired, or the entry is another one: read all of them again.
    Changed,
    /// It is not due by Redis's clock.
    Early,
    /// Another member leads.
    Fenced,
    /// There is no room in its lane.
    Full,
}

/// The times for which an entry fires now, and whether with a message; and whether older ones were left out.
fn due_now(
    times: &Times,
    (catch_up, paused): (CatchUp, bool),
    fired: u64,
    now: u64,
) -> (Vec<(u64, bool)>, bool) {
    let latest = || times.latest(fired, now);
    match catch_up {
        _ if paused => (latest().map(|due| (due, false)).into_iter().collect(), false),
        CatchUp::Once => (latest().map(|due| (due, true)).into_iter().collect(), false),
        CatchUp::Skip => {
            let fresh = latest().filter(|due| now - due <= MISSED_AFTER_MS);
            (fresh.map(|due| (due, true)).into_iter().collect(), false)
        }
        CatchUp::All => {
            let (missed, left_out) = times.missed(fired, now, CATCH_UP_MAX);
            (missed.into_iter().map(|due| (due, true)).collect(), left_out)
        }
    }
}

impl Entries {
    /// Reads all entries. One that cannot be read is left out, with a line in the log.
    pub(crate) async fn read(
        store: &Store,
        link: &Link,
        session: &Session,
    ) -> Result<Entries, StoreError> {
        let mut all = BTreeMap::new();
        for declared in read_all(store, link, session.trust.call_timeout()).await? {
            let Declared { name, rev, json, fired, .. } = declared;
            let stored =
                Stored::read(&json).ok_or_else(|| "not an entry of this version".to_owned());
            match stored.and_then(|stored| Ok((stored.times()?, stored))) {
                Ok((times, stored)) => {
                    let fired = fired.as_deref().unwrap_or("0");
                    let Ok(fired) = fired.parse() else {
                        tracing::warn!(
                            entry = name,
                            fired,
                            "the last time of an entry is not a time"
                        );
                        continue;
                    };
                    all.insert(name, Entry { rev, stored, times, fired });
                }
                Err(why) => tracing::warn!(entry = name, why, "a periodic entry cannot be fired"),
            }
        }
        Ok(Entries { all })
    }

    /// What is due now, by Redis's clock, in the order of the times. After each entry others may run: a thousand entries
    /// with a thousand missed times each take seconds.
    pub(crate) async fn due(&self, now: u64) -> Vec<Firing> {
        let mut all = Vec::new();
        for (name, entry) in &self.all {
            tokio::task::yield_now().await;
            let how = (entry.stored.catch_up, entry.stored.paused);
            let (times, left_out) = due_now(&entry.times, how, entry.fired, now);
            all.extend(times.into_iter().enumerate().map(|(number, (due, sends))| Firing {
                entry: name.clone(),
                due,
                sends,
                left_out: left_out && number == 0,
            }));
        }
        all.sort_by_key(|firing| firing.due);
        all
    }

    /// When the next entry is due, after this time.
    pub(crate) fn next(&self, now: u64) -> Option<u64> {
        self.all.values().filter_map(|entry| entry.times.after(now.max(entry.fired))).min()
    }

    /// Notes that an entry fired for this time.
    pub(crate) fn note(&mut self, firing: &Firing) {
        if let Some(entry) = self.all.get_mut(&firing.entry) {
            entry.fired = entry.fired.max(firing.due);
        }
    }

    /// The call that fires. `term` is that of the caller, if it leads.
    pub(crate) fn call(
        &self,
        store: &Store,
        session: &Session,
        term: Option<Term>,
        firing: &Firing,
        now: u64,
    ) -> Option<Call<Fired>> {
        let entry = self.all.get(&firing.entry)?;
        let mut envelope = Vec::new();
        if firing.sends {
            let mut message = entry.stored.message();
            if !entry.stored.overlap {
                message = message.unique(format!("cron:{}", firing.entry));
            }
            let id = format_args!("c{}-{}", firing.entry, firing.due);
            message.envelope(&mut envelope, entry.stored.lane(), id, now);
        }
        let keys = &store.keys;
        let mut all = keys.jobs();
        all.extend([keys.lease(), keys.crons(), keys.fired(), keys.config()]);
        let call = FIRE
            .call(&all)
            .arg(session.id.as_str())
            .arg(term.map_or(String::new(), |term| term.to_string()))
            .arg(&firing.entry)
            .arg(&entry.rev)
            .arg(entry.fired)
            .arg(firing.due)
            .arg(session.trust.lease_ms())
            .arg(PROTOCOL)
            .arg(&envelope[..]);
        Some(call.reading(Fired::read))
    }
}

impl Fired {
    fn read(reply: Reply) -> Result<Fired, StoreError> {
        match reply.tag() {
            "ok" => Ok(Fired::Now),
            "skipped" => Ok(Fired::Skipped),
            "already" | "changed" => Ok(Fired::Changed),
            "early" => Ok(Fired::Early),
            "fenced" | "protocol" => Ok(Fired::Fenced),
            "full" => Ok(Fired::Full),
            _ => Err(reply.unexpected()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1000;

    fn every(seconds: u64) -> Times {
        Times::parse(&format!("every {seconds}s"), "UTC").expect("good")
    }

    fn due(catch_up: CatchUp, fired: u64, now: u64) -> Vec<u64> {
        let (due, _) = due_now(&every(60), (catch_up, false), fired, now);
        assert!(due.iter().all(|(_, sends)| *sends));
        due.into_iter().map(|(due, _)| due).collect()
    }

    #[test]
    fn missed_times_are_made_up_for_as_declared() {
        let (fired, now) = (60 * SECOND, 241 * SECOND);
        assert_eq!(due(CatchUp::Once, fired, now), [240 * SECOND]);
        assert_eq!(due(CatchUp::All, fired, now), [120, 180, 240].map(|s| s * SECOND));
        assert_eq!(due(CatchUp::Skip, fired, now), [240 * SECOND], "this one is not late");
        assert_eq!(due(CatchUp::Skip, fired, now + 20 * SECOND), [] as [u64; 0]);
        for catch_up in [CatchUp::Once, CatchUp::All, CatchUp::Skip] {
            assert_eq!(due(catch_up, 240 * SECOND, now), [] as [u64; 0], "it has fired");
        }
    }

    #[test]
    fn two_years_away_are_a_thousand_runs_at_most() {
        let two_years = 2 * 366 * 86_400 * SECOND;
        let (due, left_out) = due_now(&every(60), (CatchUp::All, false), SECOND, two_years);
        assert_eq!((due.len(), left_out), (CATCH_UP_MAX, true));
        assert_eq!(due.last(), Some(&(two_years, true)));
    }

    #[test]
    fn a_paused_entry_lets_its_times_pass_without_a_message() {
        let (due, _) = due_now(&every(60), (CatchUp::All, true), SECOND, 600 * SECOND);
        assert_eq!(due, [(600 * SECOND, false)]);
    }
}
