//! [`Checker`]: checks whether the promises held. It is pure: it only gets what happened.
//!
//! **Invariant:** it reports no violation of anything that was not promised: a step whose end is unknown
//! may have happened or not, and what Redis lost with its data is counted, not blamed on the fleet.

mod end;
mod jobs;

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::books::{Settled, Snapshot};
use crate::history::{Entry, Id, Source, id_text};
use crate::life::{has_effects, is_failed};
use crate::losses::{Losses, Named};
use crate::numbers::Numbers;
use crate::promise::{Invariant, Seen, Violation};
use crate::sent::Sendings;
use jobs::Jobs;

/// More violations than this are not useful.
const VIOLATIONS_MAX: usize = 50;

/// The messages that one generator numbered in its term, or one sender.
#[derive(Debug, Default)]
struct Series {
    maker: Option<String>,
    /// When the first and the last of its accepted messages were made.
    first_made: Option<u64>,
    last_made: (u64, u64),
    /// Redis has accepted all messages up to this number.
    accepted: u64,
    /// Its generator tried to push messages up to this number.
    tried: u64,
    /// The highest number that was seen anywhere, and all numbers that were.
    highest: u64,
    known: Numbers,
    first_attempts: Numbers,
    /// Messages whose handler returned in the first attempt.
    handled: Numbers,
    settled: Numbers,
    /// Messages whose outcome Redis confirmed to a worker.
    recorded: Numbers,
    done: i64,
    sum: i64,
}

/// Everything that happened, as far as it matters.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    all: BTreeMap<Source, Series>,
    attempts: HashSet<(Id, u32)>,
    jobs: Jobs,
    /// Attempts after the first whose handler returned, and those that were settled.
    handled_again: HashSet<(Id, u32)>,
    settled_again: HashMap<Id, u32>,
    recorded_again: HashMap<Id, u32>,
    /// The latest term of which Redis has accepted a message.
    latest: u64,
    failed: HashSet<Id>,
    /// Failed messages that the handler would not have failed.
    given_up: HashSet<Id>,
    taken: HashMap<Id, u32>,
    removed: HashSet<Id>,
    sendings: Sendings,
    /// Redis may have lost messages of terms up to this one.
    lossy: u64,
    /// A server that took over may lack what nobody was told: steps that were begun and forgotten are made again.
    pub(crate) forgets: bool,
    /// Messages that were made from the same key or the same failed message. One of each pair may have been forgotten.
    doubles: Vec<(Id, Id, String)>,
    /// The fleet does not always keep its ledger. Messages without an entry are judged by effects and counters.
    pub(crate) unledgered: bool,
    pub(crate) violations: Vec<Violation>,
    pub(crate) seen: Seen,
    /// Outcomes that Redis confirmed to a worker.
    pub(crate) confirmed: u64,
}

