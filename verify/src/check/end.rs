//! The last check, when the queue is empty and the ledger is read.
//!
//! **Invariant:** as in `check.rs`: nothing is blamed that was not promised.

use std::collections::{HashMap, HashSet};

use super::{Checker, Found, Series};
use crate::books::{Settled, Snapshot};
use crate::history::{Id, Source, id_text};
use crate::life::{is_failed, retries, snoozes};
use crate::member::ATTEMPTS_MAX;
use crate::promise::Invariant;

impl Checker {
    /// The last check: the queue is empty and the ledger is read.
    pub(crate) fn finish(&mut self, now: &Snapshot) {
        self.quiet(now);
        if self.unledgered {
            self.assume(now);
        }
        if self.keeps() {
            self.count(now);
        }
        if !now.left_behind.is_empty() {
            let what = format!("left behind at the end: {}", now.left_behind);
            self.blame(Invariant::BooksBalance, what, Vec::new());
        }
        let mut found = Vec::new();
        self.forget_untold(&mut found);
        for (source, book) in &self.all {
            if self.forgot(*source) {
                let lost = book.missing(*source, book.accepted.max(book.highest));
                self.seen.lost_with_redis += lost.count() as u64;
            } else {
                self.outcomes(*source, book, &mut found);
                let effects = now.effects.get(source).copied().unwrap_or_default();
                if effects != (book.done, book.sum) {
                    let what = format!(
                        "{source}: {} outcomes, sum {}; effects say {} and {}",
                        book.done, book.sum, effects.0, effects.1
                    );
                    found.push((Invariant::EffectsEqualOutcomes, what, vec![source.to_string()]));
                }
            }
            if !matches!(source, Source::Term(_)) {
                self.seen.accepted += book.known.count();
                continue;
            }
            if book.highest > book.tried {
                let name = id_text((*source, book.highest));
                let what = format!("{name} was never made");
                found.push((Invariant::NothingInvented, what, vec![name]));
            }
            self.seen.accepted += book.accepted.max(book.highest);
            self.seen.terms += u64::from(book.highest > 0);
        }
        if now.refused {
            let what = "effects that had to be refused happened".to_owned();
            found.push((Invariant::EffectsEqualOutcomes, what, Vec::new()));
        }
        self.seen.given_up = self.given_up.len() as u64;
        let told = |id: &&Id| {
            !self.forgot(id.0) && self.all.get(&id.0).is_some_and(|book| book.recorded.has(id.1))
        };
        for id in self.given_up.iter().filter(told).take(5) {
            let what = format!("{} failed, but its handler did not return a failure", id_text(*id));
            found.push((Invariant::NothingInvented, what, vec![id_text(*id)]));
        }
        self.terms(&mut found);
        self.finish_jobs(&mut found);
        self.errors(now, &mut found);
        for (invariant, what, about) in found {
            self.blame(invariant, what, about);
        }
    }

    /// What began and was not added in the end was forgotten with an untold step: nothing follows from it.
    fn forget_untold(&mut self, found: &mut Vec<Found>) {
        if !self.forgets || !self.keeps() {
            return;
        }
        let is_settled = |id: &Id| self.all.get(&id.0).is_some_and(|book| book.settled.has(id.1));
        for (one, other, maker) in &self.doubles {
            if is_settled(one) && is_settled(other) {
                let names = [*other, *one].map(id_text);
                let what = format!("{maker} was added as {} and as {}", names[0], names[1]);
                found.push((Invariant::AddedOnce, what, names.into()));
            }
        }
        let told: HashSet<Id> = self.sendings.told().collect();
        self.sendings.retain(is_settled);
        for (source, book) in &mut self.all {
            if !matches!(source, Source::Term(_)) {
                let (known, settled) = (std::mem::take(&mut book.known), &book.settled);
                let is_there = |seq: &u64| settled.has(*seq) || told.contains(&(*source, *seq));
                known.iter().filter(is_there).for_each(|seq| _ = book.known.put(seq));
            }
            book.highest = match source {
                Source::Term(_) => book.accepted,
                _ => book.known.iter().max().unwrap_or(0),
            };
        }
    }

    /// Every message without an entry in the ledger was settled once, if all is well: it failed if it was kept as an error, and
    /// else it is done. If that is not so, effects or counters disagree.
    fn assume(&mut self, now: &Snapshot) {
        let again: HashSet<Id> = self.sendings.origins().collect();
        let kept: HashSet<Id> =
            self.taken.keys().chain(&now.errors).chain(&again).copied().collect();
        // All workers that held it may have died before they started it. Terms know their numbers anyway.
        for (source, seq) in kept.iter().filter(|(source, _)| !matches!(source, Source::Term(_))) {
            self.all.entry(*source).or_default().know(*seq);
        }
        let mut assumed = Vec::new();
        for (source, book) in self.all.iter().filter(|(source, _)| !self.forgot(**source)) {
            let upto = book.accepted.max(book.highest);
            for id in book.missing(*source, upto).map(|seq| (*source, seq)) {
                let last = self.last_started(id);
                let ended = match last {
                    1 => book.handled.has(id.1),
                    again => self.handled_again.contains(&(id, again)),
                };
                let cancelled = self.jobs.cancels.contains(&id) && !ended;
                let forgotten = cancelled || (self.jobs.is_noise(id) && is_failed(id));
                let failed = kept.contains(&id) || forgotten;
                let attempt = match self.recorded_again.get(&id) {
                    Some(attempt) => *attempt,
                    None if book.recorded.has(id.1) => 1,
                    None if failed && !(is_failed(id) && ended) => self.given_up_in(id, last),
                    None => last,
                };
                assumed.push(Settled { id, failed, attempt });
            }
        }
        self.seen.settled_without_ledger = assumed.len() as u64;
        assumed.iter().for_each(|settled| self.settled(settled));
    }

