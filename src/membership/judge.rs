//! The decisions of a session, as pure functions of times and ranks.
//!
//! **Invariant:** nothing here reads a clock or speaks to Redis.

use std::time::Duration;

use crate::clock::Moment;

/// How often the members that watch over the fleet look.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// If nobody has looked for this long, the next member that notices it looks. With a short lease this
/// time is shorter, so that the gap stays well below half a lease. After half a lease the judge must
/// start again.
const LOOK_OVERDUE: Duration = Duration::from_millis(300);
/// How many of the lowest ranks watch, in addition to the generator.
const WATCHERS: usize = 2;

/// What a session sends next.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Beat {
    /// Its reply refreshes the session.
    Heartbeat,
    /// Read-only: "am I still a member?".
    Question,
}

/// A heartbeat while the session is trusted, or once after a fresh answer to the question. Otherwise
/// the question.
pub(super) fn beat(
    now: Moment,
    trusted_until: Moment,
    confirmed: Option<Moment>,
    every: Duration,
) -> Beat {
    let fresh = confirmed.is_some_and(|sent| now.since(sent) <= every);
    if now < trusted_until || fresh { Beat::Heartbeat } else { Beat::Question }
}

/// When the next heartbeat is due, with this random number: a little sooner than it must be, so that members do not march in
/// step after all of them were put off at the same time.
pub(super) fn next_beat(every: Duration, random: u32) -> Duration {
    every - every.mul_f64(f64::from(random) / f64::from(u32::MAX) / 10.0)
}

/// Is this member one of those that look every [`LOOK_EVERY`]?
pub(super) fn watches(leads: bool, rank: usize) -> bool {
    leads || rank < WATCHERS
}

/// Within which time this member looks: one that watches soon; one that only guesses its rank the later, the higher its rank
/// seems to be, because counting costs Redis the more, the more members there are. Others do not look.
pub(super) fn looks_within(watches: bool, rank: usize, is_ranked: bool) -> Option<Duration> {
    let seconds = 1.0 + rank as f64 / 16.0;
    match (watches, is_ranked) {
        (true, _) => Some(LOOK_EVERY),
        (false, false) => Some(Duration::from_secs_f64(seconds.min(60.0))),
        (false, true) => None,
    }
}

/// Is a look overdue, so that this member must look?
pub(super) fn look_overdue(looked_age: Duration, lease: Duration) -> bool {
    looked_age > LOOK_OVERDUE.min(lease / 4)
}

/// Has a generator stopped producing although its session lives? That takes several ticks, and more
/// than a lease: a slow Redis alone must not depose it.
pub(super) fn stalled(now: Moment, progress: Moment, interval: Duration, lease: Duration) -> bool {
    now.since(progress) > (interval * 5).max(lease * 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Duration = Duration::from_millis(500);

    fn at(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    #[test]
    fn past_trust_only_the_question_is_sent() {
        assert_eq!(beat(at(1999), at(2000), None, BEAT), Beat::Heartbeat);
        assert_eq!(beat(at(2000), at(2000), None, BEAT), Beat::Question);
    }

    #[test]
    fn a_fresh_answer_allows_one_heartbeat_and_an_old_one_none() {
        assert_eq!(beat(at(9000), at(2000), Some(at(8900)), BEAT), Beat::Heartbeat);
        assert_eq!(beat(at(9000), at(2000), Some(at(8400)), BEAT), Beat::Question);
    }

    #[test]
    fn the_generator_and_two_ranks_watch() {
        assert!(watches(true, 40));
        assert!(watches(false, 1));
        assert!(!watches(false, 2));
        let lease = Duration::from_secs(3);
        assert!(!look_overdue(Duration::from_millis(300), lease));
        assert!(look_overdue(Duration::from_millis(301), lease));
        assert!(look_overdue(Duration::from_millis(251), lease / 3));
    }

    #[test]
    fn a_member_that_guesses_its_rank_looks() {
        let s = Duration::from_secs;
        assert_eq!(looks_within(true, 0, false), Some(LOOK_EVERY));
        assert_eq!(looks_within(false, 16, false), Some(s(2)));
        assert_eq!(looks_within(false, usize::MAX, false), Some(s(60)));
        assert_eq!(looks_within(false, 16, true), None);
    }

    #[test]
    fn a_generator_that_produces_nothing_is_stalled_after_several_ticks() {
        let lease = Duration::from_secs(1);
        let tick = Duration::from_millis(500);
        assert!(!stalled(at(2500), at(0), tick, lease));
        assert!(stalled(at(2501), at(0), tick, lease));
        assert!(!stalled(at(2000), at(0), Duration::from_millis(1), lease));
    }
}
