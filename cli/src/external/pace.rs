//! [`Pace`]: how many lines of a process's output are logged.
//!
//! **Invariant:** at most [`LINES_MAX`] lines per second are logged, and the number of lines that
//! were left out is logged, too.

use std::time::{Duration, Instant};

/// Lines per second.
const LINES_MAX: u32 = 100;
const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
    told: u32,
    left_out: u64,
}

/// What to log now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tell {
    /// The number of lines that were left out before this one.
    pub(super) left_out: u64,
    /// Whether to log this line.
    pub(super) this: bool,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Pace {
        Pace { since: now, told: 0, left_out: 0 }
    }

    /// Decides about the next line.
    pub(super) fn next(&mut self, now: Instant) -> Tell {
        let mut left_out = 0;
        if now.saturating_duration_since(self.since) >= SECOND {
            left_out = std::mem::take(&mut self.left_out);
            (self.since, self.told) = (now, 0);
        }
        let this = self.told < LINES_MAX;
        match this {
            true => self.told += 1,
            false => self.left_out += 1,
        }
        Tell { left_out, this }
    }

    /// Lines that were left out and not reported yet.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_left_out_and_counted() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        let told = (0..1000).filter(|_| pace.next(begun).this).count();
        assert_eq!((told, pace.left_out()), (100, 900));
        let later = begun + SECOND;
        assert_eq!(pace.next(later), Tell { left_out: 900, this: true });
        assert_eq!(pace.next(later), Tell { left_out: 0, this: true });
        assert_eq!(pace.left_out(), 0);
    }
}
