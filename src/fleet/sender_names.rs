//! [`Names`]: the names under which a sender numbers its batches.
//!
//! **Invariant:** at most one call at a time uses a name, and a name that a call did not give back is
//! never used again.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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

/// The most names whose messages are remembered. What is told under further ones is not counted when it is forgotten.
const TOLD_MAX: usize = 1024;
/// The most duplicates that are remembered of one name. Older ones count as messages.
const DUPLICATES_MAX: usize = 10_000;

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
    /// The last messages that were sent, if a sender keeps them, and how many of them.
    kept: Mutex<VecDeque<Kept>>,
    keep_max: AtomicUsize,
    /// What was told under each name, also under one that is not used any more.
    told: Mutex<HashMap<Arc<str>, Told>>,
    /// Where the last batch was sent.
    server: Mutex<Option<String>>,
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
            keep_max: AtomicUsize::new(0),
            told: Mutex::default(),
            server: Mutex::default(),
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

    /// These messages were added under these numbers, and somebody is told so.
    pub(crate) fn tell(&self, numbers: &Numbers, added: usize) {
        let mut told = self.told();
        // Long unused ones are forgotten by Redis, too.
        if told.len() >= TOLD_MAX && !told.contains_key(&numbers.name) {
            told.retain(|_, one| Moment::now().since(one.at) < KNOWN_SURELY);
            if told.len() >= TOLD_MAX {
                return;
            }
        }
        let one = told.entry(numbers.name.clone()).or_insert_with(|| Told::from(numbers.next));
        (one.next, one.at) = (numbers.next + added as u64, Moment::now());
    }

    /// This number was used for a message that was there already.
    pub(crate) fn tell_duplicate(&self, numbers: &Numbers) {
        self.tell(numbers, 1);
        if let Some(one) = self.told().get_mut(&numbers.name) {
            one.duplicates.insert(numbers.next);
            if one.duplicates.len() > DUPLICATES_MAX {
                one.duplicates.pop_first();
            }
        }
    }

    /// What was told under each name. Whoever takes it decides about all of it.
    pub(crate) fn take_told(&self) -> HashMap<Arc<str>, Told> {
        std::mem::take(&mut *self.told())
    }

    /// This is told still; and what was told meanwhile, too.
    pub(crate) fn still_told(&self, name: Arc<str>, before: Told) {
        let mut told = self.told();
        let one = told.entry(name).or_insert_with(|| Told::from(before.next));
        one.first = one.first.min(before.first);
        one.next = one.next.max(before.next);
        one.duplicates.extend(before.duplicates);
    }

    fn told(&self) -> MutexGuard<'_, HashMap<Arc<str>, Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Was the last batch sent to another server?
    pub(crate) fn is_elsewhere(&self, server: &str) -> bool {
        let mut last = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let is_elsewhere = last.as_deref().is_some_and(|last| last != server);
        if last.as_deref() != Some(server) {
            *last = Some(server.to_owned());
        }
        is_elsewhere
    }

    /// Keeps messages that were sent under these numbers; of all, the last that any of the senders keeps.
    pub(crate) fn keep(
        &self,
        numbers: &Numbers,
        lane: Lane,
        key: Option<&str>,
        messages: &[NewMessage],
        most: usize,
    ) {
        let most = self.keep_max.fetch_max(most, Ordering::Relaxed).max(most);
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

/// What was told under one name.
pub(crate) struct Told {
    /// Its numbers from the first one to the one before the next.
    first: u64,
    next: u64,
    duplicates: BTreeSet<u64>,
    at: Moment,
}

impl Told {
    fn from(first: u64) -> Told {
        Told { first, next: first, duplicates: BTreeSet::new(), at: Moment::now() }
    }

    /// How many of these messages are forgotten, if Redis knows numbers up to this one, or none.
    pub(crate) fn forgotten(&self, last: Option<u64>) -> u64 {
        if disabled(Rule::SendersSpeak) {
            return 0;
        }
        let from = match last {
            Some(last) => self.first.max(last + 1),
            // Otherwise it may have been forgotten because it was not used for long.
            None if Moment::now().since(self.at) < KNOWN_SURELY => self.first,
            None => return 0,
        };
        let numbers = self.next.saturating_sub(from);
        numbers - (self.duplicates.range(from..self.next.max(from)).count() as u64).min(numbers)
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
