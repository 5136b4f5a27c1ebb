//! [`HubNotice`]: what the hub reports about itself, on its own topic.
//!
//! **Invariant:** publishing a notice never waits. A listener whose queue is full misses the
//! notice, and the loss is counted. If a listener fails at a notice, that failure is only logged;
//! otherwise it would cause notices about itself for ever.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::run::handler::Severity;
use crate::topic::Topic;

/// The topic on which the hub publishes its notices.
///
/// ```
/// use artel_hub::{Delivery, EventHub, HandlerError, HubNotice, NOTICES, Topic};
/// const ORDERS: Topic<u32> = Topic::new("orders");
///
/// let hub = EventHub::new();
/// let (send, received) = std::sync::mpsc::channel();
/// let _log = hub
///     .subscribe(&NOTICES)
///     .inline(move |notice: Delivery<'_, HubNotice>| send.send(notice.to_string()))?;
/// let billing = hub.subscribe(&ORDERS).name("billing");
/// let _billing = billing.inline(|_: Delivery<'_, u32>| Err(HandlerError::skip("no price")))?;
/// hub.blocking_publish(&ORDERS, 7)?;
/// assert_eq!(received.recv()?, "billing failed at an event of orders (attempt 1): no price");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const NOTICES: Topic<HubNotice> = Topic::json("artel-hub/notices");

/// A problem inside the hub. Published on [`NOTICES`].
///
/// ```
/// use artel_hub::{HubNotice, Severity};
///
/// fn is_urgent(notice: &HubNotice) -> bool {
///     match notice {
///         HubNotice::Lagging { dropped, .. } => *dropped > 1000,
///         other => other.severity() == Severity::Critical,
///     }
/// }
/// let stuck = HubNotice::Stuck { subscriber: "mail".into(), for_ms: 2000, lag: 40 };
/// assert!(!is_urgent(&stuck));
/// assert_eq!(stuck.subscriber(), Some("mail"));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
#[non_exhaustive]
pub enum HubNotice {
    /// A handler failed at an event.
    HandlerFailed {
        /// The subscriber.
        subscriber: String,
        /// The key of the event.
        key: String,
        /// The severity that the handler gave to the error.
        severity: Severity,
        /// The text of the error.
        reason: String,
        /// The number of the failed attempt, from 1.
        attempt: u32,
    },
    /// An event failed and became a dead letter. Events that a subscriber did not handle before it
    /// was stopped are reported in [`HubNotice::Stopped`].
    DeadLetter {
        /// The subscriber.
        subscriber: String,
        /// The key of the event.
        key: String,
        /// Why the event failed.
        reason: String,
    },
    /// A subscriber gets a new handler.
    Restarting {
        /// The subscriber.
        subscriber: String,
        /// Why it needs one.
        reason: String,
        /// The pause before the new handler starts, in milliseconds.
        pause_ms: u64,
    },
    /// A subscriber was stopped. Its restart budget is spent, or its queue overflowed under
    /// [`Overflow::Detach`](crate::Overflow::Detach).
    Stopped {
        /// The subscriber.
        subscriber: String,
        /// Why it was stopped.
        reason: String,
        /// How many events it did not handle. They are dead letters now.
        leftovers: u64,
    },
    /// A subscriber loses events because its queue is full. Reported once, and again only after the
    /// subscriber has caught up in between.
    Lagging {
        /// The subscriber.
        subscriber: String,
        /// How many events it has lost so far.
        dropped: u64,
    },
    /// Events wait for a subscriber, and it has made no progress for two seconds. Reported again
    /// each time that duration has doubled.
    Stuck {
        /// The subscriber.
        subscriber: String,
        /// How long it has made no progress, at least, in milliseconds.
        for_ms: u64,
        /// How many events wait for it.
        lag: u64,
    },
    /// Publishers have been waiting for room in a subscriber's queue for a second or more.
    PublishersWait {
        /// The subscriber.
        subscriber: String,
        /// How many publishers wait.
        publishers: u64,
        /// The longest of these waits so far, in milliseconds.
        for_ms: u64,
    },
    /// A subscriber that was stuck makes progress again.
    Unstuck {
        /// The subscriber.
        subscriber: String,
    },
    /// An async handler blocked a thread of the runtime. Other tasks could not run there.
    Blocking {
        /// The subscriber.
        subscriber: String,
        /// How long it blocked the thread, in milliseconds.
        for_ms: u64,
    },
    /// Dead letters wait to be written because the store refuses them.
    LettersWait {
        /// How many dead letters wait.
        waiting: u64,
        /// The error of the store.
        reason: String,
    },
    /// Dead letters were lost.
    LettersLost {
        /// How many were lost.
        letters: u64,
        /// Why they were lost.
        reason: String,
    },
    /// A payload's `Drop` panicked. Counted for the whole process.
    DropPanicked {
        /// How many times this has happened so far.
        times: u64,
    },
}

