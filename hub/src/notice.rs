//! [`HubNotice`]: what the hub says about itself, on a topic of its own.
//!
//! **Invariant:** saying something never waits; a listener that is full misses it, by count. What a
//! listener does wrong with a notice is only traced, so that it does not talk to itself for ever.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::run::handler::Severity;
use crate::topic::Topic;

/// Where the hub publishes its notices.
pub const NOTICES: Topic<HubNotice> = Topic::json("artel-hub/notices");

/// Something that went wrong inside the hub.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
#[non_exhaustive]
pub enum HubNotice {
    /// A handler failed at an event.
    HandlerFailed {
        /// Whose.
        subscriber: String,
        /// The key of the event.
        key: String,
        /// How bad the handler says it is.
        severity: Severity,
        /// What it said.
        reason: String,
        /// Which attempt it was.
        attempt: u32,
    },
    /// An event became a dead letter after it failed. What a subscriber leaves behind is told of in
    /// [`HubNotice::Stopped`].
    DeadLetter {
        /// Whose.
        subscriber: String,
        /// The key of the event.
        key: String,
        /// Why.
        reason: String,
    },
    /// A subscriber gets a new handler.
    Restarting {
        /// Which.
        subscriber: String,
        /// Why.
        reason: String,
        /// After this many milliseconds.
        pause_ms: u64,
    },
    /// A subscriber was stopped: its budget is spent, or its queue overflowed under
    /// [`Overflow::Detach`](crate::Overflow::Detach).
    Stopped {
        /// Which.
        subscriber: String,
        /// Why.
        reason: String,
        /// How many events it left; they are dead letters.
        leftovers: u64,
    },
    /// A subscriber began to lose events because its queue is full. SayGuard again only after it has
    /// caught up.
    Lagging {
        /// Which.
        subscriber: String,
        /// How many it has lost so far.
        dropped: u64,
    },
    /// A subscriber has not got on with what waits for it, for two seconds; said again when that time
    /// has doubled.
    Stuck {
        /// Which.
        subscriber: String,
        /// For at least this long.
        for_ms: u64,
        /// How many events wait.
        lag: u64,
    },
    /// Publishers have waited for room with a subscriber for a second or more.
    PublishersWait {
        /// With which.
        subscriber: String,
        /// How many wait.
        publishers: u64,
        /// The longest wait so far.
        for_ms: u64,
    },
    /// A subscriber that was stuck goes on.
    Unstuck {
        /// Which.
        subscriber: String,
    },
    /// An async handler kept a thread of the runtime busy; others could not run there.
    Blocking {
        /// Which.
        subscriber: String,
        /// For this long.
        for_ms: u64,
    },
    /// Dead letters wait to be written, and the store refuses them.
    LettersWait {
        /// How many wait.
        waiting: u64,
        /// What the store said.
        reason: String,
    },
    /// Dead letters could not be kept.
    LettersLost {
        /// How many.
        letters: u64,
        /// Why.
        reason: String,
    },
    /// A payload's `Drop` panicked, in this process.
    DropPanicked {
        /// How many so far.
        times: u64,
    },
}

impl HubNotice {
    /// How bad it is.
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

    /// Which kind of notice it is, in one word.
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

    /// Whom it is about, if it is about a subscriber.
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
                write!(f, "{subscriber} is stuck for {:?}, {lag} events wait", ms(for_ms))
            }
            HubNotice::PublishersWait { subscriber, publishers, for_ms } => write!(
                f,
                "publishers wait for room with {subscriber}: {publishers}, the longest for {:?}",
                ms(for_ms)
            ),
            HubNotice::Unstuck { subscriber } => write!(f, "{subscriber} goes on"),
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
