//! [`Restart`] and [`AttemptRecord`]: decisions after a failure. Nothing here waits or acts.
//!
//! **Invariant:** every failure leads to exactly one of these: a retry of the event, a new handler
//! and a retry of the event, a dead letter and the next event, the end. A subscriber gets at most
//! as many new handlers as its budget allows.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::run::handler::Remedy;

/// Pauses that double from the first to the longest. Each is shortened at random by up to half.
///
/// ```
/// use artel_hub::{Backoff, Restart};
/// use std::time::Duration;
///
/// let backoff = Backoff::exponential(Duration::from_millis(10), Duration::from_secs(5));
/// assert_eq!(backoff, Backoff::default());
/// let patient = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(60));
/// assert_ne!(Restart::times(20).backoff(patient), Restart::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub(crate) first: Duration,
    pub(crate) most: Duration,
}

impl Backoff {
    /// Starts at `first` and doubles up to `most`.
    pub fn exponential(first: Duration, most: Duration) -> Backoff {
        Backoff { first, most: most.max(first) }
    }

    /// The pause after failed attempt number `attempt`, from 1. `chance` is between 0 and 1.
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

/// How many new handlers a subscriber may get, and how soon.
///
/// ```
/// use artel_hub::{Delivery, EventHub, HandlerError, Restart, State, Topic};
/// const LINES: Topic<u32> = Topic::new("lines");
///
/// let hub = EventHub::new();
/// let fragile = hub
///     .subscribe(&LINES)
///     .attempts(1)
///     .restart(Restart::times(1))
///     .inline(|_: Delivery<'_, u32>| Err(HandlerError::fatal("connection lost")))?;
/// hub.blocking_publish(&LINES, 1)?; // gets a new handler
/// hub.blocking_publish(&LINES, 2)?; // the budget is spent
/// assert_eq!((fragile.stats().restarts, fragile.stats().state), (1, State::Failed));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    pub(crate) times: u32,
    pub(crate) within: Duration,
    pub(crate) backoff: Backoff,
}

impl Restart {
    /// No restarts: the first panic or fatal error stops the subscriber.
    pub fn never() -> Restart {
        Restart::times(0)
    }

    /// At most this many restarts per minute, or per [`Restart::within`]. An event that makes its
    /// handler panic costs one restart per attempt.
    pub fn times(times: u32) -> Restart {
        Restart { times, within: Duration::from_secs(60), backoff: Backoff::default() }
    }

    /// The period in which restarts are counted.
    pub fn within(mut self, within: Duration) -> Restart {
        self.within = within;
        self
    }

    /// The pauses before restarts and before retries of one event.
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

/// How many handlers of one subscriber may hang at the same time, whatever its budget.
const OUT_MAX: u32 = 64;

/// The limits of one subscriber, and its recent restarts. Shared by all its runners.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The maximum number of attempts per event.
    attempts_max: u32,
    /// `None` for the default.
    restart: Option<Box<Restart>>,
    #[expect(clippy::box_collection, reason = "most have none, and there may be very many")]
    restarts: Option<Box<VecDeque<Instant>>>,
}

impl Budget {
    pub(crate) fn new(restart: Restart, attempts_max: u32) -> Budget {
        let restart = (restart != Restart::default()).then(|| Box::new(restart));
        Budget { attempts_max, restart, restarts: None }
    }

    fn restart(&self) -> Restart {
        self.restart.as_deref().copied().unwrap_or_default()
    }

    /// The pause after this many failures in a row.
    pub(crate) fn pause(&self, failures: u32, chance: f64) -> Duration {
        self.restart().backoff.pause(failures, chance)
    }

    /// Uses up one restart. `false` if none is left.
    fn spend(&mut self, now: Instant) -> bool {
        let Restart { times, within, .. } = self.restart();
        let restarts = self.restarts.get_or_insert_default();
        while restarts.front().is_some_and(|then| now.duration_since(*then) > within) {
            restarts.pop_front();
        }
        if restarts.len() >= times as usize {
            return false;
        }
        restarts.push_back(now);
        true
    }

