//! [`Checker`]: what must hold, by name, and whether it did. Pure: it is fed what happened.
//!
//! **Invariant:** it accuses nobody of what was not promised: a step whose end is unknown may have
//! happened or not, and what Redis lost with its data is counted, not blamed on the fleet.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::books::{Settled, Snapshot};
use crate::history::{Entry, Id};
use crate::member::{has_effects, is_failed};
use crate::promise::{Invariant, Seen, Violation};

/// More of them teach nobody anything.
const VIOLATIONS_MAX: usize = 50;

/// A set of small numbers.
#[derive(Debug, Default)]
struct Numbers(Vec<u64>);

impl Numbers {
    /// `false` if it was there.
    fn put(&mut self, number: u64) -> bool {
        let (word, bit) = (number as usize / 64, 1 << (number % 64));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    fn has(&self, number: u64) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word & (1 << (number % 64)) != 0)
    }
}

/// What is known of one term.
#[derive(Debug, Default)]
struct Term {
    maker: Option<String>,
    /// When its accepted messages were made.
    first_made: Option<u64>,
    last_made: (u64, u64),
    /// Redis has accepted all up to here.
    accepted: u64,
    /// Its generator tried to push up to here.
    tried: u64,
    /// Seen anywhere.
    highest: u64,
    first_attempts: Numbers,
    /// At which the handler returned in its first attempt.
    handled: Numbers,
    settled: Numbers,
    done: i64,
    sum: i64,
}

/// Everything that happened, so far as it matters.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    terms: BTreeMap<u64, Term>,
    attempts: HashSet<(Id, u32)>,
    /// Attempts after the first whose handler returned, and those that were settled.
    handled_again: HashSet<(Id, u32)>,
    settled_again: HashMap<Id, u32>,
    /// The latest term of which Redis has accepted a message.
    latest: u64,
    failed: HashSet<Id>,
    taken: HashMap<Id, u32>,
    /// Terms up to this one may have lost anything: Redis forgot.
    lossy: u64,
    pub(crate) violations: Vec<Violation>,
    pub(crate) seen: Seen,
}

impl Checker {
    /// Somebody's next line.
    pub(crate) fn history(&mut self, who: &str, entry: &Entry) {
        match entry {
            Entry::Make { term, seq, many } => {
                let book = self.terms.entry(*term).or_default();
                book.tried = book.tried.max(seq - 1 + many);
                let other = book.maker.get_or_insert_with(|| who.to_owned()).clone();
                if other != who {
                    let what = format!("term {term} was held by {other} and by {who}");
                    self.blame(Invariant::OneGenerator, what, vec![term.to_string()]);
                }
            }
            Entry::Start { id, attempt, maker, made } => self.start(*id, *attempt, maker, *made),
            Entry::End { id, attempt: 1, .. } => {
                self.terms.entry(id.0).or_default().handled.put(id.1);
            }
            Entry::End { id, attempt, .. } => {
                self.handled_again.insert((*id, *attempt));
            }
            Entry::Woke(_) => self.seen.woken += 1,
            Entry::ClaimLost(_) => self.seen.claims_lost += 1,
            Entry::Fenced(_) => self.seen.fenced += 1,
            Entry::Adopted { returned } => self.seen.adopted += returned,
            Entry::SessionLost => self.seen.sessions_lost += 1,
            Entry::DataLoss(_) => self.seen.loss_noticed += 1,
            Entry::Full => self.seen.full += 1,
            Entry::Took(id) => {
                let times = self.taken.entry(*id).or_default();
                *times += 1;
                self.seen.taken += 1;
                self.seen.printed_again += u64::from(*times > 1);
            }
            _ => {}
        }
    }

    fn start(&mut self, id: Id, attempt: u32, maker: &str, made: u64) {
        let book = self.terms.entry(id.0).or_default();
        book.highest = book.highest.max(id.1);
        book.first_made = Some(book.first_made.map_or(made, |first| first.min(made)));
        book.last_made = book.last_made.max((made, id.1));
        let other = book.maker.get_or_insert_with(|| maker.to_owned()).clone();
        let new = match attempt {
            1 => book.first_attempts.put(id.1),
            _ => self.attempts.insert((id, attempt)),
        };
        let name = format!("{}-{}", id.0, id.1);
        if other != maker {
            let what = format!("{name} was made by {maker}, its term belongs to {other}");
            self.blame(Invariant::OneGenerator, what, vec![name.clone(), id.0.to_string()]);
        }
        if !new && id.0 <= self.lossy {
            self.seen.redone_after_loss += 1;
        } else if !new {
            let what = format!("attempt {attempt} at {name} was made twice");
            self.blame(Invariant::EachAttemptOnce, what, vec![name]);
        }
        self.seen.attempted_again += u64::from(attempt > 1);
    }

