//! [`Losses`]: what somebody was told and Redis forgot, and what was named of it.
//!
//! **Invariant:** as in `check.rs`: nothing is blamed that was not promised. A sender names its own messages, if it lives. A
//! member names the steps that a heartbeat had told it of, if it lives to see the next server.

use std::collections::{HashMap, HashSet};

use crate::history::{Entry, Id};

/// A sender has heard of a loss when it was told of this many messages after it.
const SENT_AFTER: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct Losses {
    senders: HashMap<String, Told>,
    members: HashMap<String, Heard>,
    changes: Vec<Change>,
    /// When workers were told that an outcome is recorded.
    outcomes: HashMap<Id, Vec<u64>>,
    /// What the ledger has.
    there: HashSet<Id>,
    /// What it ever had.
    ever: HashSet<Id>,
    /// When everything was whole after a failover.
    over: Vec<u64>,
}

/// What one life of a sender was told.
#[derive(Debug, Default)]
struct Told {
    sent: Vec<(u64, Id)>,
    forgotten: u64,
}

/// How far one life of a member had heard of the steps of the fleet.
#[derive(Debug, Default)]
struct Heard {
    /// Heartbeats without an answer, and when they were sent.
    open: HashMap<u64, u64>,
    /// When the last two that were answered had been sent.
    answered: (u64, u64),
    /// When it came to the server that it is at.
    since: Option<u64>,
}

/// A member came to another server.
#[derive(Debug)]
struct Change {
    /// It knew of all steps at the server before, from one time to the other.
    known: (u64, u64),
    servers: (String, String),
    forgotten: u64,
}

/// What was lost of what somebody was told, and how much of it was named.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Named {
    pub(crate) lost: u64,
    pub(crate) named: u64,
}

impl Losses {
    /// The next entry of a process's history.
    pub(crate) fn history(&mut self, who: &str, at: u64, entry: &Entry) {
        match entry {
            Entry::Sent { id, is_new: true, .. } => {
                self.senders.entry(who.to_owned()).or_default().sent.push((at, *id));
            }
            Entry::Forgot(messages) => {
                self.senders.entry(who.to_owned()).or_default().forgotten += messages;
            }
            Entry::Recorded { id, .. } => self.outcomes.entry(*id).or_default().push(at),
            Entry::Call { number, call } if call == "heartbeat" => {
                self.members.entry(who.to_owned()).or_default().open.insert(*number, at);
            }
            Entry::Answer { number, .. } => {
                if let Some(heard) = self.members.get_mut(who)
                    && let Some(sent) = heard.open.remove(number)
                {
                    heard.answered = (heard.answered.1, sent);
                    heard.since.get_or_insert(sent);
                }
            }
            Entry::ServerChanged { from, to, forgotten } => {
                let heard = self.members.entry(who.to_owned()).or_default();
                let (last, first_here) = heard.answered;
                let known = (heard.since.replace(first_here).unwrap_or(first_here), last);
                let servers = (from.clone(), to.clone());
                self.changes.push(Change { known, servers, forgotten: *forgotten });
            }
            _ => {}
        }
    }

    /// The next entry of the ledger. False if it is an old one, which is read again.
    pub(crate) fn settled(&mut self, id: Id) -> bool {
        let is_again = !self.there.insert(id);
        self.ever.insert(id) || is_again
    }

    /// Everything is whole after a failover. The ledger is read from its beginning again.
    pub(crate) fn over(&mut self, now: u64) {
        self.over.push(now);
        self.there.clear();
    }

    /// What senders were told and lost, for each life that must have heard of it.
    pub(crate) fn of_senders(&self) -> impl Iterator<Item = (&str, Named)> {
        self.senders.iter().map(|(who, told)| {
            let heard = |at: &u64| {
                // What was told before everything was whole is on all servers since.
                let over = self.over.iter().find(|over| *over > at);
                over.is_some_and(|over| {
                    told.sent.iter().filter(|(later, _)| later > over).count() >= SENT_AFTER
                })
            };
            let lost = told.sent.iter().filter(|(at, id)| !self.there.contains(id) && heard(at));
            (who.as_str(), Named { lost: lost.count() as u64, named: told.forgotten })
        })
    }

