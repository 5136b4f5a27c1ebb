//! [`Names`]: the names under which a sender numbers its batches.
//!
//! **Invariant:** at most one call at a time uses a name, and a name that a call did not give back is
//! never used again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::clock::Moment;
use crate::id::MessageId;
use crate::lane::Lane;
use crate::message::NewMessage;
use crate::mutant::{Rule, disabled};

use super::line::Line;

/// A name that was used within this time is known, unless Redis has lost data.
const KNOWN_SURELY: Duration = Duration::from_secs(1800);

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
    /// Messages that callers were told of and Redis has forgotten. Nobody was told that yet.
    forgotten: AtomicU64,
    /// The last messages that were sent, if a sender keeps them.
    kept: Mutex<VecDeque<Kept>>,
}

/// A message that was sent, in case Redis forgets it.
pub(crate) struct Kept {
    name: Arc<str>,
    number: u64,
    pub(crate) lane: Lane,
    pub(crate) key: Option<String>,
    pub(crate) message: NewMessage,
}

impl Names {
    pub(crate) fn new() -> Names {
        Names {
            free: Mutex::default(),
            calls: Semaphore::new(CALLS_MAX),
            lines: Default::default(),
            forgotten: AtomicU64::new(0),
            kept: Mutex::default(),
        }
    }

    /// Redis has forgotten this many messages that somebody was told of.
    pub(crate) fn note_forgotten(&self, messages: u64) {
        self.forgotten.fetch_add(messages, Ordering::Relaxed);
    }

    /// How many messages were forgotten, if nobody was told that yet.
    pub(crate) fn take_forgotten(&self) -> Option<u64> {
        Some(self.forgotten.swap(0, Ordering::Relaxed)).filter(|messages| *messages > 0)
    }

    /// Keeps messages that were sent under these numbers; of all, the last `most`.
    pub(crate) fn keep(
        &self,
        numbers: &Numbers,
        lane: Lane,
        key: Option<&str>,
        messages: &[NewMessage],
        most: usize,
    ) {
        let mut kept = self.kept();
        for (number, message) in (numbers.next..).zip(messages) {
            let (name, key) = (numbers.name.clone(), key.map(str::to_owned));
            kept.push_back(Kept { name, number, lane, key, message: message.clone() });
        }
        let excess = kept.len().saturating_sub(most);
        kept.drain(..excess);
    }

    /// The messages behind this number that were kept under this name.
    pub(crate) fn take_kept(&self, name: &str, last: u64) -> Vec<Kept> {
        let mut kept = self.kept();
        let mut taken = Vec::new();
        for one in std::mem::take(&mut *kept) {
            match *one.name == *name && one.number > last {
                true => taken.push(one),
                false => kept.push_back(one),
            }
        }
        taken
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn free(&self) -> MutexGuard<'_, Vec<Numbers>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name that Redis knows, and its next number.
pub(crate) struct Numbers {
    pub(crate) name: Arc<str>,
    pub(crate) next: u64,
    /// Its first number, and when a message was last sent under it.
    pub(crate) first: u64,
    pub(crate) told: Moment,
    /// When the name was requested on our clock, and Redis's time a little later. For display only.
    pub(crate) asked: Moment,
    pub(crate) now_ms: u64,
}

impl Numbers {
    /// How many messages that were sent under this name are forgotten, if Redis knows the last number, or none.
    pub(crate) fn forgotten(&self, last: Option<u64>) -> u64 {
        if disabled(Rule::SendersSpeak) {
            return 0;
        }
        match last {
            Some(last) => (self.next - 1).saturating_sub(last),
            // Otherwise it may have been forgotten because it was not used for long.
            None if Moment::now().since(self.told) < KNOWN_SURELY => self.next - self.first,
            None => 0,
        }
    }

    /// The id of the first message that is sent with these numbers.
    pub(crate) fn first(&self) -> MessageId {
        MessageId::sent(&self.name, self.next)
    }
}