    /// A runner hangs and was replaced; `out` replaced runners have not returned. Returns the pause
    /// before the next runner, or `None` if there may be no more. The number of hanging runners is
    /// limited, however much time passes between them.
    pub(crate) fn replaced(&mut self, out: u32, now: Instant, chance: f64) -> Option<Duration> {
        let lately = self.restarts.as_ref().map_or(0, |restarts| restarts.len() as u32);
        let most = self.restart().times.min(OUT_MAX);
        (out <= most && self.spend(now)).then(|| self.pause(lately + 1, chance))
    }
}

/// The failures of the current events of one runner. Boxed: most runners have none, and there may
/// be very many runners.
#[derive(Debug, Default)]
pub(crate) struct AttemptRecord {
    trouble: Option<Box<Trouble>>,
}

#[derive(Debug, Default)]
struct Trouble {
    /// Restarts in a row without a handled event in between.
    in_a_row: u32,
    /// The events that failed and are still to be handled or committed, and how often each failed.
    /// A handler that collects may have several, because all held events are delivered to it again.
    culprits: Vec<(usize, u32)>,
}

/// The decision after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Retry the event after this pause.
    Again(Duration),
    /// The event becomes a dead letter. The handler continues.
    Letter,
    /// A new handler after this pause. If `letter`, the event becomes a dead letter.
    Anew { pause: Duration, letter: bool },
    /// The budget is spent.
    End,
}

impl AttemptRecord {
    /// Whether no failed event is still to be retried. This is the usual case.
    #[inline]
    pub(crate) fn is_clean(&self) -> bool {
        self.trouble.is_none()
    }

    /// The number of the next attempt at this event, from 1.
    #[inline]
    pub(crate) fn attempt(&self, event: usize) -> u32 {
        let mut culprits = self.trouble.iter().flat_map(|trouble| &trouble.culprits);
        culprits.find(|(culprit, _)| *culprit == event).map_or(1, |(_, failed)| failed + 1)
    }

    /// Records that this event is finished but was not handled.
    #[inline]
    pub(crate) fn done_with(&mut self, event: usize) {
        if let Some(trouble) = &mut self.trouble {
            trouble.culprits.retain(|(culprit, _)| *culprit != event);
        }
    }

    /// Records that this event was handled. This does not count as progress while a failed event is
    /// still to be retried.
    #[inline]
    pub(crate) fn handled(&mut self, event: usize) {
        self.done_with(event);
        self.trouble.take_if(|trouble| trouble.culprits.is_empty());
    }

    /// Records that a handler committed all held events, so that none of them is delivered again.
    pub(crate) fn committed(&mut self) {
        self.trouble = None;
    }

    /// Decides after a handler failed at an event.
    pub(crate) fn failed(
        &mut self,
        event: usize,
        remedy: Remedy,
        budget: &mut Budget,
        now: Instant,
        chance: f64,
    ) -> Verdict {
        let failed = self.attempt(event);
        self.done_with(event);
        self.trouble.get_or_insert_default().culprits.push((event, failed));
        let last = failed >= budget.attempts_max;
        match remedy {
            Remedy::Skip => Verdict::Letter,
            Remedy::Retry if last => Verdict::Letter,
            Remedy::Retry => Verdict::Again(budget.pause(failed, chance)),
            Remedy::Fatal => self.anew(last, budget, now, chance),
            Remedy::Late => self.anew(true, budget, now, chance),
        }
    }

    /// Decides after the factory or a commit failed. No event is to blame.
    pub(crate) fn not_made(&mut self, budget: &mut Budget, now: Instant, chance: f64) -> Verdict {
        self.anew(false, budget, now, chance)
    }

