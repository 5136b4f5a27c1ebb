//! [`DeadLetters`]: events that could not be handled, kept for an administrator.
//!
//! **Invariant:** an event that a subscriber gave up or never handled is kept with the reason, or
//! counted as lost. With `keep_dropped` this also holds for events that were dropped. Keeping a
//! dead letter never waits for a disk.

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
///
/// ```
/// use artel_hub::{Cause, Delivery, EventHub, LetterFilter, Overflow, Queue, Topic};
/// const PRICES: Topic<u32> = Topic::new("prices");
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let hub = EventHub::new();
/// let queue = Queue::bounded(1).on_full(Overflow::DropNewest);
/// let slow = hub.subscribe(&PRICES).queue(queue).keep_dropped();
/// let _slow = slow.spawn(|_: Delivery<'_, u32>| ())?;
/// hub.publish_batch(&PRICES, [1, 2]).await?; // before the subscriber runs
/// let letters = hub.dead_letters().list(&LetterFilter::all())?;
/// assert_eq!((letters.len(), letters[0].cause), (1, Cause::Dropped));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Cause {
    /// Its handler failed or panicked, and it is not tried again.
    #[default]
    Failed,
    /// Its handler took [too long](crate::Subscribe::handler_timeout).
    Timeout,
    /// The queue of its subscriber was full.
    Dropped,
    /// Its subscriber ended before it handled the event.
    Left,
}

/// One event that could not be handled.
///
/// ```
/// use artel_hub::{Delivery, EventHub, HandlerError, LetterFilter, Topic};
/// const ORDERS: Topic<u32> = Topic::json("orders");
///
/// let hub = EventHub::new();
/// let billing = hub.subscribe(&ORDERS).name("billing").attempts(3);
/// let _billing = billing.inline(|_: Delivery<'_, u32>| Err(HandlerError::retry("offline")))?;
/// hub.blocking_publish(&ORDERS, 7)?;
/// let letters = hub.dead_letters().list(&LetterFilter::all())?;
/// let letter = &letters[0];
/// assert_eq!((&*letter.subscriber, &*letter.key, letter.attempts), ("billing", "orders", 3));
/// assert_eq!((&*letter.reason, &letter.payload), ("offline", &Some(7.into())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Letter {
    /// Its number in the store.
    #[serde(default)]
    pub id: u64,
    /// The key it was published under.
    pub key: String,
    /// Its sequence number under that key.
    pub sequence: u64,
    /// When it was published, in milliseconds since 1970.
    pub at_ms: u64,
    /// When it became a dead letter, in milliseconds since 1970.
    pub failed_at_ms: u64,
    /// The subscriber that could not handle it.
    pub subscriber: String,
    /// How often it was tried. 0 if the subscriber never started it.
    pub attempts: u32,
    /// How bad it is.
    pub severity: Severity,
    /// Why, in one word.
    #[serde(default)]
    pub cause: Cause,
    /// Why, as a text: usually the error of the handler.
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

    /// Encodes the payload. If that fails or panics, the dead letter has no payload.
    pub(crate) fn encode(&mut self) {
        if let (None, Some(event)) = (&self.payload, &self.event) {
            self.payload = crate::keep::history::encoded(event);
        }
    }
}

pub(crate) fn millis(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Selects dead letters. By default all.
///
/// ```
/// use artel_hub::{Delivery, EventHub, HandlerError, LetterFilter, Topic};
/// const ORDERS: Topic<u32> = Topic::new("orders/eu");
///
/// let hub = EventHub::new();
/// let fail = |_: Delivery<'_, u32>| Err(HandlerError::skip("no price"));
/// let _billing = hub.subscribe(&ORDERS).name("billing").inline(fail)?;
/// let _mail = hub.subscribe(&ORDERS).name("mail").inline(fail)?;
/// hub.blocking_publish(&ORDERS, 7)?;
/// let filter = LetterFilter::all().key("orders/*")?.subscriber("billing");
/// assert_eq!(hub.dead_letters().list(&filter)?.len(), 1);
/// assert_eq!(hub.dead_letters().remove(&LetterFilter::all())?, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LetterFilter {
    key: Option<Pattern>,
    subscriber: Option<String>,
    ids: Option<HashSet<u64>>,
}

impl LetterFilter {
    /// All dead letters.
    pub fn all() -> LetterFilter {
        LetterFilter::default()
    }

    /// Only those whose key matches this pattern.
    pub fn key(mut self, pattern: &str) -> Result<LetterFilter, KeyError> {
        self.key = Some(Pattern::new(pattern)?);
        Ok(self)
    }

    /// Only those of this subscriber.
    pub fn subscriber(mut self, name: impl Into<String>) -> LetterFilter {
        self.subscriber = Some(name.into());
        self
    }

