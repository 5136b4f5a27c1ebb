//! [`Floor`]: the highest numbers that this process has seen, whichever server told them.
//!
//! **Invariant:** they only grow. What is granted to this process next is higher, also by a server that has forgotten them.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Floor {
    term: AtomicU64,
    token: AtomicU64,
}

impl Floor {
    pub(crate) fn saw_term(&self, term: u64) {
        self.term.fetch_max(term, Ordering::AcqRel);
    }

    pub(crate) fn saw_token(&self, token: u64) {
        self.token.fetch_max(token, Ordering::AcqRel);
    }

    /// The highest term.
    pub(crate) fn term(&self) -> u64 {
        self.term.load(Ordering::Acquire)
    }

    /// The highest token of a lock.
    pub(crate) fn token(&self) -> u64 {
        self.token.load(Ordering::Acquire)
    }
}
