//! [`DeadLetters`]: events that could not be handled, kept until somebody looks at them.
//!
//! **Invariant:** an event that a subscriber gave up, never came to or (if it asked for that) lost
//! is kept with the reason, or counted as lost. Keeping one never waits for a disk.

mod jsonl;
#[cfg(feature = "sqlite")]
mod sqlite;
mod writer;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use jsonl::JsonLinesLetters;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteLetters;
pub(crate) use writer::{LETTERS_MAX, LetterWriter};

use crate::event::{AnyEvent, Meta};
use crate::hub_core::HubCore;
use crate::key::{KeyError, Pattern};
use crate::run::handler::Severity;
use crate::run::subscriber::Subscriber;
use crate::wait::lane::Priority;

/// Why an event became a dead letter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Cause {
    /// Its handler failed or panicked, too often or for good.
    #[default]
    Failed,
    /// Its handler took [too long](crate::Subscribe::handler_timeout).
    Timeout,
    /// The queue of its subscriber was full.
    Dropped,
    /// Its subscriber ended before it came to it.
    Left,
}

/// One event that could not be handled.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Letter {
    /// Its number in the store.
    #[serde(default)]
    pub id: u64,
    /// The key it was published under.
    pub key: String,
    /// Its number under that key.
    pub sequence: u64,
    /// When it was published, in milliseconds since 1970.
    pub at_ms: u64,
    /// When it was given up, in milliseconds since 1970.
    pub failed_at_ms: u64,
    /// Whose letter it is.
    pub subscriber: String,
    /// How often it was tried; 0 if the subscriber never came to it.
    pub attempts: u32,
    /// How bad it is.
    pub severity: Severity,
    /// Why, in one word.
    #[serde(default)]
    pub cause: Cause,
    /// What went wrong.
    pub reason: String,
    /// How urgent the event was.
    pub priority: Priority,
    /// The payload, if its topic can be encoded.
    pub payload: Option<Value>,
    #[serde(skip)]
    event: Option<AnyEvent>,
}

impl Letter {
    pub(crate) fn new(
        event: &AnyEvent,
        subscriber: &str,
        attempts: u32,
        severity: Severity,
        reason: &str,
    ) -> Letter {
        Letter {
            id: 0,
            key: event.key().into(),
            sequence: event.sequence(),
            at_ms: millis(event.at()),
            failed_at_ms: millis(SystemTime::now()),
            subscriber: subscriber.into(),
            attempts,
            severity,
            cause: Cause::Failed,
            reason: reason.into(),
            priority: event.priority(),
            payload: None,
            event: Some(event.clone()),
        }
    }

    pub(crate) fn because(mut self, cause: Cause) -> Letter {
        self.cause = cause;
        self
    }

    /// Writes the payload down. What does not encode, or panics, stays without.
    pub(crate) fn encode(&mut self) {
        if let (None, Some(event)) = (&self.payload, &self.event) {
            self.payload = crate::keep::history::encoded(event);
        }
    }
}

pub(crate) fn millis(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Which letters are meant. By default all.
#[derive(Clone, Debug, Default)]
pub struct LetterFilter {
    key: Option<Pattern>,
    subscriber: Option<String>,
    ids: Option<HashSet<u64>>,
}

impl LetterFilter {
    /// All of them.
    pub fn all() -> LetterFilter {
        LetterFilter::default()
    }

    /// Those with a key like this.
    pub fn key(mut self, pattern: &str) -> Result<LetterFilter, KeyError> {
        self.key = Some(Pattern::new(pattern)?);
        Ok(self)
    }

    /// Those of this subscriber.
    pub fn subscriber(mut self, name: impl Into<String>) -> LetterFilter {
        self.subscriber = Some(name.into());
        self
    }

    /// Those with these numbers.
    pub fn ids(mut self, ids: impl IntoIterator<Item = u64>) -> LetterFilter {
        self.ids = Some(ids.into_iter().collect());
        self
    }

    pub(crate) fn fits(&self, letter: &Letter) -> bool {
        self.key.as_ref().is_none_or(|key| key.matches(&letter.key))
            && self.subscriber.as_ref().is_none_or(|name| *name == letter.subscriber)
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&letter.id))
    }
}