    fn anew(&mut self, letter: bool, budget: &mut Budget, now: Instant, chance: f64) -> Verdict {
        if !budget.spend(now) {
            return Verdict::End;
        }
        let trouble = self.trouble.get_or_insert_default();
        trouble.in_a_row += 1;
        Verdict::Anew { pause: budget.pause(trouble.in_a_row, chance), letter }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(times: u32, attempts: u32) -> (AttemptRecord, Budget, Instant) {
        (AttemptRecord::default(), Budget::new(Restart::times(times), attempts), Instant::now())
    }

    #[test]
    fn an_event_that_fails_too_often_is_a_dead_letter() {
        let (mut record, mut budget, now) = record(5, 3);
        let mut failed =
            |record: &mut AttemptRecord, remedy| record.failed(7, remedy, &mut budget, now, 0.0);
        assert!(matches!(failed(&mut record, Remedy::Retry), Verdict::Again(_)));
        assert_eq!(record.attempt(7), 2);
        assert!(matches!(failed(&mut record, Remedy::Fatal), Verdict::Anew { letter: false, .. }));
        assert_eq!(failed(&mut record, Remedy::Retry), Verdict::Letter);
        record.done_with(7);
        assert_eq!(record.attempt(7), 1);
        assert_eq!(failed(&mut record, Remedy::Skip), Verdict::Letter);
        record.done_with(7);
        assert!(matches!(failed(&mut record, Remedy::Late), Verdict::Anew { letter: true, .. }));
    }

    #[test]
    fn the_budget_counts_what_happened_lately() {
        let (mut record, mut budget, now) = record(2, 9);
        for _ in 0..2 {
            let verdict = record.failed(7, Remedy::Fatal, &mut budget, now, 0.0);
            assert!(matches!(verdict, Verdict::Anew { .. }));
        }
        assert_eq!(record.failed(7, Remedy::Fatal, &mut budget, now, 0.0), Verdict::End);
        assert_eq!(budget.replaced(1, now, 0.0), None);
        let later = now + Duration::from_secs(61);
        assert!(matches!(record.not_made(&mut budget, later, 0.0), Verdict::Anew { .. }));
        assert!(budget.replaced(1, later, 0.0).is_some());
        let much_later = later + Duration::from_secs(61);
        assert_eq!(budget.replaced(3, much_later, 0.0), None, "too many hang");
        let mut never = Budget::new(Restart::never(), 3);
        assert_eq!(AttemptRecord::default().not_made(&mut never, now, 0.0), Verdict::End);
    }

    #[test]
    fn pauses_double_and_differ() {
        let backoff = Backoff::exponential(Duration::from_millis(10), Duration::from_millis(50));
        let pauses: Vec<_> = (1..=5).map(|n| backoff.pause(n, 0.0).as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 50, 50]);
        assert_eq!(backoff.pause(1, 1.0), Duration::from_millis(5));
        assert_eq!(backoff.pause(u32::MAX, 0.0), Duration::from_millis(50));
        let (mut record, mut budget, now) = record(9, 9);
        record.failed(7, Remedy::Fatal, &mut budget, now, 0.0);
        record.handled(7);
        let Verdict::Anew { pause, .. } = record.failed(7, Remedy::Fatal, &mut budget, now, 0.0)
        else {
            panic!()
        };
        assert_eq!(pause, Duration::from_millis(10), "an event handled between starts over");
    }

    /// Events that a collecting handler gets again before the culprit are not progress.
    #[test]
    fn a_culprit_stays_one_while_others_are_handled() {
        let (mut record, mut budget, now) = record(9, 3);
        for round in 1..=2 {
            record.handled(1);
            record.handled(2);
            let verdict = record.failed(7, Remedy::Fatal, &mut budget, now, 0.0);
            let pause = Duration::from_millis(10 * round);
            assert_eq!(verdict, Verdict::Anew { pause, letter: false });
        }
        assert_eq!((record.attempt(1), record.attempt(7)), (1, 3));
        assert!(matches!(
            record.failed(7, Remedy::Fatal, &mut budget, now, 0.0),
            Verdict::Anew { letter: true, .. }
        ));
    }

    /// Two events that each fail once: the first is remembered when the second fails.
    #[test]
    fn every_culprit_is_remembered() {
        let (mut record, mut budget, now) = record(9, 3);
        for culprit in [1, 2] {
            record.failed(culprit, Remedy::Fatal, &mut budget, now, 0.0);
        }
        assert_eq!((record.attempt(1), record.attempt(2)), (2, 2));
        record.committed();
        assert!(record.is_clean() && record.attempt(1) == 1);
    }
}
