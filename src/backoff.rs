//! [`Backoff`]: how long a message waits before it is retried.
//!
//! **Invariant:** a retry never starts sooner than asked: randomness only adds to the delay. A delay is at least
//! [`DELAY_MIN`] and at most [`AHEAD_MAX`].

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::message::AHEAD_MAX;
use crate::panic::drop_quietly;

/// The shortest delay before another run.
pub(crate) const DELAY_MIN: Duration = Duration::from_millis(100);
/// At most this part of the delay is added at random, so that messages that failed together do not come back together.
const JITTER: f64 = 0.25;

/// How long a message waits before it is retried.
///
/// ```
/// use std::time::Duration;
/// use artel::{Backoff, Kind};
///
/// // 1 s, 2 s, 4 s … at most 10 minutes, and up to a quarter more.
/// let doubled = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(600));
/// let steady = Backoff::fixed(Duration::from_secs(30));
/// let own = Backoff::custom(|retry| Duration::from_secs(60 * u64::from(retry)));
/// let kind = Kind::<String>::new("mail").retries(8).backoff(own);
/// # let _ = (doubled, steady, kind);
/// ```
#[derive(Clone)]
pub struct Backoff(Rule);

#[derive(Clone)]
enum Rule {
    Exponential { first: Duration, most: Duration },
    Fixed(Duration),
    Custom(Arc<dyn Fn(u32) -> Duration + Send + Sync>),
}

impl Backoff {
    /// 5 s, doubled with each retry, at most 1 h.
    pub const DEFAULT: Backoff =
        Backoff::exponential(Duration::from_secs(5), Duration::from_secs(3600));

    /// Doubles the delay with each retry, from the first delay on, up to the longest. A random part of up to a quarter is
    /// added.
    pub const fn exponential(first: Duration, most: Duration) -> Backoff {
        Backoff(Rule::Exponential { first, most })
    }

    /// Always the same delay.
    pub const fn fixed(delay: Duration) -> Backoff {
        Backoff(Rule::Fixed(delay))
    }

    /// Your own rule: it gets the number of the retry, from 1 on.
    pub fn custom(delay: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Backoff {
        Backoff(Rule::Custom(Arc::new(delay)))
    }

    /// The delay before this retry, counted from 1. `random` is between 0 and 1.
    pub(crate) fn delay(&self, retry: u32, random: f64) -> Duration {
        let delay = match &self.0 {
            Rule::Exponential { first, most } => {
                let doubled = 1u32.checked_shl(retry.saturating_sub(1)).unwrap_or(u32::MAX);
                let delay = first.saturating_mul(doubled).min(*most);
                delay + delay.mul_f64(JITTER * random.clamp(0.0, 1.0))
            }
            Rule::Fixed(delay) => *delay,
            // A rule of the user may panic, and must not take a slot with it.
            Rule::Custom(delay) => {
                let asked = std::panic::catch_unwind(AssertUnwindSafe(|| delay(retry)));
                asked.unwrap_or_else(|panic| {
                    drop_quietly(panic);
                    tracing::error!(retry, "the back-off panicked: the usual one is taken");
                    Backoff::DEFAULT.delay(retry, random)
                })
            }
        };
        delay.clamp(DELAY_MIN, AHEAD_MAX)
    }

    /// Refuses delays that are out of range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (first, most) = match self.0 {
            Rule::Exponential { first, most } => (first, most),
            Rule::Fixed(delay) => (delay, delay),
            Rule::Custom(_) => return Ok(()),
        };
        if first < DELAY_MIN || most < first || most > AHEAD_MAX {
            let problem = format!(
                "must be between {DELAY_MIN:?} and 366 days, the first no longer than the longest, not {self:?}"
            );
            return Err(Error::Config { field: "backoff", problem });
        }
        Ok(())
    }
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::DEFAULT
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Rule::Exponential { first, most } => write!(f, "{first:?}..{most:?}"),
            Rule::Fixed(delay) => write!(f, "{delay:?}"),
            Rule::Custom(_) => f.write_str("custom"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_delay_doubles_up_to_the_longest() {
        let delays =
            [1, 2, 3, 10, 11, 40, u32::MAX].map(|retry| Backoff::DEFAULT.delay(retry, 0.0));
        assert_eq!(delays.map(|delay| delay.as_secs()), [5, 10, 20, 2560, 3600, 3600, 3600]);
        // Ten retries take about an hour and a half.
        let all: Duration = (1..=10).map(|retry| Backoff::DEFAULT.delay(retry, 0.5)).sum();
        assert!((80 * 60..100 * 60).contains(&all.as_secs()), "{all:?}");
    }

    #[test]
    fn randomness_adds_up_to_a_quarter_and_never_takes_away() {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let delay = Backoff::DEFAULT.delay(3, rand::random());
            assert!(delay >= 20 * SECOND && delay <= 25 * SECOND, "{delay:?}");
            seen.insert(delay);
        }
        assert!(seen.len() > 500, "retries must not come back in lockstep");
        assert_eq!(Backoff::fixed(SECOND).delay(7, 1.0), SECOND);
    }

    #[test]
    fn a_delay_is_never_out_of_range() {
        let wild = Backoff::custom(|retry| Duration::from_secs(u64::from(retry) * 400 * 86_400));
        assert_eq!(wild.delay(1, 0.0), AHEAD_MAX);
        assert_eq!(Backoff::custom(|_| Duration::ZERO).delay(1, 0.0), DELAY_MIN);
        assert_eq!(Backoff::custom(|_| panic!("no rule")).delay(1, 0.0), 5 * SECOND);
        for bad in [
            Backoff::fixed(Duration::ZERO),
            Backoff::exponential(2 * SECOND, SECOND),
            Backoff::exponential(Duration::ZERO, SECOND),
            Backoff::fixed(AHEAD_MAX + SECOND),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        assert!(Backoff::DEFAULT.check().is_ok());
    }
}
