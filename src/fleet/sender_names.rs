//! [`Names`]: the names under which a sender numbers its batches.
//!
//! **Invariant:** at most one call at a time uses a name, and a name that a call did not give back is
//! never used again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use crate::clock::Moment;
use crate::id::MessageId;

use super::line::Line;

/// How many calls of one sender may be under way at a time. More calls wait for their turn.
pub(crate) const CALLS_MAX: usize = 64;

/// The names under which batches are numbered. A call has a name for itself until it is answered. If
/// the call is dropped or not answered, its name is never used again.
pub(crate) struct Names {
    /// The name that was used last comes first.
    free: Mutex<Vec<Numbers>>,
    pub(crate) calls: Semaphore,
    /// The calls that travel together, by lane.
    pub(crate) lines: [Line; 4],
}

impl Names {
    pub(crate) fn new() -> Names {
        Names {
            free: Mutex::default(),
            calls: Semaphore::new(CALLS_MAX),
            lines: Default::default(),
        }
    }

    pub(crate) fn free(&self) -> MutexGuard<'_, Vec<Numbers>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name that Redis knows, and its next number.
pub(crate) struct Numbers {
    pub(crate) name: Arc<str>,
    pub(crate) next: u64,
    /// When the name was requested on our clock, and Redis's time a little later. For display only.
    pub(crate) asked: Moment,
    pub(crate) now_ms: u64,
}

impl Numbers {
    /// The id of the first message that is sent with these numbers.
    pub(crate) fn first(&self) -> MessageId {
        MessageId::sent(&self.name, self.next)
    }
}
