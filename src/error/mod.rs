//! The only public error type.

mod reasons;

use std::time::Duration;

pub use reasons::{BadAddress, Denial, Unfit, Unreached};

use crate::id::MessageId;

/// What did not happen, and why.
///
/// ```
/// use artel::{Error, Fleet};
///
/// let error = Fleet::open("redis://127.0.0.1", "no spaces, please").unwrap_err();
/// assert!(matches!(error, Error::Config { field: "fleet", .. }));
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is out of its range, so nothing was started.
    #[error("{field} {problem}")]
    Config {
        /// The setting, by its name in [`Config`](crate::Config).
        field: &'static str,
        /// What is wrong with its value.
        problem: String,
    },

    /// The address cannot be used, so nothing was started.
    #[error("redis {why}")]
    Address {
        /// What is wrong with it.
        why: BadAddress,
    },

    /// The fleet already runs with another value, so this member did not join.
    #[error("fleet {fleet:?} runs with {field} = {theirs}, not {yours}")]
    Conflict {
        /// The fleet's name.
        fleet: String,
        /// The setting that must be the same for all members.
        field: String,
        /// The value the fleet was started with.
        theirs: String,
        /// The value this member asked for.
        yours: String,
    },

    /// The fleet runs with a protocol that this program does not speak, so nothing was done.
    #[error("fleet {fleet:?} runs with protocol {theirs}, this program speaks {ours}")]
    Protocol {
        /// The fleet's name.
        fleet: String,
        /// The protocol of its members.
        theirs: String,
        /// The protocol of this version.
        ours: u32,
    },

    /// The slot of the fleet is on its way to another node of the cluster. Nothing can be done until it is there, and nothing
    /// is lost.
    #[error(
        "slot {slot}, which holds this fleet, is being moved to another node of the cluster: nothing was done"
    )]
    SlotMoving {
        /// The slot.
        slot: u16,
    },

    /// The fleet is being removed with everything in it, so nothing was done.
    #[error("fleet {fleet:?} is being removed")]
    BeingRemoved {
        /// The fleet's name.
        fleet: String,
    },

    /// The fleet has members, so it was not removed, or only a part of it was.
    #[error("fleet {fleet:?} is in use: members in it: {members}")]
    InUse {
        /// The fleet's name.
        fleet: String,
        /// How many members it has.
        members: u64,
    },

    /// No larger number can be granted under this key, so nothing was done: see docs/operations.md on clocks.
    #[error("{key} cannot grow past 2^52: Redis's clock is, or once was, past the year 2112")]
    Exhausted {
        /// The key in Redis.
        key: String,
    },

    /// Redis could not be reached, so nothing was done.
    #[error("cannot reach Redis at {redis}: {reason}")]
    Unreachable {
        /// The address, without credentials.
        redis: String,
        /// What the network reported.
        reason: String,
        /// The same for programs.
        why: Unreached,
    },

    /// Redis refused the credentials, or the user lacks a permission, so nothing was done.
    #[error("Redis at {redis} denies access: {reason}")]
    Denied {
        /// The address, without credentials.
        redis: String,
        /// What Redis reported.
        reason: String,
        /// The same for programs.
        why: Denial,
    },

    /// This Redis cannot keep the promise, or a key of it cannot be used, so nothing was done.
    #[error("Redis at {redis} cannot be used: {why}")]
    Unfit {
        /// The address, without credentials.
        redis: String,
        /// What it lacks.
        why: Unfit,
    },

    /// A payload is larger than allowed, so no message of its batch was added.
    #[error("a payload of {bytes} bytes is larger than the limit of {max} bytes")]
    PayloadTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit, [`Config::payload_bytes_max`](crate::Config::payload_bytes_max).
        max: usize,
    },

    /// There is no room for more messages now, so no message of this batch was added.
    #[error("no room: {reason}")]
    Full {
        /// Which bound is reached.
        reason: String,
    },

    /// More messages than one call may carry, so none of them was added.
    #[error("a batch of {messages} messages and {bytes} bytes is too large: {max}")]
    BatchTooLarge {
        /// How many messages.
        messages: usize,
        /// The size of all their payloads.
        bytes: usize,
        /// What is allowed.
        max: &'static str,
    },

    /// Redis did not answer in time. It is not known whether the call took effect.
    #[error("Redis did not answer within {after:?}")]
    NoAnswer {
        /// How long the call waited.
        after: Duration,
    },

    /// Messages were sent and Redis did not answer in time. They were added once or not at all; it
    /// is not known which. To be sure, look for the id: [`Fleet::find`](crate::Fleet::find), or
    /// `artel show`. Or send under a key of your own
    /// ([`Sender::send_once`](crate::Sender::send_once)): then sending again adds nothing twice.
    #[error(
        "it is not known whether {} added: Redis did not answer within {} s{}",
        were(*messages, id),
        after.as_millis() as f64 / 1e3,
        if *under_key { "; sending again under the same key is safe" } else { "" }
    )]
    InDoubt {
        /// The id of the first of them, if they were added.
        id: MessageId,
        /// How many messages.
        messages: usize,
        /// How long the call waited.
        after: Duration,
        /// They were sent under a key, so the same call may be repeated.
        under_key: bool,
    },

    /// It was done, and too few replicas have it in time, so a failover may undo it. With
    /// [`Durability::Local`](crate::Durability::Local) nobody waits for replicas.
    #[error(
        "the primary did it, but only {replicas} of {wanted} replicas have it: a failover may undo it"
    )]
    Unreplicated {
        /// How many replicas have it.
        replicas: u32,
        /// How many must have it.
        wanted: u32,
    },

    /// Fewer replicas are there than are asked for, so nothing was started.
    #[error(
        "Redis at {redis} has {replicas} replicas in sync, and {wanted} must have what is told"
    )]
    TooFewReplicas {
        /// The address, without credentials.
        redis: String,
        /// How many are in sync.
        replicas: u32,
        /// How many must have it.
        wanted: u32,
    },

    /// Redis has lost data: messages that this sender was told of are forgotten. No message of this call was added; the same
    /// call may be repeated.
    #[error("Redis has forgotten {messages} messages that this sender was told of")]
    Forgotten {
        /// How many messages, at least.
        messages: u64,
    },

    /// Redis answered with an error that Artel does not expect.
    #[error("Redis refused: {reason}")]
    Refused {
        /// What Redis reported.
        reason: String,
    },

    /// A lock or a permit is no longer held, so the action that it guards was not done.
    #[error("{what} {name:?} is no longer held")]
    NotHeld {
        /// `lock` or `permit`.
        what: &'static str,
        /// Its name.
        name: String,
    },

    /// This member was stopped before it could do this.
    #[error("this member is stopping")]
    Stopping,
}

impl Error {
    /// True if the same call may be repeated unchanged without doing anything twice: Redis is down,
    /// there is no room, or the message has a key. Not for [`Error::NoAnswer`], and not for
    /// [`Error::InDoubt`] without a key: then it may have been done.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Error::Unreachable { .. }
                | Error::Full { .. }
                | Error::Forgotten { .. }
                | Error::InDoubt { under_key: true, .. }
        )
    }

    /// True if Redis could not be reached or did not answer.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Error::Unreachable { .. } | Error::NoAnswer { .. } | Error::InDoubt { .. })
    }

    /// True if it is not known whether messages were added, or whether they will stay.
    pub fn is_in_doubt(&self) -> bool {
        matches!(self, Error::InDoubt { .. } | Error::Unreplicated { .. })
    }

    /// True if a lock or a permit is no longer held.
    pub fn is_not_held(&self) -> bool {
        matches!(self, Error::NotHeld { .. })
    }

    /// True if there is no room for more messages now.
    pub fn is_full(&self) -> bool {
        matches!(self, Error::Full { .. })
    }
}

fn were(messages: usize, id: &MessageId) -> String {
    match messages {
        1 => format!("message {id} was"),
        n => format!("{n} messages (the first is {id}) were"),
    }
}
