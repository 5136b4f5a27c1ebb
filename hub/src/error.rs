//! Every error of the hub. Each says what did not happen and gives back what it was given.

use std::time::Duration;

use crate::key::KeyError;

/// Why nothing was published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The key is not one.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The hub is shut down.
    #[error("the hub is shut down")]
    Closed,
    /// Somebody else uses this key for payloads of another type.
    #[error("the key {key:?} carries {expected}, not {given}: use another key")]
    WrongType {
        /// The key.
        key: String,
        /// What it carries.
        expected: &'static str,
        /// What was to be published.
        given: &'static str,
    },
    /// The payload weighs more than the hub allows.
    #[error("the payload weighs {bytes} bytes, {most} at most: publish a reference to it")]
    TooLarge {
        /// Its weight.
        bytes: u64,
        /// The most.
        most: u64,
    },
    /// A subscriber is full, and the publisher does not wait.
    #[error("the queue of a subscriber is full: publish with `publish` or `blocking_publish`")]
    Full,
    /// Handlers published from handlers too many times in a row.
    #[error("{depth} handlers in a row led to this event: a subscriber publishes to itself")]
    TooDeep {
        /// How many.
        depth: u16,
    },
    /// The handler would wait for room that only it can make, directly or through others.
    #[error("the handler would wait for itself: its own queue, or one that waits for it, is full")]
    WouldDeadlock,
    /// The handler would put a thread to sleep that runs others as well.
    #[error("a handler on a task or on the pool must not block: use `publish` or a thread")]
    WouldBlock,
    /// More different keys than the hub keeps are in use.
    #[error("{keys} keys are in use, and no more are kept: put what varies into the payload")]
    TooManyKeys {
        /// How many.
        keys: usize,
    },
    /// The function that weighs payloads panicked.
    #[error("the function that weighs the payloads of this topic panicked")]
    WeighFailed,
    /// The function that shares a group's events panicked.
    #[error("the function that shares the events of group {group:?} panicked")]
    ShareFailed {
        /// The group.
        group: String,
    },
}

/// Nothing was published; here is the payload again.
pub struct PublishError<T> {
    payload: T,
    reason: Refusal,
}

impl<T> PublishError<T> {
    pub(crate) fn new(payload: T, reason: impl Into<Refusal>) -> PublishError<T> {
        PublishError { payload, reason: reason.into() }
    }

    /// Why.
    pub fn reason(&self) -> &Refusal {
        &self.reason
    }

    /// What was not published.
    pub fn into_payload(self) -> T {
        self.payload
    }
}

impl<T> std::fmt::Debug for PublishError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PublishError").field(&self.reason).finish()
    }
}

impl<T> std::fmt::Display for PublishError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not published: {}", self.reason)
    }
}

impl<T> std::error::Error for PublishError<T> {}

/// Why nobody was subscribed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// A key or pattern is not one.
    #[error("not subscribed: {0}")]
    Key(#[from] KeyError),
    /// The hub is shut down.
    #[error("not subscribed: the hub is shut down")]
    Closed,
    /// There is one of this name on one of these keys.
    #[error(
        "not subscribed: a subscriber named {name:?} has one of these keys already: choose another name"
    )]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A name or group of no or too many letters.
    #[error(
        "not subscribed: the name {name:?} is empty, longer than 256 bytes or cannot be printed: choose another"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// Somebody publishes payloads of another type under this key.
    #[error("not subscribed: the key {key:?} carries {expected}, not {given}: use another key")]
    WrongType {
        /// The key.
        key: String,
        /// What it carries.
        expected: &'static str,
        /// What the subscriber takes.
        given: &'static str,
    },
    /// A queue without room.
    #[error(
        "not subscribed: a queue of 0 events or 0 bytes has no room: give it at least 1 of each"
    )]
    NoRoom {
        /// Events it was to hold.
        events: usize,
        /// Bytes it was to hold.
        bytes: u64,
    },
    /// The others of the group share its events in another way.
    #[error("not subscribed: the group {group:?} shares its events in another way")]
    GroupDiffers {
        /// The group.
        group: String,
    },
    /// Sharing by a hash looks at payloads of one type.
    #[error(
        "not subscribed: the group {group:?} shares by a hash, which needs keys of one type: use Keys::new"
    )]
    NeedsType {
        /// The group.
        group: String,
    },
    /// An inline subscriber has neither queue nor group.
    #[error("not subscribed: an inline subscriber has no use for {what}: its publishers call it")]
    NotInline {
        /// What was asked for.
        what: &'static str,
    },
    /// No event would ever be tried.
    #[error("not subscribed: events must be tried at least once: give it one attempt or more")]
    NoAttempts,
    /// A handler that may take no time.
    #[error(
        "not subscribed: a handler needs some time (give none to let it take as long as it likes)"
    )]
    NoTime,
    /// There is no tokio runtime to run a task on.
    #[error(
        "not subscribed: there is no tokio runtime here: call from one, give one to the builder, or use a thread \
         or the pool"
    )]
    NoRuntime,
    /// The system gave no thread.
    #[error("not subscribed: no thread could be started: {reason}")]
    NoThread {
        /// What it said.
        reason: String,
    },
}

/// Why a subscriber was not stopped as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// A handler cannot wait for its own end.
    #[error("{name} cannot wait for its own end: drop its subscription instead")]
    FromItself {
        /// Whose.
        name: String,
    },
    /// The handler does not return. It is never called again once it does.
    #[error("{name} is still inside its handler after {waited:?}; it will not be called again")]
    StillRunning {
        /// Whose.
        name: String,
        /// How long it was waited for.
        waited: Duration,
    },
}