    /// Only those with these numbers.
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

/// Why dead letters could not be read, written or delivered.
///
/// ```
/// use artel_hub::{JsonLinesLetters, LetterError};
///
/// let folder = tempfile::tempdir()?;
/// let error = JsonLinesLetters::open(folder.path().join("missing/letters.jsonl")).unwrap_err();
/// assert!(error.to_string().starts_with("dead letters: not opened: "));
/// // In a store of your own:
/// let error = LetterError::new("not written", "the disk is full");
/// assert_eq!(error.to_string(), "dead letters: not written: the disk is full");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("dead letters: {what}: {reason}")]
pub struct LetterError {
    what: &'static str,
    reason: String,
}

impl LetterError {
    /// An error from what was not done, for example `"not written"`, and the reason.
    pub fn new(what: &'static str, reason: impl std::fmt::Display) -> LetterError {
        LetterError { what, reason: reason.to_string() }
    }
}

/// A store for dead letters that outlives the process. Called from one thread at a time.
///
/// ```
/// # use artel_hub::{EventHub, Letter, LetterError, LetterStore};
/// # #[derive(Default)]
/// struct Memory { letters: Vec<Letter>, last: u64 }
///
/// impl LetterStore for Memory {
///     fn append(&mut self, letters: &mut [Letter]) -> Result<(), LetterError> {
///         letters.iter_mut().zip(self.last + 1..).for_each(|(letter, id)| letter.id = id);
///         self.last += letters.len() as u64;
///         Ok(self.letters.extend_from_slice(letters))
///     }
///     fn read(&mut self) -> Result<Vec<Letter>, LetterError> { Ok(self.letters.clone()) }
///     fn remove(&mut self, ids: &[u64]) -> Result<(), LetterError> {
///         Ok(self.letters.retain(|letter| !ids.contains(&letter.id)))
///     }
/// }
/// let hub = EventHub::builder().dead_letters(Memory::default()).build()?;
/// assert_eq!(hub.dead_letters().count()?, 0);
/// # const ORDERS: artel_hub::Topic<u32> = artel_hub::Topic::new("orders");
/// # let _billing = hub.subscribe(&ORDERS).inline(|_: artel_hub::Delivery<'_, u32>| {
/// #     Err(artel_hub::HandlerError::skip("no price"))
/// # })?;
/// # hub.blocking_publish(&ORDERS, 7)?;
/// # assert_eq!(hub.dead_letters().remove(&artel_hub::LetterFilter::all().ids([1]))?, 1);
/// # assert_eq!(hub.dead_letters().count()?, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait LetterStore: Send + 'static {
    /// Adds dead letters and sets the number of each.
    fn append(&mut self, letters: &mut [Letter]) -> Result<(), LetterError>;
    /// All dead letters, oldest first.
    fn read(&mut self) -> Result<Vec<Letter>, LetterError>;
    /// How many dead letters there are. The default implementation reads them all.
    fn count(&mut self) -> Result<usize, LetterError> {
        Ok(self.read()?.len())
    }
    /// Removes the dead letters with these numbers.
    fn remove(&mut self, ids: &[u64]) -> Result<(), LetterError>;
}

/// The result of a redelivery.
///
/// ```
/// use artel_hub::{Delivery, EventHub, HandlerError, LetterFilter, Topic};
/// const ORDERS: Topic<u32> = Topic::new("orders");
///
/// let hub = EventHub::new();
/// let billing = hub.subscribe(&ORDERS).name("billing");
/// let billing = billing.inline(|_: Delivery<'_, u32>| Err(HandlerError::skip("no price")))?;
/// hub.blocking_publish(&ORDERS, 7)?;
/// drop(billing); // its dead letter stays, and cannot be delivered now
/// let result = hub.dead_letters().redeliver(&LetterFilter::all())?;
/// assert_eq!((result.delivered, result.kept), (0, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redelivered {
    /// Dead letters that were given to their subscriber again and removed.
    pub delivered: u64,
    /// Dead letters that stay: their subscriber does not exist or has no room, or their payload
    /// cannot be decoded.
    pub kept: u64,
}

/// The dead letters of one hub, from [`EventHub::dead_letters`](crate::EventHub::dead_letters).
///
/// ```
/// use artel_hub::{Delivery, EventHub, HandlerError, LetterFilter, Topic};
/// const ORDERS: Topic<u32> = Topic::new("orders");
///
/// let hub = EventHub::new();
/// let billing = hub.subscribe(&ORDERS).name("billing");
/// let broken = billing.inline(|_: Delivery<'_, u32>| Err(HandlerError::skip("no price")))?;
/// hub.blocking_publish(&ORDERS, 7)?;
/// drop(broken);
/// let fixed = hub.subscribe(&ORDERS).name("billing").inline(|_: Delivery<'_, u32>| ())?;
/// assert_eq!(hub.dead_letters().redeliver(&LetterFilter::all())?.delivered, 1);
/// assert_eq!((fixed.stats().processed, hub.dead_letters().count()?), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeadLetters {
    pub(crate) core: Arc<HubCore>,
}

impl DeadLetters {
    /// How many dead letters there are.
    pub fn count(&self) -> Result<usize, LetterError> {
        self.core.letter_writer.count()
    }

    /// The selected dead letters, oldest first. Reads from disk if they are stored there.
    pub fn list(&self, filter: &LetterFilter) -> Result<Vec<Letter>, LetterError> {
        self.core.letter_writer.list(filter)
    }

    /// Removes the selected dead letters. Returns how many they were.
    pub fn remove(&self, filter: &LetterFilter) -> Result<usize, LetterError> {
        self.core.letter_writer.remove(filter)
    }

    /// Gives each selected dead letter to its subscriber again. No other subscriber sees it.
    ///
    /// * The subscriber must run under the same name.
    /// * At most as many dead letters wait there as fit into its queue. The others stay dead
    ///   letters.
    /// * A dead letter is removed after its subscriber has it. If the process crashes in between,
    ///   it exists twice rather than not at all.
    /// * A dead letter from disk must be decoded. For this, the hub must have seen a
    ///   [`Topic::json`](crate::Topic::json) with its key since the start: in a publish or in a
    ///   [publisher](crate::EventHub::publisher). Subscribing is not enough. Otherwise it is
    ///   [kept](Redelivered::kept).
    ///
    /// # Errors
    ///
    /// If the dead letters cannot be read or removed, or if another redelivery is running.
    pub fn redeliver(&self, filter: &LetterFilter) -> Result<Redelivered, LetterError> {
        let letter_writer = &self.core.letter_writer;
        if !letter_writer.begin_redelivery() {
            return Err(LetterError::new("not delivered", "another redelivery is running"));
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
