//! [`Policy`]: what follows when a message does not work, as a pure function.
//!
//! **Invariant:** a verdict is final. An accident is retried as often as its kind allows, and no more. Retries, snoozes and
//! dead workers are counted apart, so a snooze or a dead worker never uses up a retry.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::cause::Cause;
use crate::config::Config;
use crate::message::Tries;
use crate::outcome::{Failure, How, Outcome, Retry, Snooze};

/// How often a handler may ask for a retry if nobody said how often.
const RETRIES_ASKED: u32 = 10;
/// How often a message waits for a member that knows its kind.
const KIND_WAITS: u32 = 10;

/// The options of a kind, or of everything else.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    /// How often a message is retried, if that was set.
    pub(crate) retries: Option<u32>,
    pub(crate) backoff: Backoff,
    pub(crate) timeout: Duration,
    /// Failed messages are not kept.
    pub(crate) forget_failed: bool,
    /// How many of them this process handles at the same time, if that is bounded.
    pub(crate) limit: Option<Limit>,
}

/// How many messages of a kind a process handles at the same time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Limit {
    /// Which kind it is.
    pub(crate) kind: usize,
    pub(crate) most: usize,
}

impl Policy {
    /// The policy for messages without a kind of their own.
    pub(crate) fn rest(config: &Config) -> Policy {
        Policy {
            retries: config.retries,
            backoff: config.backoff.clone(),
            timeout: config.handler_timeout,
            forget_failed: false,
            limit: None,
        }
    }

    /// How often an accident is retried.
    pub(super) fn accidents(&self, own: Option<u32>) -> u32 {
        own.or(self.retries).unwrap_or(0)
    }

