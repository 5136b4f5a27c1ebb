//! [`Trusts`]: no process trusts its session longer than two thirds of a lease after it sent a call
//! that Redis answered. Because of that a generator stops before another one can be elected. Also
//! the other way round: no process is judged dead within a lease of a call that Redis answered.

use std::collections::HashMap;
use std::time::Duration;

use crate::history::Entry;

/// A process that received nothing for longer has a problem: it gives up a connection that is
/// silent for this long.
const HEARS_WITHIN: Duration = Duration::from_millis(900);
/// No process waits longer than this for a call, in microseconds. A call that is dropped sooner has
/// no line for its end.
const GIVEN_UP_AFTER: u64 = 5_000_000;

/// The calls of every process.
#[derive(Debug, Default)]
pub(crate) struct Trusts {
    of: HashMap<String, Calls>,
    /// Calls that add or settle messages, and that Redis answered with `already`.
    pub(crate) already: u64,
}

#[derive(Debug, Default)]
struct Calls {
    /// Calls without an answer: when they were sent, and their sort.
    open: HashMap<u64, (u64, Sort)>,
    /// When the latest answered call that refreshes a session was sent.
    answered: u64,
    /// The same, for calls whose session still existed; and when the session began.
    refreshed: u64,
    joined: u64,
}

/// What a call means for the session.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Sort {
    #[default]
    Other,
    /// It begins a session.
    Join,
    /// It refreshes the session if it gets what it asks for.
    Acquire,
    /// It refreshes the session.
    Refresh,
    /// It refreshes the session, and adds or settles messages.
    Move,
    /// It adds messages without a session.
    Send,
}

impl Sort {
    fn of(call: &str) -> Sort {
        match call {
            "join" => Sort::Join,
            "acquire" => Sort::Acquire,
            "heartbeat" | "fetch" | "give_back" | "unread" | "promote" => Sort::Refresh,
            "push" | "settle" | "settle_jobs" => Sort::Move,
            "send" | "requeue" => Sort::Send,
            _ => Sort::Other,
        }
    }

    /// Did the call refresh the session, as far as its process knows?
    fn refreshes(self, tag: &str) -> bool {
        match self {
            Sort::Join => tag == "ok",
            Sort::Acquire => tag == "won",
            Sort::Refresh | Sort::Move => true,
            Sort::Send | Sort::Other => false,
        }
    }

    fn moves(self) -> bool {
        matches!(self, Sort::Move | Sort::Send)
    }
}

impl Trusts {
    /// The next entry of a process's history. Returns a violation, if there is one: in words, and
    /// the word to look for.
    pub(crate) fn history(
        &mut self,
        who: &str,
        at: u64,
        entry: &Entry,
        lease: Duration,
    ) -> Option<(String, String)> {
        if !self.of.contains_key(who) {
            self.of.insert(who.to_owned(), Calls::default());
        }
        let calls = self.of.get_mut(who)?;
        match entry {
            Entry::Call { number, call } => {
                calls.open.insert(*number, (at, Sort::of(call)));
            }
            Entry::Answer { number, tag } => {
                let (sent, sort) = calls.open.remove(number).unwrap_or_default();
                if sort.refreshes(tag) {
                    calls.answered = calls.answered.max(sent);
                    if tag != "gone" {
                        calls.refreshed = calls.refreshed.max(sent);
                    }
                }
                if sort == Sort::Join && tag == "ok" {
                    calls.joined = sent;
                }
                self.already += u64::from(sort.moves() && tag == "already");
            }
            Entry::Unanswered(number) => drop(calls.open.remove(number)),
            Entry::Trusts(until) => {
                // Its own clock is read before the line is written: no tolerance is needed.
                let sent = until.saturating_sub((lease * 2 / 3).as_micros() as u64);
                if sent > calls.answered {
                    let more = (sent - calls.answered) as f64 / 1000.0;
                    let what = format!(
                        "{who} trusts its session for {more} ms longer than two thirds of a lease after \
                         the last answered call was sent"
                    );
                    return Some((what, until.to_string()));
                }
            }
            _ => {}
        }
        None
    }

    /// A process learns that it was judged dead, and nothing has disturbed it since `well_since`.
    /// Returns a violation, if this is one.
    pub(crate) fn judged(
        &self,
        who: &str,
        at: u64,
        well_since: u64,
        lease: Duration,
    ) -> Option<String> {
        let Calls { refreshed, joined, .. } = *self.of.get(who)?;
        let ago = Duration::from_micros(at.saturating_sub(refreshed));
        // It may learn this so late that it has joined again already.
        let known = refreshed > joined && refreshed > well_since;
        (known && ago < lease.min(HEARS_WITHIN)).then(|| {
            format!("{who} was judged dead {ago:?} after it sent a call that Redis answered")
        })
    }

    /// Does it have an open call that adds or settles messages and is not given up?
    pub(crate) fn moves(&self, who: &str, now: u64) -> bool {
        let mut open = self.of.get(who).into_iter().flat_map(|calls| calls.open.values());
        open.any(|(sent, sort)| sort.moves() && now < sent + GIVEN_UP_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_counts_from_when_an_answered_call_was_sent() {
        let (mut trusts, lease) = (Trusts::default(), Duration::from_millis(3));
        let call = |number| Entry::Call { number, call: "push".into() };
        let answer = |number| Entry::Answer { number, tag: "already".into() };
        let mut say = |at, entry: &Entry| trusts.history("m1.1", at, entry, lease);
        assert_eq!(say(1000, &call(1)), None);
        assert_eq!(say(5000, &call(2)), None);
        assert_eq!(say(6000, &answer(1)), None);
        assert_eq!(say(6001, &Entry::Trusts(3000)), None);
        assert!(say(6001, &Entry::Trusts(8000)).is_some(), "counted from the answer");
        assert_eq!(say(6002, &Entry::Unanswered(2)), None);
        assert!(say(6003, &Entry::Trusts(7000)).is_some(), "that one was not answered");
        assert_eq!(say(8000, &Entry::Call { number: 3, call: "look".into() }), None);
        assert_eq!(say(8001, &answer(3)), None);
        assert!(say(8002, &Entry::Trusts(9000)).is_some(), "a look refreshes nothing");
        assert_eq!(trusts.already, 1);
        // Sent at 1000 and answered: by 4000 a lease is over.
        assert!(trusts.judged("m1.1", 3999, 0, lease).is_some());
        assert_eq!(trusts.judged("m1.1", 4000, 0, lease), None);
        assert_eq!(trusts.judged("m1.1", 3999, 1000, lease), None, "something was in its way");
        assert!(!trusts.moves("m1.1", 9000));
        trusts.history("m1.1", 9000, &call(4), lease);
        assert!(trusts.moves("m1.1", 9001) && !trusts.moves("m1.1", 9000 + GIVEN_UP_AFTER));
    }
}
