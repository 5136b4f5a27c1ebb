//! [`Names`]: the names under which a sender numbers its batches.
//!
//! **Invariant:** at most one call at a time numbers under a name, and a name that a call did not give back is never
//! used again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use crate::clock::Moment;

/// Calls of one sender that are under way at a time; more of them wait for their turn.
pub(crate) const CALLS_MAX: usize = 64;

/// The names under which batches are numbered. A call has one for itself until it is answered; a call
/// that is dropped or not answered takes its name with it, and nobody numbers under it again.
pub(crate) struct Names {
    /// The one that was used last comes first.
    free: Mutex<Vec<Numbers>>,
    pub(crate) calls: Semaphore,
}

impl Names {
    pub(crate) fn new() -> Names {
        Names { free: Mutex::default(), calls: Semaphore::new(CALLS_MAX) }
    }

    pub(crate) fn free(&self) -> MutexGuard<'_, Vec<Numbers>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name that Redis knows, and which number comes next under it.
pub(crate) struct Numbers {
    pub(crate) name: Arc<str>,
    pub(crate) next: u64,
    /// When the name was asked for, on our clock and, a little later, on Redis's. For display only.
    pub(crate) asked: Moment,
    pub(crate) now_ms: u64,
}
