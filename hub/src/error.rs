//! The errors of the hub. Each names what was not done and returns what the caller passed in.

use std::time::Duration;

use crate::key::KeyError;

/// Why an event was not published.
///
/// ```
/// use artel_hub::{Delivery, EventHub, Queue, Refusal, Topic};
/// const JOBS: Topic<u32> = Topic::new("jobs");
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let hub = EventHub::new();
/// let worker = hub.subscribe(&JOBS).queue(Queue::bounded(1)).spawn(|_: Delivery<'_, u32>| ())?;
/// hub.try_publish(&JOBS, 1)?;
/// let refused = hub.try_publish(&JOBS, 2).unwrap_err();
/// assert_eq!(*refused.reason(), Refusal::Full);
/// hub.publish(&JOBS, refused.into_payload()).await?; // waits for room instead
/// hub.idle().await;
/// assert_eq!(worker.stats().processed, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The key is invalid.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The hub is shut down.
    #[error("the hub is shut down")]
    Closed,
    /// The key is already used for payloads of another type.
    #[error("the key {key:?} carries {expected}, not {given}: use another key")]
    WrongType {
        /// The key.
        key: String,
        /// The type that the key carries.
        expected: &'static str,
        /// The type of the payload.
        given: &'static str,
    },
    /// The payload is heavier than the hub allows.
    #[error(
        "the payload weighs {bytes} bytes, at most {most} are allowed: publish a reference to it"
    )]
    TooLarge {
        /// Its weight in bytes.
        bytes: u64,
        /// The maximum, in bytes.
        most: u64,
    },
    /// The queue of a subscriber is full, and this publish does not wait.
    #[error("the queue of a subscriber is full: publish with `publish` or `blocking_publish`")]
    Full,
    /// Too many handlers in a row led to this event.
    #[error("{depth} handlers in a row led to this event: a subscriber publishes to itself")]
    TooDeep {
        /// How many handlers.
        depth: u16,
    },
    /// The handler would wait for room that only it can make, directly or through other handlers.
    #[error("the handler would wait for itself: its own queue, or one that waits for it, is full")]
    WouldDeadlock,
    /// The handler would block a thread that other subscribers run on.
    #[error("a handler on a task or on the pool must not block: use `publish` or a thread")]
    WouldBlock,
    /// The hub cannot remember more keys.
    #[error("{keys} keys are in use, which is the maximum: put what varies into the payload")]
    TooManyKeys {
        /// How many keys are in use.
        keys: usize,
    },
    /// The function that weighs payloads panicked.
    #[error("the function that weighs the payloads of this topic panicked")]
    WeighFailed,
    /// The function that chooses a member of a group panicked.
    #[error("the function that shares the events of group {group:?} panicked")]
    ShareFailed {
        /// The group.
        group: String,
    },
}

/// The event was not published. Returns the payload to the caller.
///
/// ```
/// use artel_hub::{EventHub, Topic};
/// const JOBS: Topic<String> = Topic::new("jobs");
///
/// let hub = EventHub::new();
/// hub.blocking_shutdown(std::time::Duration::ZERO);
/// let error = hub.blocking_publish(&JOBS, "rotate the logs".to_string()).unwrap_err();
/// assert_eq!(error.to_string(), "not published: the hub is shut down");
/// assert_eq!(error.into_payload(), "rotate the logs");
/// ```
pub struct PublishError<T> {
    payload: T,
    reason: Refusal,
}

impl<T> PublishError<T> {
    pub(crate) fn new(payload: T, reason: impl Into<Refusal>) -> PublishError<T> {
        PublishError { payload, reason: reason.into() }
    }

    /// Why it was not published.
    pub fn reason(&self) -> &Refusal {
        &self.reason
    }

