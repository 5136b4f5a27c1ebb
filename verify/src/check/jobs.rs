//! What is promised about times, retries, periodic entries and follow-ups.
//!
//! **Invariant:** as in `check.rs`: nothing is blamed that was not promised. While the clock of Redis is wrong, no time is
//! judged.

use std::collections::{HashMap, HashSet};

use super::{Checker, Found};
use crate::history::{CatchUp, Id, Source, id_of, id_text};
use crate::life::{AGAIN_AFTER, Later, is_followed, is_noise, later, retries, snoozes};
use crate::member::ATTEMPTS_MAX;
use crate::promise::Invariant;
use crate::sent::{KEY, OF};

/// Times are noted a little before and after the step itself.
const SLACK_US: u64 = 2_000;
/// Wall clocks are corrected now and then.
const WALL_SLACK_US: u64 = 500_000;

/// A time in which the clock of Redis went evenly.
#[derive(Clone, Copy, Debug)]
struct Even {
    since: u64,
    /// What has to be added to our time, µs, to get the time of Redis since 1970.
    ahead_us: u64,
    until: u64,
}

impl Even {
    /// Does the clock of Redis show this second in it, and did the message of this second begin in it?
    fn shows(&self, second: u64, began: Option<&u64>) -> bool {
        let time = second * 1_000_000;
        self.since + self.ahead_us <= time
            && time <= self.until.saturating_add(self.ahead_us)
            && began.is_none_or(|began| self.since <= *began && *began <= self.until)
    }
}

/// What was seen of messages that run again, wait for a time, or follow others.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// Handlers that wanted another run: when, and how often the message had been retried and snoozed.
    asked: HashMap<(Id, u32), (u64, (u32, u32))>,
    /// Redis confirmed that the message runs again after this attempt.
    again: HashSet<(Id, u32)>,
    /// How often a message had been retried and snoozed when this attempt began.
    counted: HashMap<(Id, u32), (u32, u32)>,
    /// Messages that a sender wanted to cancel.
    pub(super) cancels: HashSet<Id>,
    /// Messages whose failures are not kept.
    noise: HashSet<Id>,
    /// When periodic entries were declared, by number.
    declared: HashMap<u32, u64>,
    /// When messages of periodic entries began.
    began: HashMap<Id, u64>,
    /// The times in which the clock of Redis went evenly.
    even: Vec<Even>,
    /// Since when the clock of Redis is wrong, and the times at which it was.
    clock_wrong: Option<u64>,
    clocks: Vec<(u64, u64)>,
}

impl Jobs {
    /// Was the clock of Redis always right from one time to the other?
    fn clock_is_right(&self, from: u64, to: u64) -> bool {
        let open = self.clock_wrong.is_some_and(|since| since <= to);
        !open && !self.clocks.iter().any(|(begin, end)| *begin <= to && from <= *end)
    }

    /// How often a message was retried and snoozed, if this attempt is the last that began.
    pub(super) fn run_again(&self, id: Id, attempt: u32) -> u32 {
        let (retried, snoozed) = self.counted.get(&(id, attempt)).copied().unwrap_or_default();
        retried + snoozed + u32::from(self.again.contains(&(id, attempt)))
    }

    /// A sender was told of its message: it is known of which kind it is, even if nobody ever begins with it.
    pub(super) fn sent(&mut self, number: u64, id: Id) {
        if is_noise(number) {
            self.noise.insert(id);
        }
    }

    /// Is this a message whose failure is not kept, if its handler fails it?
    pub(super) fn is_noise(&self, id: Id) -> bool {
        self.noise.contains(&id)
    }
}

impl Checker {
    /// The clock of Redis may be wrong from now on.
    pub(crate) fn clock_wrong(&mut self, now: u64) {
        self.jobs.clock_wrong.get_or_insert(now);
        if let Some(last) = self.jobs.even.last_mut() {
            last.until = last.until.min(now);
        }
    }

    /// It goes evenly again, though it may show another time than before. Was it wrong before?
    pub(crate) fn clock_right(&mut self, now: u64) -> bool {
        let since = self.jobs.clock_wrong.take();
        self.jobs.clocks.extend(since.map(|since| (since, now)));
        since.is_some()
    }

    /// At this time of ours, the clock of Redis shows this, µs since 1970.
    pub(crate) fn clock_shows(&mut self, now: u64, redis_us: u64) {
        let ahead_us = redis_us.saturating_sub(now);
        self.jobs.even.push(Even { since: now, ahead_us, until: u64::MAX });
    }

