//! [`Restart`] and [`Attempts`]: what is decided after a failure. Nothing here waits or acts.
//!
//! **Invariant:** every failure leads to exactly one of: the same event again, a new handler and
//! the same event again, a dead letter and the next event, the end. A handler is made anew at most
//! as often as its budget says.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::handler::Remedy;

/// Pauses that double from the first to the longest, each shortened by up to half by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub(crate) first: Duration,
    pub(crate) most: Duration,
}

impl Backoff {
    /// From `first`, doubling, to `most`.
    pub fn exponential(first: Duration, most: Duration) -> Backoff {
        Backoff { first, most: most.max(first) }
    }

    /// The pause before attempt number `attempt` (the second is 1); `chance` is from 0 to 1.
    pub(crate) fn pause(&self, attempt: u32, chance: f64) -> Duration {
        let doubled = 2u32.saturating_pow(attempt.saturating_sub(1).min(20));
        let pause = self.first.saturating_mul(doubled).min(self.most);
        pause.mul_f64(1.0 - chance.clamp(0.0, 1.0) / 2.0)
    }
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::exponential(Duration::from_millis(10), Duration::from_secs(5))
    }
}

/// How often a handler may be made anew, and how quickly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    pub(crate) times: u32,
    pub(crate) within: Duration,
    pub(crate) backoff: Backoff,
}

impl Restart {
    /// Never: the first panic or fatal error stops the subscriber.
    pub fn never() -> Restart {
        Restart::times(0)
    }

    /// This often within a minute, or within what [`Restart::within`] says. An event that makes its
    /// handler panic costs a restart for each of its attempts.
    pub fn times(times: u32) -> Restart {
        Restart { times, within: Duration::from_secs(60), backoff: Backoff::default() }
    }

    /// The time in which restarts are counted.
    pub fn within(mut self, within: Duration) -> Restart {
        self.within = within;
        self
    }

    /// The pauses before restarts, and before retries of one event.
    pub fn backoff(mut self, backoff: Backoff) -> Restart {
        self.backoff = backoff;
        self
    }
}

impl Default for Restart {
    fn default() -> Restart {
        Restart::times(20)
    }
}

/// What has gone wrong with one subscriber so far.
#[derive(Debug)]
pub(crate) struct Record {
    /// Unless it is the usual one.
    restart: Option<Box<Restart>>,
    /// How often one event is tried.
    attempts_max: u32,
    /// The event that failed last and is to be tried again, 0 if none, and how often it did. Others
    /// may be handled before it is its turn again.
    culprit: usize,
    failed: u32,
    #[expect(clippy::box_collection, reason = "most have none, and there may be very many")]
    restarts: Option<Box<VecDeque<Instant>>>,
    /// Restarts in a row, without an event handled between.
    in_a_row: u32,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The same event again, after this pause.
    Again(Duration),
    /// The event is a dead letter; the handler goes on.
    Letter,
    /// A new handler after this pause; the event is a dead letter if `letter`.
    Anew { pause: Duration, letter: bool },
    /// The budget is spent.
    End,
}

impl Record {
    pub(crate) fn new(restart: Restart, attempts_max: u32) -> Record {
        let restart = (restart != Restart::default()).then(|| Box::new(restart));
        Record { restart, attempts_max, culprit: 0, failed: 0, restarts: None, in_a_row: 0 }
    }

    fn restart(&self) -> Restart {
        self.restart.as_deref().copied().unwrap_or_default()
    }

    /// The pause after this many failures in a row that no event is to blame for.
    pub(crate) fn pause(&self, failures: u32, chance: f64) -> Duration {
        self.restart().backoff.pause(failures, chance)
    }

    /// Nothing failed that is still to be tried again: the usual case.
    #[inline]
    pub(crate) fn is_clean(&self) -> bool {
        self.culprit == 0 && self.in_a_row == 0
    }

    /// Which attempt at this event the next is, from 1.
    #[inline]
    pub(crate) fn attempt(&self, event: usize) -> u32 {
        if self.culprit == event { self.failed + 1 } else { 1 }
    }

    /// This event is done with, and was not handled.
    #[inline]
    pub(crate) fn done_with(&mut self, event: usize) {
        if self.culprit == event {
            self.culprit = 0;
        }
    }

    /// This event was handled. That is no progress while one that failed is still to come.
    #[inline]
    pub(crate) fn handled(&mut self, event: usize) {
        self.done_with(event);
        if self.culprit == 0 {
            self.in_a_row = 0;
        }
    }

