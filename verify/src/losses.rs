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
    /// When workers were told that an outcome is recorded, and which.
    outcomes: HashMap<Id, Vec<(u64, String)>>,
    /// How many failovers began.
    faults: usize,
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
    /// When the last one that was answered had been sent.
    sent: u64,
    /// The servers to which it came, one after the other.
    reigns: Vec<Reign>,
}

/// The time of a member at one server.
#[derive(Debug)]
struct Reign {
    server: String,
    /// It knew of all steps there, from one time to the other.
    known: (u64, u64),
    /// What it named when it came, and the fault before that.
    forgotten: u64,
    fault: usize,
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
            Entry::Recorded { id, .. } => {
                self.outcomes.entry(*id).or_default().push((at, who.to_owned()));
            }
            Entry::Call { number, call } if call == "heartbeat" => {
                self.members.entry(who.to_owned()).or_default().open.insert(*number, at);
            }
            Entry::Answer { number, .. } => {
                if let Some(heard) = self.members.get_mut(who)
                    && let Some(sent) = heard.open.remove(number)
                {
                    heard.sent = sent;
                }
            }
            // It comes right behind the answer.
            Entry::Reached { server, forgotten } => {
                let heard = self.members.entry(who.to_owned()).or_default();
                let (sent, fault) = (heard.sent, self.faults);
                match heard.reigns.last_mut().filter(|last| last.server == *server) {
                    Some(last) => last.known.1 = sent,
                    None => heard.reigns.push(Reign {
                        server: server.clone(),
                        known: (sent, sent),
                        forgotten: *forgotten,
                        fault,
                    }),
                }
            }
            _ => {}
        }
    }

    /// The next entry of the ledger. False if it is an old one, which is read again.
    pub(crate) fn settled(&mut self, id: Id) -> bool {
        let is_again = !self.there.insert(id);
        self.ever.insert(id) || is_again
    }

    /// A failover begins.
    pub(crate) fn begin(&mut self) {
        self.faults += 1;
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

    /// What was lost of the outcomes that members had heard of and lived to name, and all steps that they named.
    pub(crate) fn of_members(&self) -> Named {
        let is_known = |(at, who): &(u64, String)| {
            let Some(server) = self.server_of(who, *at) else { return false };
            self.ended()
                .any(|reign| reign.server == server && reign.known.0 < *at && *at < reign.known.1)
        };
        let mut lost = 0;
        for (id, told) in &self.outcomes {
            let kept = usize::from(self.there.contains(id));
            // Nobody knows which one of several was kept.
            if told.len() > kept && told.iter().all(is_known) {
                lost += (told.len() - kept) as u64;
            }
        }
        // Members that come from one server to another one name the same loss. The same two may change again.
        let mut largest: HashMap<(&str, &str, usize), u64> = HashMap::new();
        for heard in self.members.values() {
            for pair in heard.reigns.windows(2) {
                let [from, to] = pair else { continue };
                let one = largest.entry((&from.server, &to.server, to.fault)).or_default();
                *one = to.forgotten.max(*one);
            }
        }
        Named { lost, named: largest.values().sum() }
    }

    /// At which server a member was then, if it lived to come to the next one.
    fn server_of(&self, who: &str, at: u64) -> Option<&str> {
        let reigns = &self.members.get(who)?.reigns;
        let next = reigns.iter().position(|reign| reign.known.0 > at)?;
        Some(&reigns[next.checked_sub(1)?].server)
    }

    /// The times of members at servers from which they came to others.
    fn ended(&self) -> impl Iterator<Item = &Reign> {
        let lives = self.members.values();
        lives.flat_map(|heard| heard.reigns.split_last().map_or(&[][..], |(_, ended)| ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Source;

    fn sent(number: u64) -> Entry {
        Entry::Sent { number, id: (Source::Sender(7), number), is_new: true }
    }

    fn beat(losses: &mut Losses, at: u64, server: &str, forgotten: u64) {
        for who in ["m1.1", "m2.1"] {
            losses.history(who, at, &Entry::Call { number: at, call: "heartbeat".into() });
            losses.history(who, at + 1, &Entry::Answer { number: at, tag: "ok".into() });
            losses.history(who, at + 1, &Entry::Reached { server: server.into(), forgotten });
        }
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
        recorded(5, 9, &mut losses); // nobody was there to hear of it
        beat(&mut losses, 10, "a", 0);
        recorded(15, 1, &mut losses);
        recorded(16, 3, &mut losses);
        beat(&mut losses, 20, "a", 0);
        recorded(25, 2, &mut losses); // nobody heard of it
        losses.begin();
        beat(&mut losses, 32, "b", 2);
        recorded(40, 1, &mut losses); // made again
        losses.over(50);
        losses.settled((Source::Term(3), 1));
        assert_eq!(losses.of_members(), Named { lost: 1, named: 2 }, "which of two is not known");
        losses.begin();
        beat(&mut losses, 52, "b", 0);
        beat(&mut losses, 60, "a", 1);
        losses.over(70);
        assert_eq!(losses.of_members(), Named { lost: 3, named: 3 }, "both are gone");
    }
}