    /// The payload.
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

/// Why a subscriber was not created.
///
/// ```
/// use artel_hub::{Delivery, EventHub, SubscribeError, Topic};
/// const TICKS: Topic<u64> = Topic::new("ticks");
///
/// let hub = EventHub::new();
/// let _clock = hub.subscribe(&TICKS).name("clock").inline(|_: Delivery<'_, u64>| ())?;
/// let again = hub.subscribe(&TICKS).name("clock").inline(|_: Delivery<'_, u64>| ());
/// assert_eq!(again.unwrap_err(), SubscribeError::Duplicate { name: "clock".into() });
/// # Ok::<(), SubscribeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// A key or pattern is invalid.
    #[error("not subscribed: {0}")]
    Key(#[from] KeyError),
    /// The hub is shut down.
    #[error("not subscribed: the hub is shut down")]
    Closed,
    /// A subscriber of this name exists, and its keys overlap with these.
    #[error(
        "not subscribed: a subscriber named {name:?} has one of these keys already: choose another name"
    )]
    Duplicate {
        /// The name.
        name: String,
    },
    /// The name of the subscriber or of its group is invalid.
    #[error(
        "not subscribed: the name {name:?} is empty, longer than 256 bytes or cannot be printed: choose another"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// The key is already used for payloads of another type.
    #[error("not subscribed: the key {key:?} carries {expected}, not {given}: use another key")]
    WrongType {
        /// The key.
        key: String,
        /// The type that the key carries.
        expected: &'static str,
        /// The type that the subscriber takes.
        given: &'static str,
    },
    /// The queue has no room for a single event.
    #[error(
        "not subscribed: a queue of 0 events or 0 bytes has no room: give it at least 1 of each"
    )]
    NoRoom {
        /// The maximum number of events that was asked for.
        events: usize,
        /// The maximum number of bytes that was asked for.
        bytes: u64,
    },
    /// The group exists and shares its events in another way.
    #[error("not subscribed: the group {group:?} shares its events in another way")]
    GroupDiffers {
        /// The group.
        group: String,
    },
    /// Sharing by a hash needs keys with one payload type.
    #[error(
        "not subscribed: the group {group:?} shares by a hash, which needs keys of one type: use Keys::new"
    )]
    NeedsType {
        /// The group.
        group: String,
    },
    /// An inline subscriber was given a setting that it cannot use, such as a queue.
    #[error("not subscribed: an inline subscriber cannot have {what}: its publishers call it")]
    NotInline {
        /// The setting.
        what: &'static str,
    },
    /// The number of attempts is 0.
    #[error("not subscribed: the number of attempts must be at least 1")]
    NoAttempts,
    /// The time-out of the handler is zero.
    #[error("not subscribed: the handler time-out must not be zero (`None` means no time-out)")]
    NoTime,
    /// There is no tokio runtime to run a task on.
    #[error(
        "not subscribed: there is no tokio runtime here: call from one, give one to the builder, or use a thread \
         or the pool"
    )]
    NoRuntime,
    /// The operating system did not start a thread.
    #[error("not subscribed: a thread could not be started: {reason}")]
    NoThread {
        /// The error of the operating system.
        reason: String,
    },
}

/// Why a subscriber was not stopped.
///
/// ```
/// use artel_hub::{Delivery, EventHub, StopError, Subscription, Topic};
/// # use std::sync::{Arc, Mutex};
/// # const TICKS: Topic<u64> = Topic::new("ticks");
///
/// let hub = EventHub::new();
/// let own: Arc<Mutex<Option<Subscription>>> = Arc::default();
/// let (slot, (send, received)) = (own.clone(), std::sync::mpsc::channel());
/// let clock = hub.subscribe(&TICKS).name("clock").inline(move |_: Delivery<'_, u64>| {
///     // A handler must not wait for its own end: it drops its subscription instead.
///     let me = slot.lock().unwrap().take();
///     me.map_or(Ok(()), |me| send.send(me.blocking_stop(std::time::Duration::ZERO)))
/// })?;
/// *own.lock().unwrap() = Some(clock);
/// hub.blocking_publish(&TICKS, 1)?;
/// assert_eq!(received.recv()?, Err(StopError::FromItself { name: "clock".into() }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// A handler tried to wait for its own end.
    #[error("{name} cannot wait for its own end: drop its subscription instead")]
    FromItself {
        /// The subscriber.
        name: String,
    },
    /// The handler has not returned. The subscriber is not called again when it does.
    #[error("{name} is still inside its handler after {waited:?}; it will not be called again")]
    StillRunning {
        /// The subscriber.
        name: String,
        /// How long the caller waited.
        waited: Duration,
    },
}
