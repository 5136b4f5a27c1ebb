//! [`Term`]: the fencing token.

use std::fmt;
use std::num::NonZeroU64;

/// A leadership term: the fencing token Redis grants with a lease. A newer term compares greater,
/// so a stale generator is recognised without asking any clock.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Term(NonZeroU64);

impl Term {
    pub(crate) fn parse(text: &str) -> Option<Term> {
        text.parse().ok().and_then(NonZeroU64::new).map(Term)
    }

    /// The token as a number: microseconds of Redis time when it was granted, or more.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