    /// Redis says that this is the last message it accepted. Terms never go back.
    pub(crate) fn accepted(&mut self, (term, seq): Id) {
        let latest = self.latest.max(term);
        if term < latest && latest > self.lossy {
            let what = format!("{term}-{seq} was accepted after term {latest} had begun");
            let about = vec![format!("{term}-{seq}"), latest.to_string()];
            self.blame(Invariant::OneGenerator, what, about);
        }
        self.latest = latest;
        let book = self.terms.entry(term).or_default();
        book.accepted = book.accepted.max(seq);
    }

    /// The next entry of the ledger.
    pub(crate) fn settled(&mut self, settled: &Settled) {
        let (term, seq) = settled.id;
        let name = format!("{term}-{seq}");
        let book = self.terms.entry(term).or_default();
        book.highest = book.highest.max(seq);
        if !book.settled.put(seq) {
            if term <= self.lossy {
                self.seen.redone_after_loss += 1;
                return;
            }
            self.seen.settled_twice += 1;
            self.blame(Invariant::SettledOnce, format!("{name} was settled twice"), vec![name]);
            return;
        }
        self.seen.settled += 1;
        if settled.attempt != 1 {
            self.settled_again.insert(settled.id, settled.attempt);
        }
        if settled.failed {
            self.seen.failed += 1;
            self.failed.insert(settled.id);
        } else if has_effects(settled.id) {
            book.done += 1;
            book.sum += seq as i64;
        }
        if settled.failed != is_failed(settled.id) {
            let what = format!("{name} has another outcome than its handler gave");
            self.blame(Invariant::NothingInvented, what, vec![name]);
        }
    }

    /// Everything in Redis is gone: what was accepted before may be lost.
    pub(crate) fn data_lost(&mut self) {
        self.seen.losses += 1;
        self.lossy = self.terms.keys().next_back().copied().unwrap_or(0);
        self.latest = 0;
    }