    /// A sender is about to declare the periodic entries with this number.
    pub(super) fn declares(&mut self, number: u32, time: u64) {
        self.jobs.declared.entry(number).or_insert(time);
    }

    /// A message of a periodic entry begins: its time has come, and is not from before the entry was there.
    pub(super) fn is_time_for(&mut self, id: Id, time: u64) {
        let Source::Entry(_, number) = id.0 else { return };
        self.jobs.began.entry(id).or_insert(time);
        let Some(&declared) = self.jobs.declared.get(&number) else { return };
        let even = self.jobs.even.iter().find(|it| it.since <= declared && time <= it.until);
        let Some(&Even { ahead_us, .. }) = even else { return };
        let (due, now) = (id.1 * 1_000_000, time + ahead_us);
        let name = id_text(id);
        if due > now + WALL_SLACK_US {
            let what = format!("{name} began {} ms before its time", (due - now) / 1000);
            self.blame(Invariant::NotBeforeItsTime, what, vec![name]);
        } else if due + WALL_SLACK_US < declared + ahead_us {
            let what = format!("{name} is for a time before its entry was declared");
            self.blame(Invariant::EntriesOnce, what, vec![name]);
        }
    }

    /// A message was given up in this attempt: as many workers as allowed must have died over it.
    pub(super) fn check_given_up(&mut self, id: Id, attempt: u32) {
        let Some(&(retried, snoozed)) = self.jobs.counted.get(&(id, attempt)) else { return };
        if attempt != ATTEMPTS_MAX + retried + snoozed && !self.forgot(id.0) {
            let name = id_text(id);
            let what = format!(
                "{name} was given up in attempt {attempt}, after {retried} retries and {snoozed} snoozes"
            );
            self.blame(Invariant::RetriedAsTold, what, vec![name]);
        }
    }

    /// A handler wants another run.
    pub(super) fn asks(&mut self, id: Id, attempt: u32, again: (u32, u32), time: u64) {
        self.jobs.asked.insert((id, attempt), (time, again));
    }

    /// Redis confirmed to a worker that the message runs again.
    pub(super) fn runs_again(&mut self, id: Id, attempt: u32) {
        self.seen.run_again += 1;
        let asked = self.jobs.asked.contains_key(&(id, attempt));
        if !self.jobs.again.insert((id, attempt)) && !self.forgot(id.0) {
            let what = format!(
                "attempt {attempt} at {} was confirmed twice to end with another run",
                id_text(id)
            );
            self.blame(Invariant::RetriedAsTold, what, vec![id_text(id)]);
        }
        if !asked {
            let what = format!(
                "{} runs again after attempt {attempt}, and nobody asked for that",
                id_text(id)
            );
            self.blame(Invariant::RetriedAsTold, what, vec![id_text(id)]);
        }
    }

    /// An attempt begins: is it one that may be made, and is it time?
    pub(super) fn begins(
        &mut self,
        id: Id,
        attempt: u32,
        again: (u32, u32),
        maker: &str,
        made: u64,
        time: u64,
    ) {
        let name = id_text(id);
        self.jobs.counted.insert((id, attempt), again);
        let (retried, snoozed) = again;
        if attempt.saturating_sub(retried).saturating_sub(snoozed) > ATTEMPTS_MAX {
            let what = format!("attempt {attempt} at {name} was made, one too many");
            self.blame(Invariant::EachAttemptOnce, what, vec![name.clone()]);
        }
        if retried > retries(id) || snoozed > snoozes(id) {
            let what = format!(
                "{name} was retried {retried} times and snoozed {snoozed} times, and should not"
            );
            self.blame(Invariant::RetriedAsTold, what, vec![name.clone()]);
        }
        let asked = attempt.checked_sub(1).and_then(|last| self.jobs.asked.get(&(id, last)));
        if let Some(&(asked, before)) = asked
            && retried + snoozed > before.0 + before.1
            && self.jobs.clock_is_right(asked, time)
        {
            let waited = time.saturating_sub(asked) + SLACK_US;
            if waited < AGAIN_AFTER.as_micros() as u64 {
                let what = format!("{name} was run again after {waited} µs, too early");
                self.blame(Invariant::NotBeforeItsTime, what, vec![name.clone()]);
            }
        }
        // What is put back to work is of the same kind.
        let of = maker.strip_prefix(OF).and_then(id_of);
        if of.is_some_and(|of| self.jobs.is_noise(of)) {
            self.jobs.noise.insert(id);
        }
        let number = maker.strip_prefix(KEY).and_then(|number| number.parse().ok());
        if let Some(number) = number {
            self.jobs.sent(number, id);
            if let Some((delay, Later::Waits | Later::Moved | Later::Cancelled)) = later(number) {
                self.seen.delayed += u64::from(attempt == 1);
                let waited = time.saturating_sub(made) + SLACK_US;
                if waited < delay.as_micros() as u64 && self.jobs.clock_is_right(made, time) {
                    let what =
                        format!("{name} was sent for {delay:?} later, and began after {waited} µs");
                    self.blame(Invariant::NotBeforeItsTime, what, vec![name]);
                }
            }
        }
    }