impl HubNotice {
    /// How bad the problem is.
    pub fn severity(&self) -> Severity {
        match self {
            HubNotice::HandlerFailed { severity, .. } => *severity,
            HubNotice::Unstuck { .. } | HubNotice::Blocking { .. } => Severity::Warning,
            HubNotice::DeadLetter { .. }
            | HubNotice::Restarting { .. }
            | HubNotice::Lagging { .. }
            | HubNotice::Stuck { .. }
            | HubNotice::PublishersWait { .. }
            | HubNotice::DropPanicked { .. } => Severity::Error,
            HubNotice::Stopped { .. }
            | HubNotice::LettersLost { .. }
            | HubNotice::LettersWait { .. } => Severity::Critical,
        }
    }

    /// The kind of notice, in one word.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            HubNotice::HandlerFailed { .. } => "handler_failed",
            HubNotice::DeadLetter { .. } => "dead_letter",
            HubNotice::Restarting { .. } => "restarting",
            HubNotice::Stopped { .. } => "stopped",
            HubNotice::Lagging { .. } => "lagging",
            HubNotice::Stuck { .. } => "stuck",
            HubNotice::PublishersWait { .. } => "publishers_wait",
            HubNotice::Unstuck { .. } => "unstuck",
            HubNotice::Blocking { .. } => "blocking",
            HubNotice::LettersWait { .. } => "letters_wait",
            HubNotice::LettersLost { .. } => "letters_lost",
            HubNotice::DropPanicked { .. } => "drop_panicked",
        }
    }

    /// The subscriber that the notice is about, if any.
    pub fn subscriber(&self) -> Option<&str> {
        match self {
            HubNotice::HandlerFailed { subscriber, .. }
            | HubNotice::DeadLetter { subscriber, .. }
            | HubNotice::Restarting { subscriber, .. }
            | HubNotice::Stopped { subscriber, .. }
            | HubNotice::Lagging { subscriber, .. }
            | HubNotice::Stuck { subscriber, .. }
            | HubNotice::PublishersWait { subscriber, .. }
            | HubNotice::Unstuck { subscriber }
            | HubNotice::Blocking { subscriber, .. } => Some(subscriber),
            HubNotice::LettersLost { .. }
            | HubNotice::LettersWait { .. }
            | HubNotice::DropPanicked { .. } => None,
        }
    }
}

impl std::fmt::Display for HubNotice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |ms: &u64| Duration::from_millis(*ms);
        match self {
            HubNotice::HandlerFailed { subscriber, key, reason, attempt, .. } => {
                write!(f, "{subscriber} failed at an event of {key} (attempt {attempt}): {reason}")
            }
            HubNotice::DeadLetter { subscriber, key, reason } => {
                write!(f, "an event of {key} is a dead letter of {subscriber}: {reason}")
            }
            HubNotice::Restarting { subscriber, reason, pause_ms } => {
                write!(f, "{subscriber} restarts in {:?}: {reason}", ms(pause_ms))
            }
            HubNotice::Stopped { subscriber, reason, leftovers } => write!(
                f,
                "{subscriber} was stopped: {reason}; events it left, now dead letters: {leftovers}"
            ),
            HubNotice::Lagging { subscriber, dropped } => {
                write!(f, "{subscriber} is too slow and has lost events, {dropped} so far")
            }
            HubNotice::Stuck { subscriber, for_ms, lag } => {
                write!(f, "{subscriber} has been stuck for {:?}, {lag} events wait", ms(for_ms))
            }
            HubNotice::PublishersWait { subscriber, publishers, for_ms } => write!(
                f,
                "publishers wait for room with {subscriber}: {publishers}, the longest for {:?}",
                ms(for_ms)
            ),
            HubNotice::Unstuck { subscriber } => write!(f, "{subscriber} is no longer stuck"),
            HubNotice::Blocking { subscriber, for_ms } => write!(
                f,
                "{subscriber} blocked a thread of the runtime for {:?}: run it on Context::Thread",
                ms(for_ms)
            ),
            HubNotice::LettersWait { waiting, reason } => {
                write!(f, "{waiting} dead letters wait to be written: {reason}")
            }
            HubNotice::LettersLost { letters, reason } => {
                write!(f, "{letters} dead letters could not be kept: {reason}")
            }
            HubNotice::DropPanicked { times } => {
                write!(f, "dropping a payload panicked, {times} times so far")
            }
        }
    }
}