    /// A handler that collects has committed.
    pub(crate) fn committed(&mut self) {
        self.in_a_row = 0;
    }

    /// The handler failed at an event.
    pub(crate) fn failed(
        &mut self,
        event: usize,
        remedy: Remedy,
        now: Instant,
        chance: f64,
    ) -> Verdict {
        self.failed = self.attempt(event);
        self.culprit = event;
        let last = self.failed >= self.attempts_max;
        match remedy {
            Remedy::Skip => Verdict::Letter,
            Remedy::Retry if last => Verdict::Letter,
            Remedy::Retry => Verdict::Again(self.restart().backoff.pause(self.failed, chance)),
            Remedy::Fatal => self.anew(last, now, chance),
        }
    }

    /// The factory itself failed: no event is to blame.
    pub(crate) fn not_made(&mut self, now: Instant, chance: f64) -> Verdict {
        self.anew(false, now, chance)
    }

    fn anew(&mut self, letter: bool, now: Instant, chance: f64) -> Verdict {
        let Restart { times, within, .. } = self.restart();
        let restarts = self.restarts.get_or_insert_default();
        while restarts.front().is_some_and(|then| now.duration_since(*then) > within) {
            restarts.pop_front();
        }
        if restarts.len() >= times as usize {
            return Verdict::End;
        }
        restarts.push_back(now);
        self.in_a_row += 1;
        Verdict::Anew { pause: self.restart().backoff.pause(self.in_a_row, chance), letter }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(times: u32, attempts: u32) -> Record {
        Record::new(Restart::times(times), attempts)
    }

    #[test]
    fn an_event_that_fails_too_often_is_a_dead_letter() {
        let (mut record, now) = (record(5, 3), Instant::now());
        assert!(matches!(record.failed(7, Remedy::Retry, now, 0.0), Verdict::Again(_)));
        assert_eq!(record.attempt(7), 2);
        assert!(matches!(
            record.failed(7, Remedy::Fatal, now, 0.0),
            Verdict::Anew { letter: false, .. }
        ));
        assert_eq!(record.failed(7, Remedy::Retry, now, 0.0), Verdict::Letter);
        record.done_with(7);
        assert_eq!(record.attempt(7), 1);
        assert_eq!(record.failed(7, Remedy::Skip, now, 0.0), Verdict::Letter);
    }

    #[test]
    fn the_budget_counts_what_happened_lately() {
        let (mut record, now) = (record(2, 9), Instant::now());
        for _ in 0..2 {
            assert!(matches!(record.failed(7, Remedy::Fatal, now, 0.0), Verdict::Anew { .. }));
        }
        assert_eq!(record.failed(7, Remedy::Fatal, now, 0.0), Verdict::End);
        let later = now + Duration::from_secs(61);
        assert!(matches!(record.not_made(later, 0.0), Verdict::Anew { .. }));
        assert_eq!(Record::new(Restart::never(), 3).not_made(now, 0.0), Verdict::End);
    }

    #[test]
    fn pauses_double_and_differ() {
        let backoff = Backoff::exponential(Duration::from_millis(10), Duration::from_millis(50));
        let pauses: Vec<_> = (1..=5).map(|n| backoff.pause(n, 0.0).as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 50, 50]);
        assert_eq!(backoff.pause(1, 1.0), Duration::from_millis(5));
        assert_eq!(backoff.pause(u32::MAX, 0.0), Duration::from_millis(50));
        let mut record = record(9, 9);
        let now = Instant::now();
        record.failed(7, Remedy::Fatal, now, 0.0);
        record.handled(7);
        let Verdict::Anew { pause, .. } = record.failed(7, Remedy::Fatal, now, 0.0) else {
            panic!()
        };
        assert_eq!(pause, Duration::from_millis(10), "an event handled between starts over");
    }

    /// A handler that collects is given its events again: those before the culprit are no progress.
    #[test]
    fn a_culprit_stays_one_while_others_are_handled() {
        let (mut record, now) = (record(9, 3), Instant::now());
        for round in 1..=2 {
            record.handled(1);
            record.handled(2);
            let verdict = record.failed(7, Remedy::Fatal, now, 0.0);
            let pause = Duration::from_millis(10 * round);
            assert_eq!(verdict, Verdict::Anew { pause, letter: false });
        }
        assert_eq!((record.attempt(1), record.attempt(7)), (1, 3));
        assert!(matches!(
            record.failed(7, Remedy::Fatal, now, 0.0),
            Verdict::Anew { letter: true, .. }
        ));
    }
}