    /// Did workers die over it, so that nobody could say how it ended?
    pub(super) fn may_be_given_up(&self, id: Id, attempt: u32) -> bool {
        let most = retries(id) + snoozes(id);
        attempt >= ATTEMPTS_MAX && attempt - ATTEMPTS_MAX <= most
    }

    /// The last check: what was promised about runs, times and what follows.
    pub(super) fn finish_jobs(&mut self, found: &mut Vec<Found>) {
        self.retried(found);
        self.followed(found);
        self.fired(found);
    }

    /// Every message ran as often as its handler wanted, and every run that was promised came.
    fn retried(&self, found: &mut Vec<Found>) {
        let mut few = Vec::new();
        for (id, attempt) in &self.jobs.again {
            if self.forgot(id.0) || self.jobs.cancels.contains(id) {
                continue;
            }
            let settled = self.settled_again.get(id).is_some_and(|last| last > attempt);
            if !self.jobs.counted.contains_key(&(*id, attempt + 1)) && !settled {
                few.push((*id, format!("should run again after attempt {attempt}, and never did")));
            }
        }
        for (source, book) in self.all.iter().filter(|(source, _)| !self.forgot(**source)) {
            for seq in book.settled.iter() {
                let id = (*source, seq);
                let wanted = (retries(id), snoozes(id));
                let attempt = self.settled_again.get(&id).copied().unwrap_or(1);
                let given_up = self.given_up.contains(&id) || self.jobs.cancels.contains(&id);
                let had = self.jobs.counted.get(&(id, attempt)).copied();
                let died = self.failed.contains(&id) && self.may_be_given_up(id, attempt);
                let died = died && !book.recorded.has(seq);
                if !given_up && !died && had != Some(wanted) {
                    few.push((id, format!("ended in attempt {attempt} after {had:?} retries and snoozes, not {wanted:?}")));
                }
            }
        }
        for (id, what) in few.into_iter().take(5) {
            let name = id_text(id);
            found.push((Invariant::RetriedAsTold, format!("{name} {what}"), vec![name]));
        }
    }

    /// Every outcome with a follow-up has one, and no other has.
    fn followed(&self, found: &mut Vec<Found>) {
        let mut say = |id: Id, what: &str| {
            if found.len() < 50 {
                let name = id_text(id);
                found.push((Invariant::FollowUpsOnce, format!("{name} {what}"), vec![name]));
            }
        };
        for (source, book) in self.all.iter().filter(|(source, _)| !self.forgot(**source)) {
            for id in book.settled.iter().map(|seq| (*source, seq)) {
                let ended = book.recorded.has(id.1);
                if ended && is_followed(id) && !self.sendings.is_followed(id) {
                    say(id, "has an outcome, and what should follow it is missing");
                }
            }
        }
        for of in self.sendings.followed().filter(|of| !self.forgot(of.0)) {
            let settled = self.all.get(&of.0).is_some_and(|book| book.settled.has(of.1));
            if !settled || !is_followed(of) || self.given_up.contains(&of) {
                say(of, "is followed by another message, and should not");
            }
        }
    }

    /// An entry that makes up for all times has none missing.
    fn fired(&self, found: &mut Vec<Found>) {
        for (source, book) in &self.all {
            if !matches!(source, Source::Entry(CatchUp::All, _)) || self.forgot(*source) {
                continue;
            }
            let all: Vec<u64> = book.known.iter().collect();
            for pair in all.windows(2) {
                // These are times of Redis. Where its clock was wrong, times may be left out.
                let shows = |even: &Even, second| {
                    even.shows(second, self.jobs.began.get(&(*source, second)))
                };
                let even = |even: &Even| shows(even, pair[0]) && shows(even, pair[1]);
                if pair[1] > pair[0] + 1 && self.jobs.even.iter().any(even) {
                    let what = format!("{source} did not fire between {} and {}", pair[0], pair[1]);
                    found.push((Invariant::EntriesOnce, what, vec![source.to_string()]));
                }
            }
        }
    }
}