/// Why letters could not be read, written or delivered.
#[derive(Debug, thiserror::Error)]
#[error("dead letters: {what}: {reason}")]
pub struct LetterError {
    what: &'static str,
    reason: String,
}

impl LetterError {
    /// This did not happen, for this reason.
    pub fn new(what: &'static str, reason: impl std::fmt::Display) -> LetterError {
        LetterError { what, reason: reason.to_string() }
    }
}

/// Where letters are kept beyond the life of the process. Called from one thread at a time.
pub trait LetterStore: Send + 'static {
    /// Adds letters and gives each its number.
    fn append(&mut self, letters: &mut [Letter]) -> Result<(), LetterError>;
    /// All letters, oldest first.
    fn read(&mut self) -> Result<Vec<Letter>, LetterError>;
    /// How many letters there are. Reads them all unless the store knows better.
    fn count(&mut self) -> Result<usize, LetterError> {
        Ok(self.read()?.len())
    }
    /// Removes those with these numbers.
    fn remove(&mut self, ids: &[u64]) -> Result<(), LetterError>;
}

/// What became of letters that were delivered again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redelivered {
    /// Letters given to their subscriber again, and removed.
    pub delivered: u64,
    /// Letters whose subscriber is not there or has no room for more, or whose payload cannot be
    /// read; they stay.
    pub kept: u64,
}

/// The letters of one hub.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    pub(crate) core: Arc<HubCore>,
}

impl DeadLetters {
    /// How many there are.
    pub fn count(&self) -> Result<usize, LetterError> {
        self.core.letter_writer.count()
    }

    /// The letters meant, oldest first. Reads from the disk if they are kept there.
    pub fn list(&self, filter: &LetterFilter) -> Result<Vec<Letter>, LetterError> {
        self.core.letter_writer.list(filter)
    }

    /// Forgets the letters meant, and says how many they were.
    pub fn remove(&self, filter: &LetterFilter) -> Result<usize, LetterError> {
        self.core.letter_writer.remove(filter)
    }

    /// Gives each letter meant to its subscriber again, which must be running under the same name;
    /// nobody else sees it. As many wait there as its queue is long; the others stay letters. A letter
    /// goes when its subscriber has it, so that after a crash between the two it is there twice
    /// rather than not at all. Letters read from a disk need somebody to know how to read them:
    /// since this hub was made, something was published under their key with a
    /// [`Topic::json`](crate::Topic::json), or a [publisher](crate::EventHub::publisher) for one was
    /// made. Subscribing is not enough. The others are [kept](Redelivered::kept).
    ///
    /// # Errors
    ///
    /// If the letters cannot be read or removed, or another redelivery is under way.
    pub fn redeliver(&self, filter: &LetterFilter) -> Result<Redelivered, LetterError> {
        let letter_writer = &self.core.letter_writer;
        if !letter_writer.begin_redelivery() {
            return Err(LetterError::new("not delivered", "another redelivery is under way"));
        }
        struct Ends<'a>(&'a LetterWriter);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.end_redelivery();
            }
        }
        let _ends = Ends(letter_writer);
        let (mut result, mut gone) = (Redelivered::default(), Vec::new());
        for letter in letter_writer.list(filter)? {
            let given = self.event(&letter).is_some_and(|event| {
                let named = self.core.registry().by_name(&letter.subscriber);
                let asks = |one: &&Arc<Subscriber>| {
                    one.selection.matches(event.key(), event.meta().channel.payload)
                };
                named.iter().find(asks).is_some_and(|one| self.core.deliver(one, &event))
            });
            match given {
                true => gone.push(letter.id),
                false => result.kept += 1,
            }
        }
        result.delivered = gone.len() as u64;
        letter_writer.remove(&LetterFilter::all().ids(gone))?;
        Ok(result)
    }

    fn event(&self, letter: &Letter) -> Option<AnyEvent> {
        if let Some(event) = &letter.event {
            return Some(event.clone());
        }
        let channel = self.core.registry().channel(&letter.key)?.clone();
        let decode = channel.codec()?.decode?;
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(letter.at_ms);
        let mut meta = Meta::new(channel, at, 0, letter.priority);
        meta.sequence = letter.sequence;
        let payload = letter.payload.clone()?;
        let decode = std::panic::AssertUnwindSafe(|| decode(meta, payload).ok());
        std::panic::catch_unwind(decode).ok().flatten()
    }
}