impl Checker {
    /// The next entry of a process's history.
    pub(crate) fn history(&mut self, who: &str, time: u64, entry: &Entry) {
        match entry {
            Entry::Make { term, seq, many } => {
                let book = self.all.entry(Source::Term(*term)).or_default();
                book.tried = book.tried.max(seq - 1 + many);
                let other = book.maker.get_or_insert_with(|| who.to_owned()).clone();
                if other != who {
                    let what = format!("term {term} was held by {other} and by {who}");
                    self.blame(Invariant::OneGenerator, what, vec![term.to_string()]);
                }
            }
            Entry::Start { id, attempt, again, maker, made } => {
                self.start(*id, *attempt, maker, *made);
                self.begins(*id, *attempt, *again, maker, *made, time);
                self.is_time_for(*id, time);
            }
            Entry::Asks { id, attempt, again } => self.asks(*id, *attempt, *again, time),
            Entry::Again { id, attempt } => self.runs_again(*id, *attempt),
            Entry::Cancels(id) => drop(self.jobs.cancels.insert(*id)),
            Entry::Cancelled(_) => self.seen.cancelled += 1,
            Entry::Declares(number) => self.declares(*number, time),
            Entry::Follows { id, of } => {
                let other = self.sendings.follows(*id, *of);
                self.added(*id, &id_text(*of), other);
            }
            Entry::End { id, attempt: 1, .. } => {
                self.all.entry(id.0).or_default().handled.put(id.1);
            }
            Entry::End { id, attempt, .. } => {
                self.handled_again.insert((*id, *attempt));
            }
            Entry::Recorded { id, attempt } => self.recorded(*id, *attempt),
            Entry::Sent { number, id, .. } => {
                self.jobs.sent(*number, *id);
                self.sendings.sent(*number, *id);
                self.all.entry(id.0).or_default().know(id.1);
            }
            Entry::Woke(_) => self.seen.woken += 1,
            Entry::ClaimLost(_) => self.seen.claims_lost += 1,
            Entry::Fenced(_) => self.seen.fenced += 1,
            Entry::Adopted { returned } => self.seen.adopted += returned,
            Entry::SessionLost => self.seen.sessions_lost += 1,
            Entry::DataLoss(_) => self.seen.loss_noticed += 1,
            Entry::Full => self.seen.full += 1,
            Entry::Removed(id) => drop(self.removed.insert(*id)),
            Entry::Came { id, of } => {
                let other = self.sendings.came(*id, *of);
                self.added(*id, &id_text(*of), other);
            }
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
        let name = id_text(id);
        let book = self.all.entry(id.0).or_default();
        book.know(id.1);
        let new = match attempt {
            1 => book.first_attempts.put(id.1),
            _ => self.attempts.insert((id, attempt)),
        };
        if matches!(id.0, Source::Term(_)) {
            book.first_made = Some(book.first_made.map_or(made, |first| first.min(made)));
            book.last_made = book.last_made.max((made, id.1));
            let other = book.maker.get_or_insert_with(|| maker.to_owned()).clone();
            if other != maker {
                let what = format!("{name} was made by {maker}, its term belongs to {other}");
                self.blame(Invariant::OneGenerator, what, vec![name.clone(), id.0.to_string()]);
            }
        } else if !matches!(id.0, Source::Entry(..)) {
            let other = self.sendings.started(id, maker);
            self.added(id, maker, other);
        }
        if !new && (self.forgot(id.0) || self.forgets) {
            self.seen.redone_after_loss += 1;
        } else if !new {
            let what = format!("attempt {attempt} at {name} was made twice");
            self.blame(Invariant::EachAttemptOnce, what, vec![name.clone()]);
        }
        self.seen.attempted_again += u64::from(attempt > 1);
    }

    /// Reports a violation if `other`, too, was made from the same key or the same failed message.
    fn added(&mut self, id: Id, maker: &str, other: Option<Id>) {
        if let Some(other) = other.filter(|_| self.keeps()) {
            if self.forgets {
                self.doubles.push((id, other, maker.to_owned()));
                return;
            }
            let names = [id, other].map(id_text);
            let what = format!("{maker} was added as {} and as {}", names[1], names[0]);
            self.blame(Invariant::AddedOnce, what, names.into());
        }
    }

    /// Did Redis lose what it knew of these messages?
    fn forgot(&self, source: Source) -> bool {
        match source {
            Source::Term(term) => term <= self.lossy,
            // The others have no order: each may be from before the loss.
            Source::Sender(_) | Source::Outcome(_) | Source::Entry(..) => !self.keeps(),
        }
    }

    /// Has Redis kept everything so far?
    fn keeps(&self) -> bool {
        self.seen.losses == 0
    }

    /// Redis confirmed to a worker that this outcome is recorded. It may confirm only one per
    /// message.
    fn recorded(&mut self, id: Id, attempt: u32) {
        let new = self.all.entry(id.0).or_default().recorded.put(id.1);
        self.confirmed += u64::from(new);
        if attempt != 1 {
            self.recorded_again.insert(id, attempt);
        }
        if !new && !self.forgot(id.0) {
            let what = format!("two outcomes of {} were confirmed as recorded", id_text(id));
            self.blame(Invariant::AnswersTrue, what, vec![id_text(id)]);
        }
    }

    /// The last message that Redis accepted. Terms never go back.
    pub(crate) fn accepted(&mut self, (term, seq): (u64, u64)) {
        let latest = self.latest.max(term);
        if term < latest && latest > self.lossy {
            let what = format!("{term}-{seq} was accepted after term {latest} had begun");
            let about = vec![format!("{term}-{seq}"), latest.to_string()];
            self.blame(Invariant::OneGenerator, what, about);
        }
        self.latest = latest;
        let book = self.all.entry(Source::Term(term)).or_default();
        book.accepted = book.accepted.max(seq);
    }

    /// The next entry of the ledger.
    pub(crate) fn settled(&mut self, settled: &Settled) {
        let (source, seq) = settled.id;
        let name = id_text(settled.id);
        let forgot = self.forgot(source);
        let book = self.all.entry(source).or_default();
        book.know(seq);
        if !book.settled.put(seq) {
            if forgot {
                self.seen.redone_after_loss += 1;
                return;
            }
            self.seen.settled_twice += 1;
            self.blame(Invariant::SettledOnce, format!("{name} was settled twice"), vec![name]);
            return;
        }
        self.seen.settled += 1;
        self.seen.sent += u64::from(!matches!(source, Source::Term(_)));
        self.seen.followed += u64::from(matches!(source, Source::Outcome(_)));
        self.seen.fired += u64::from(matches!(source, Source::Entry(..)));
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
        if settled.failed && self.jobs.cancels.contains(&settled.id) {
            return;
        }
        // Its last worker died while it held it.
        let may = self.may_be_given_up(settled.id, settled.attempt);
        let given_up = settled.failed && may && !is_failed(settled.id);
        if given_up {
            self.check_given_up(settled.id, settled.attempt);
            self.given_up.insert(settled.id);
        } else if settled.failed != is_failed(settled.id) {
            let what = format!("{name} has another outcome than its handler returned");
            self.blame(Invariant::NothingInvented, what, vec![name]);
        }
    }

    /// From now on anything may be lost, until [`is_kept_from_now`](Self::is_kept_from_now).
    pub(crate) fn may_lose(&mut self) {
        self.seen.losses += 1;
        self.lossy = u64::MAX;
    }

    /// Redis came back without all of its data: messages accepted before may be lost.
    pub(crate) fn data_lost(&mut self) {
        self.seen.losses += 1;
        self.is_kept_from_now();
    }

    /// Only what was accepted before may be lost.
    pub(crate) fn is_kept_from_now(&mut self) {
        let last = self.all.keys().rfind(|source| matches!(source, Source::Term(_)));
        if let Some(Source::Term(term)) = last {
            self.lossy = *term;
        }
        self.latest = 0;
    }

    /// What somebody was told and Redis forgot must be named.
    pub(crate) fn judge_names(&mut self, losses: &Losses) {
        for (who, Named { lost, named }) in losses.of_senders() {
            if lost > named {
                let what =
                    format!("{who} was told of {lost} messages that are lost, and named {named}");
                self.blame(Invariant::NoLossUnnamed, what, vec!["forgot".to_owned()]);
            }
        }
        let Named { lost, named } = losses.of_members();
        (self.seen.told_and_lost, self.seen.named) = (lost, named);
        if lost > named {
            let what =
                format!("{lost} steps are lost that members had heard of, {named} are named");
            self.blame(Invariant::NoLossUnnamed, what, vec!["reached".to_owned()]);
        }
    }

    pub(crate) fn blame(&mut self, invariant: Invariant, what: String, about: Vec<String>) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { invariant, what, about, history: Vec::new() });
        }
    }

    /// Nothing is broken at this moment: checks that counters and facts agree.
    pub(crate) fn quiet(&mut self, now: &Snapshot) {
        let added = now.count("generated") + now.count("sent");
        let counted = now.count("done") + now.count("failed");
        let settled = if self.unledgered { counted } else { now.settled as i64 };
        let there = (now.waiting + now.held + now.later) as i64 + settled;
        if added != there {
            let what = format!(
                "{added} were added; {} wait, {} are scheduled, {} are held, {settled} are settled",
                now.waiting, now.later, now.held
            );
            self.blame(Invariant::BooksBalance, what, Vec::new());
        }
        if now.state != now.count("generated") {
            let (state, made) = (now.state, now.count("generated"));
            let what =
                format!("the generators' state counts {state} messages, and {made} were generated");
            self.blame(Invariant::StateKept, what, Vec::new());
        }
        self.compare("claimed", now.count("claimed"), now.held as i64);
        self.compare("done + failed", counted, settled);
        for wrong in &now.duties {
            self.blame(Invariant::BooksBalance, wrong.clone(), Vec::new());
        }
    }

    fn compare(&mut self, name: &str, count: i64, fact: i64) {
        if count != fact {
            let what = format!("counter {name} is {count}, but should be {fact}");
            self.blame(Invariant::BooksBalance, what, Vec::new());
        }
    }

    /// Checks that every counter agrees with the ledger and the stores.
    fn count(&mut self, now: &Snapshot) {
        let Seen { settled, failed, sent, .. } = self.seen;
        let (settled, failed, sent) = (settled as i64, failed as i64, sent as i64);
        let again = self.sendings.put_back() as i64;
        self.compare("generated", now.count("generated"), settled - sent);
        self.compare("sent", now.count("sent"), sent);
        self.compare("requeued", now.count("requeued"), again);
        self.compare("done", now.count("done"), settled - failed);
        self.compare("failed", now.count("failed"), failed);
        let kept = failed - now.count("forgotten");
        self.compare("taken", now.count("taken"), kept - again - now.errors.len() as i64);
        self.compare("followed", now.count("followed"), self.seen.followed as i64);
        self.compare("fired", now.count("fired"), self.seen.fired as i64);
        for torn in &now.torn {
            self.blame(Invariant::BooksBalance, torn.clone(), Vec::new());
        }
    }
}

/// The broken promise, how it is broken, and the words to look for in the history.
type Found = (Invariant, String, Vec<String>);

impl Series {
    /// Records that this message exists.
    fn know(&mut self, seq: u64) {
        self.highest = self.highest.max(seq);
        self.known.put(seq);
    }

    /// The messages up to this number that have no outcome. A sender also uses up numbers without
    /// adding a message, so of a sender only messages that were seen count.
    fn missing(&self, source: Source, upto: u64) -> Box<dyn Iterator<Item = u64> + '_> {
        let unsettled = move |seq: &u64| *seq <= upto && !self.settled.has(*seq);
        match source {
            Source::Term(_) => Box::new((1..=upto).filter(unsettled)),
            _ => Box::new(self.known.iter().filter(unsettled)),
        }
    }
}

#[cfg(test)]
mod tests;