    /// What becomes of a run that ended like this. `own` is the number of retries that the message itself asks for, `random`
    /// is between 0 and 1.
    pub(super) fn decide(
        &self,
        mut outcome: Outcome,
        tries: Tries,
        own: Option<u32>,
        random: f64,
    ) -> Outcome {
        let Some(how) = outcome.how_mut() else { return outcome };
        let (most, reason, asked, cause) = match how {
            How::Done => return outcome,
            How::Snooze(_) => return outcome.without_follow_ups(),
            // A rolling deployment sends before all members know a kind. That is no retry: its handler has not seen it.
            How::Failed(failure) if failure.cause == Cause::Kind && own != Some(0) => {
                if tries.waits < KIND_WAITS {
                    let after = self.backoff.delay(tries.waits + 1, random);
                    let reason = std::mem::take(&mut failure.reason);
                    *how = How::Snooze(Snooze { after, reason: Some(reason) });
                } else {
                    failure.is_kept = !self.forget_failed;
                }
                return outcome;
            }
            How::Retry(Retry { reason, after }) => {
                let most = own.or(self.retries).unwrap_or(RETRIES_ASKED);
                (most, std::mem::take(reason), *after, Cause::Retries)
            }
            How::Failed(failure) => {
                let most = if failure.is_verdict { 0 } else { self.accidents(own) };
                if most == 0 {
                    failure.is_kept = !self.forget_failed;
                    return outcome;
                }
                (most, std::mem::take(&mut failure.reason), None, failure.cause)
            }
        };
        *how = if tries.retries < most {
            let retry = tries.retries + 1;
            let after = asked.unwrap_or_else(|| self.backoff.delay(retry, random));
            How::Retry(Retry { reason, after: Some(after) })
        } else {
            let times = if most == 1 { "retry" } else { "retries" };
            let reason = format!("after {most} {times}: {reason}");
            let (is_verdict, is_kept) = (true, !self.forget_failed);
            How::Failed(Failure { cause, reason, is_verdict, is_kept })
        };
        // What follows belongs to the end: while the message runs again, nothing follows.
        match outcome.is_retry() {
            true => outcome.without_follow_ups(),
            false => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(retries: Option<u32>) -> Policy {
        Policy {
            retries,
            backoff: Backoff::DEFAULT,
            timeout: Duration::from_secs(1),
            forget_failed: false,
            limit: None,
        }
    }

    fn tries(retries: u32) -> Tries {
        Tries { runs: retries + 4, retries, snoozes: 2, waits: 0 }
    }

    fn decided(policy: &Policy, outcome: Outcome, retries: u32, own: Option<u32>) -> Outcome {
        policy.decide(outcome, tries(retries), own, 0.0)
    }

    #[test]
    fn a_verdict_is_never_retried() {
        let decided = decided(&policy(Some(8)), Outcome::failed("no"), 0, Some(9));
        assert_eq!((decided.cause(), decided.reason()), (Some(Cause::Handler), Some("no")));
        let decode = Outcome::failed_by(Cause::Decode, "not JSON");
        assert!(!self::decided(&policy(Some(8)), decode, 0, None).is_retry());
    }

    #[test]
    fn an_accident_is_retried_as_often_as_its_kind_allows() {
        let accident = || Outcome::accident(Cause::Timeout, "slow");
        assert!(!decided(&policy(None), accident(), 0, None).is_retry(), "not by default");
        for retries in 0..3 {
            assert!(decided(&policy(Some(3)), accident(), retries, None).is_retry());
        }
        let over = decided(&policy(Some(3)), accident(), 3, None);
        assert_eq!(
            (over.cause(), over.reason()),
            (Some(Cause::Timeout), Some("after 3 retries: slow"))
        );
        // The message's own number counts before that of its kind.
        assert!(decided(&policy(Some(3)), accident(), 3, Some(4)).is_retry());
        let once = decided(&policy(Some(3)), accident(), 1, Some(1));
        assert_eq!(once.reason(), Some("after 1 retry: slow"));
        assert_eq!(decided(&policy(Some(3)), accident(), 0, Some(0)).reason(), Some("slow"));
    }

    #[test]
    fn a_handler_may_ask_for_ten_retries_unless_its_kind_says_otherwise() {
        let asks = || Outcome::retry("busy");
        assert!(decided(&policy(None), asks(), 9, None).is_retry());
        let over = decided(&policy(None), asks(), 10, None);
        assert_eq!(
            (over.cause(), over.reason()),
            (Some(Cause::Retries), Some("after 10 retries: busy"))
        );
        assert!(!decided(&policy(Some(2)), asks(), 2, None).is_retry());
        assert!(!decided(&policy(Some(0)), asks(), 0, None).is_retry());
    }

    #[test]
    fn a_kind_without_a_handler_waits_for_a_member_that_knows_it() {
        let unknown = || Outcome::failed_by(Cause::Kind, "no handler");
        // Not a retry: its handler has not seen it, so none is used up.
        assert!(decided(&policy(Some(1)), unknown(), 1, None).is_snooze());
        let often = Tries { runs: 11, waits: 10, ..Tries::FIRST };
        let over = policy(None).decide(unknown(), often, None, 0.0);
        assert_eq!(over.cause(), Some(Cause::Kind));
        // What its handler asked for does not count, and does not make it wait longer.
        let polled = Tries { runs: 99, snoozes: 98, ..Tries::FIRST };
        match policy(None).decide(unknown(), polled, None, 0.0).into_how() {
            How::Snooze(snooze) => assert_eq!(snooze.after, Duration::from_secs(5)),
            other => panic!("{other:?}"),
        }
        assert_eq!(decided(&policy(None), unknown(), 0, Some(0)).cause(), Some(Cause::Kind));
    }

    #[test]
    fn the_delay_is_the_one_that_was_asked_for_or_that_of_the_back_off() {
        let after = |outcome: Outcome| match outcome.into_how() {
            How::Retry(retry) => retry.after,
            other => panic!("{other:?}"),
        };
        let asked = Outcome::retry("busy").after(Duration::from_secs(77));
        assert_eq!(after(decided(&policy(None), asked, 4, None)), Some(Duration::from_secs(77)));
        let third = decided(&policy(None), Outcome::retry("busy"), 2, None);
        assert_eq!(after(third), Some(Duration::from_secs(20)));
    }

    #[test]
    fn nothing_follows_while_a_message_runs_again_and_all_of_it_when_it_ends() {
        let accident = || Outcome::accident(Cause::Handler, "oh").then("next");
        assert_eq!(decided(&policy(Some(1)), accident(), 0, None).messages().count(), 0);
        assert_eq!(decided(&policy(Some(1)), accident(), 1, None).messages().count(), 1);
        let asks = || Outcome::retry("busy").then("next");
        assert_eq!(decided(&policy(Some(1)), asks(), 0, None).messages().count(), 0);
        assert_eq!(decided(&policy(Some(1)), asks(), 1, None).messages().count(), 1);
        let snooze = Outcome::snooze(Duration::from_secs(9)).then("next");
        assert_eq!(decided(&policy(None), snooze, 0, None).messages().count(), 0);
    }

    #[test]
    fn a_snooze_is_never_counted_and_a_forgotten_failure_is_not_kept() {
        let snooze = decided(&policy(Some(0)), Outcome::snooze(Duration::from_secs(9)), 90, None);
        assert!(snooze.is_snooze());
        let policy = Policy { forget_failed: true, ..policy(None) };
        for failed in [Outcome::failed("no"), Outcome::accident(Cause::Handler, "oh")] {
            match decided(&policy, failed, 0, None).into_how() {
                How::Failed(failure) => assert!(!failure.is_kept),
                other => panic!("{other:?}"),
            }
        }
    }
}