    pub(crate) fn blame(&mut self, invariant: Invariant, what: String, about: Vec<String>) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { invariant, what, about, history: Vec::new() });
        }
    }

    /// Nothing is broken at this moment: counters and facts agree.
    pub(crate) fn quiet(&mut self, now: &Snapshot) {
        let added = now.count("generated") + now.count("sent");
        let there = (now.waiting + now.held + now.settled) as i64;
        if added != there {
            let what = format!(
                "{added} were added; {} wait, {} are held, {} are settled",
                now.waiting, now.held, now.settled
            );
            self.blame(Invariant::BooksBalance, what, Vec::new());
        }
        let settled = now.count("done") + now.count("failed");
        self.compare("claimed", now.count("claimed"), now.held as i64);
        self.compare("done + failed", settled, now.settled as i64);
    }

    fn compare(&mut self, name: &str, count: i64, fact: i64) {
        if count != fact {
            let what = format!("counter {name} is {count}, in fact it is {fact}");
            self.blame(Invariant::BooksBalance, what, Vec::new());
        }
    }

    /// Every counter equals what the ledger and the stores say.
    fn count(&mut self, now: &Snapshot) {
        let (settled, failed) = (self.seen.settled as i64, self.seen.failed as i64);
        self.compare("done", now.count("done"), settled - failed);
        self.compare("failed", now.count("failed"), failed);
        self.compare("taken", now.count("taken"), failed - now.errors.len() as i64);
    }

    /// Everything is over, the queue is empty and the ledger is read.
    pub(crate) fn finish(&mut self, now: &Snapshot) {
        self.quiet(now);
        if self.lossy == 0 {
            self.count(now);
        }
        let mut found = Vec::new();
        let mut before: Option<(u64, u64, u64)> = None;
        for (term, book) in &self.terms {
            let name = |seq: u64| format!("{term}-{seq}");
            let lossy = *term <= self.lossy;
            let missing = |upto: u64| (1..=upto).filter(|seq| !book.settled.has(*seq));
            if lossy {
                let accepted = book.accepted.max(book.highest);
                self.seen.lost_with_redis += missing(accepted).count() as u64;
            } else {
                for seq in missing(book.accepted).take(5) {
                    let what = format!("{} was accepted and has no outcome", name(seq));
                    found.push((Invariant::NothingLost, what, vec![name(seq)]));
                }
                for seq in missing(book.highest).filter(|seq| *seq > book.accepted).take(5) {
                    let what = format!("{} is nowhere, and later ones are there", name(seq));
                    found.push((Invariant::DenseSequences, what, vec![name(seq)]));
                }
                let unseen = |seq: &u64| {
                    let id = (*term, *seq);
                    let handled = match self.settled_again.get(&id) {
                        Some(attempt) => self.handled_again.contains(&(id, *attempt)),
                        None => book.handled.has(*seq),
                    };
                    book.settled.has(*seq) && !handled
                };
                for seq in (1..=book.highest).filter(unseen).take(5) {
                    let what = format!(
                        "{} has the outcome of an attempt whose handler did not return",
                        name(seq)
                    );
                    found.push((Invariant::HandledFirst, what, vec![name(seq)]));
                }
                let effects = now.effects.get(term).copied().unwrap_or_default();
                if effects != (book.done, book.sum) {
                    let what = format!(
                        "term {term}: {} outcomes, sum {}; effects say {} and {}",
                        book.done, book.sum, effects.0, effects.1
                    );
                    found.push((Invariant::EffectsEqualOutcomes, what, vec![term.to_string()]));
                }
            }
            if book.highest > book.tried {
                let what = format!("{} was never made", name(book.highest));
                found.push((Invariant::NothingInvented, what, vec![name(book.highest)]));
            }
            self.seen.accepted += book.accepted.max(book.highest);
            self.seen.terms += u64::from(book.highest > 0);
            let Some(first) = book.first_made else { continue };
            let known =
                |(earlier, made, _): &(u64, u64, u64)| *made > first && *earlier > self.lossy;
            if let Some((earlier, made, seq)) = before.filter(known) {
                let what = format!(
                    "{earlier}-{seq} was made {} ms after term {term} had begun to make its own",
                    (made - first) as f64 / 1000.0
                );
                let about = vec![earlier.to_string(), format!("{earlier}-{seq}"), term.to_string()];
                found.push((Invariant::OneGenerator, what, about));
            }
            before = Some((*term, book.last_made.0, book.last_made.1));
        }
        let kept: HashSet<Id> =
            self.taken.keys().copied().chain(now.errors.iter().copied()).collect();
        for id in self.failed.iter().filter(|id| !kept.contains(id) && id.0 > self.lossy).take(5) {
            let name = format!("{}-{}", id.0, id.1);
            found.push((
                Invariant::ErrorsKept,
                format!("{name} failed and was not kept"),
                vec![name],
            ));
        }
        for id in kept.iter().filter(|id| !self.failed.contains(id) && id.0 > self.lossy).take(5) {
            let name = format!("{}-{}", id.0, id.1);
            found.push((
                Invariant::ErrorsKept,
                format!("{name} was kept and did not fail"),
                vec![name],
            ));
        }
        for id in now.errors.iter().filter(|id| self.taken.contains_key(id)).take(5) {
            let name = format!("{}-{}", id.0, id.1);
            found.push((
                Invariant::ErrorsKept,
                format!("{name} was taken and is still there"),
                vec![name],
            ));
        }
        for (invariant, what, about) in found {
            self.blame(invariant, what, about);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A term of `many` messages, all well.
    fn play(checker: &mut Checker, term: u64, who: &str, from: u64, many: u64) {
        checker.history(who, &Entry::Make { term, seq: 1, many });
        for seq in 1..=many {
            let id = (term, seq);
            let start = Entry::Start { id, attempt: 1, maker: who.into(), made: from + seq };
            checker.history("m9.1", &start);
            let failed = is_failed(id);
            checker.history("m9.1", &Entry::End { id, attempt: 1, failed });
            checker.settled(&Settled { id, failed, attempt: 1 });
            if failed {
                checker.history("taker.1", &Entry::Took(id));
            }
        }
        checker.accepted((term, many));
    }

    fn books(checker: &Checker) -> Snapshot {
        let mut now = Snapshot { settled: checker.seen.settled, ..Snapshot::default() };
        let settled = checker.seen.settled as i64;
        now.counts.insert("generated".into(), settled);
        now.counts.insert("done".into(), settled - checker.seen.failed as i64);
        now.counts.insert("failed".into(), checker.seen.failed as i64);
        now.counts.insert("taken".into(), checker.seen.failed as i64);
        now.effects =
            checker.terms.iter().map(|(term, book)| (*term, (book.done, book.sum))).collect();
        now
    }

    fn found(checker: &mut Checker) -> Vec<Invariant> {
        let now = books(checker);
        checker.finish(&now);
        checker.violations.iter().map(|violation| violation.invariant).collect()
    }

    #[test]
    fn a_good_history_is_blamed_for_nothing() {
        let mut checker = Checker::default();
        play(&mut checker, 100, "m1.1", 0, 200);
        play(&mut checker, 200, "m2.1", 1000, 200);
        assert_eq!(found(&mut checker), []);
        assert_eq!((checker.seen.accepted, checker.seen.terms), (400, 2));
    }

    #[test]
    fn every_fault_of_the_books_has_its_name() {
        type Spoil = fn(&mut Checker);
        let spoil: Vec<(Invariant, Spoil)> = vec![
            (Invariant::OneGenerator, |checker| play(checker, 300, "m3.1", 500, 5)),
            // Made in time, and accepted when another one led.
            (Invariant::OneGenerator, |checker| checker.accepted((100, 201))),
            (Invariant::OneGenerator, |checker| {
                checker.history("m2.9", &Entry::Make { term: 200, seq: 201, many: 0 });
            }),
            (Invariant::NothingLost, |checker| {
                checker.accepted((200, 201));
            }),
            (Invariant::DenseSequences, |checker| {
                checker.history("m2.1", &Entry::Make { term: 200, seq: 201, many: 9 });
                let id = (200, (202..209).find(|seq| !is_failed((200, *seq))).expect("one"));
                checker.settled(&Settled { id, failed: false, attempt: 1 });
            }),
            (Invariant::SettledOnce, |checker| {
                checker.settled(&Settled { id: (200, 3), failed: is_failed((200, 3)), attempt: 1 });
            }),
            (Invariant::NothingInvented, |checker| {
                let id = (200, (201..299).find(|seq| !is_failed((200, *seq))).expect("one"));
                checker.settled(&Settled { id, failed: false, attempt: 1 });
            }),
            (Invariant::EachAttemptOnce, |checker| {
                let maker = "m2.1".to_owned();
                let start = Entry::Start { id: (200, 3), attempt: 1, maker, made: 1003 };
                checker.history("m4.1", &start);
            }),
            (Invariant::ErrorsKept, |checker| {
                checker.history("taker.1", &Entry::Took((200, 1 + u64::from(is_failed((200, 1))))));
            }),
        ];
        for (invariant, spoil) in spoil {
            let mut checker = Checker::default();
            play(&mut checker, 100, "m1.1", 0, 200);
            play(&mut checker, 200, "m2.1", 1000, 200);
            spoil(&mut checker);
            let found = found(&mut checker);
            assert!(found.contains(&invariant), "{invariant:?} is not among {found:?}");
        }
        let mut checker = Checker::default();
        play(&mut checker, 100, "m1.1", 0, 200);
        let mut now = books(&checker);
        now.effects.insert(100, (1, 1));
        now.held = 1;
        checker.finish(&now);
        let found: Vec<_> = checker.violations.iter().map(|one| one.invariant).collect();
        assert!(found.contains(&Invariant::EffectsEqualOutcomes), "{found:?}");
        assert!(found.contains(&Invariant::BooksBalance), "{found:?}");
    }

    #[test]
    fn what_redis_lost_is_counted_and_not_blamed() {
        let mut checker = Checker::default();
        play(&mut checker, 100, "m1.1", 0, 10);
        checker.accepted((100, 20));
        checker.data_lost();
        play(&mut checker, 200, "m2.1", 1000, 10);
        assert_eq!(found(&mut checker), []);
        assert_eq!(checker.seen.lost_with_redis, 10);
    }
}