    /// The last attempt at this message that was seen to begin.
    fn last_started(&self, id: Id) -> u32 {
        let most = ATTEMPTS_MAX + retries(id) + snoozes(id);
        (2..=most).rev().find(|attempt| self.attempts.contains(&(id, *attempt))).unwrap_or(1)
    }

    /// The attempt in which a message was given up: its last workers died, perhaps before they started it.
    fn given_up_in(&self, id: Id, last: u32) -> u32 {
        last.max(ATTEMPTS_MAX + self.jobs.run_again(id, last))
    }

    /// Checks the outcomes of the messages of one term, or of one sender.
    fn outcomes(&self, source: Source, book: &Series, found: &mut Vec<Found>) {
        let name = |seq: u64| id_text((source, seq));
        let mut few = |invariant: Invariant, seqs: &mut dyn Iterator<Item = u64>, what: &str| {
            for seq in seqs.take(5) {
                found.push((invariant, format!("{} {what}", name(seq)), vec![name(seq)]));
            }
        };
        let upto = match source {
            Source::Term(_) => book.accepted,
            Source::Sender(_) | Source::Outcome(_) | Source::Entry(..) => book.highest,
        };
        few(
            Invariant::NothingLost,
            &mut book.missing(source, upto),
            "was accepted and has no outcome",
        );
        few(
            Invariant::DenseSequences,
            &mut book.missing(source, book.highest).filter(|seq| *seq > upto),
            "is missing, although later ones exist",
        );
        let attempt =
            |seq: &u64, again: &HashMap<Id, u32>| again.get(&(source, *seq)).copied().unwrap_or(1);
        let unhandled = |seq: &u64| {
            let (id, last) = ((source, *seq), attempt(seq, &self.settled_again));
            let failed = self.failed.contains(&id) && !book.recorded.has(*seq);
            let handled = match last {
                _ if failed && self.jobs.cancels.contains(&id) => true,
                1 => book.handled.has(*seq),
                // Its last worker died while it held it, and another member has recorded that.
                again if failed && self.may_be_given_up(id, again) => true,
                again => self.handled_again.contains(&(id, again)),
            };
            !handled
        };
        few(
            Invariant::HandledFirst,
            &mut book.settled.iter().filter(unhandled),
            "has the outcome of an attempt whose handler did not return",
        );
        let untrue = |seq: &u64| {
            let same = attempt(seq, &self.recorded_again) == attempt(seq, &self.settled_again);
            !(same && book.settled.has(*seq))
        };
        few(
            Invariant::AnswersTrue,
            &mut book.recorded.iter().filter(untrue),
            "does not have the outcome that was confirmed to its worker",
        );
    }

    /// Checks that no message of a term was made after a later term had begun to make its own.
    fn terms(&self, found: &mut Vec<Found>) {
        let mut before: Option<(u64, u64, u64)> = None;
        for (source, book) in &self.all {
            let (Source::Term(term), Some(first)) = (source, book.first_made) else { continue };
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
    }

    /// Checks that exactly the failed messages were taken, put back to work, or are still stored.
    fn errors(&self, now: &Snapshot, found: &mut Vec<Found>) {
        let again: HashSet<Id> = self.sendings.origins().collect();
        let stored = now.errors.iter();
        let kept: HashSet<Id> = self.taken.keys().chain(stored).chain(&again).copied().collect();
        let gone = |id: &&Id| self.removed.contains(id) || again.contains(id);
        let mut say = |ids: &mut dyn Iterator<Item = &Id>, what: &str| {
            for id in ids.filter(|id| !self.forgot(id.0)).take(5) {
                let name = id_text(*id);
                found.push((Invariant::ErrorsKept, format!("{name} {what}"), vec![name]));
            }
        };
        let forgets = |id: &&Id| {
            let given_up = self.given_up.contains(id);
            self.jobs.cancels.contains(*id) || (self.jobs.is_noise(**id) && !given_up)
        };
        let lost = self.failed.difference(&kept).filter(|id| !forgets(id));
        say(&mut { lost }, "failed and was not kept");
        say(&mut kept.difference(&self.failed), "was kept and did not fail");
        say(&mut now.errors.iter().filter(gone), "was taken or put back, and is still stored");
        say(&mut self.removed.intersection(&again), "was taken and put back");
    }
}