    /// What was lost of the steps that members had heard of and lived to name.
    pub(crate) fn of_members(&self) -> Named {
        let known = |at: u64| self.changes.iter().any(|one| one.known.0 < at && at < one.known.1);
        let mut lost = 0;
        for (id, times) in &self.outcomes {
            let kept = usize::from(self.there.contains(id));
            // Nobody knows which one of several was kept.
            if times.len() > kept && times.iter().all(|at| known(*at)) {
                lost += (times.len() - kept) as u64;
            }
        }
        let sent = self.senders.values().flat_map(|told| &told.sent);
        lost += sent.filter(|(at, id)| !self.there.contains(id) && known(*at)).count() as u64;
        let mut largest: HashMap<&(String, String), u64> = HashMap::new();
        for change in &self.changes {
            let one = largest.entry(&change.servers).or_default();
            *one = change.forgotten.max(*one);
        }
        Named { lost, named: largest.values().sum() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Source;

    fn sent(number: u64) -> Entry {
        Entry::Sent { number, id: (Source::Sender(7), number), is_new: true }
    }

    fn beat(losses: &mut Losses, at: u64) {
        losses.history("m1.1", at, &Entry::Call { number: at, call: "heartbeat".into() });
        losses.history("m1.1", at + 1, &Entry::Answer { number: at, tag: "ok".into() });
    }

    #[test]
    fn a_sender_names_what_it_was_told() {
        let mut losses = Losses::default();
        for number in 1..=9 {
            losses.history("sender.1", number * 10, &sent(number));
        }
        losses.over(55);
        [1, 2, 3, 6, 7, 8, 9].iter().for_each(|seq| _ = losses.settled((Source::Sender(7), *seq)));
        let named = |losses: &Losses| losses.of_senders().map(|(_, named)| named).next();
        assert_eq!(named(&losses), Some(Named { lost: 2, named: 0 }), "4 and 5 are gone");
        losses.history("sender.1", 95, &Entry::Forgot(2));
        assert_eq!(named(&losses), Some(Named { lost: 2, named: 2 }));
        // Of what it was told last, nobody knows whether it has heard of the loss.
        losses.over(99);
        (1..=3).for_each(|seq| _ = losses.settled((Source::Sender(7), seq)));
        assert_eq!(named(&losses), Some(Named { lost: 2, named: 2 }));
    }

    #[test]
    fn a_member_names_what_it_had_heard_of() {
        let mut losses = Losses::default();
        let recorded = |at, seq, losses: &mut Losses| {
            let entry = Entry::Recorded { id: (Source::Term(3), seq), attempt: 1 };
            losses.history("m2.1", at, &entry);
        };
        beat(&mut losses, 10);
        recorded(5, 9, &mut losses); // nobody was there to hear of it
        recorded(15, 1, &mut losses);
        beat(&mut losses, 20);
        recorded(25, 2, &mut losses); // nobody heard of it
        beat(&mut losses, 30);
        let changed = Entry::ServerChanged { from: "a".into(), to: "b".into(), forgotten: 1 };
        losses.history("m1.1", 32, &changed);
        recorded(40, 1, &mut losses); // made again
        losses.over(50);
        losses.settled((Source::Term(3), 1));
        assert_eq!(losses.of_members(), Named { lost: 0, named: 1 }, "which of two is not known");
        losses.over(60);
        beat(&mut losses, 70);
        beat(&mut losses, 80);
        let changed = Entry::ServerChanged { from: "b".into(), to: "c".into(), forgotten: 0 };
        losses.history("m1.1", 81, &changed);
        assert_eq!(losses.of_members().lost, 2, "both are gone");
    }
}
