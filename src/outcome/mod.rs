//! Stage 5: how a message ended. Takes: a claim by value and an [`Outcome`]. It is the last stage.
//!
//! **Invariant:** exactly one outcome is recorded per message. A handler may start again if its process
//! dies or is cut off; the late outcome is refused (`lost`). Everything that belongs to an outcome
//! (counters, error record, ledger entry, effects) is recorded with it in one script or not at all.

mod books;
mod effect;
mod error_store;
mod record;
mod settlement;
mod status;
mod take;

pub use effect::Effect;
pub(crate) use error_store::drains;
pub use error_store::{Cursor, ErrorStore, Requeued, Requeuer};
pub use record::ErrorRecord;
pub(crate) use record::record_of;
pub(crate) use settlement::{Ended, Report, Settled, SettledBy, Settlement};
pub use status::{
    ErrorsStatus, GeneratorStatus, LaneLengths, MemberStatus, MessageCounts, RedisStatus, Status,
    Trouble,
};
pub use take::Taker;

use crate::cause::Cause;

/// How a message ended.
///
/// ```
/// # use artel::{Effect, Outcome};
/// let done = Outcome::done().with(Effect::incr_by("sold", 3));
/// let failed = Outcome::failed("no such customer");
/// assert!(done.is_done() && !failed.is_done());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// `None` if it is simply done. Most outcomes are, so they are as small as a pointer.
    details: Option<Box<Details>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Details {
    failure: Option<Failure>,
    effects: Vec<Effect>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    pub(crate) reason: String,
}

/// A reason longer than this is cut.
const REASON_BYTES_MAX: usize = 4096;

impl Outcome {
    /// The message is completed.
    pub fn done() -> Outcome {
        Outcome { details: None }
    }

    /// The message failed: it goes to the error store, with this reason.
    pub fn failed(reason: impl Into<String>) -> Outcome {
        Outcome::failed_by(Cause::Handler, reason)
    }

    pub(crate) fn failed_by(cause: Cause, reason: impl Into<String>) -> Outcome {
        let mut reason = reason.into();
        if reason.len() > REASON_BYTES_MAX {
            let end = (0..=REASON_BYTES_MAX).rev().find(|&at| reason.is_char_boundary(at));
            reason.truncate(end.unwrap_or(0));
            reason.push('…');
        }
        let failure = Some(Failure { cause, reason });
        Outcome { details: Some(Box::new(Details { failure, effects: Vec::new() })) }
    }

    /// Adds a write that happens exactly once, together with this outcome, or not at all. An outcome
    /// has at most [`Effect::MAX`] effects, with [`Effect::BYTES_MAX`] bytes. If an effect is refused,
    /// the message fails.
    pub fn with(mut self, effect: Effect) -> Outcome {
        self.details.get_or_insert_default().effects.push(effect);
        self
    }

    /// How many bytes it sends to Redis.
    fn bytes(&self) -> usize {
        let reason = self.reason().map_or(0, str::len);
        reason + self.effects().iter().map(Effect::bytes).sum::<usize>()
    }

    /// Checks its effects. The error says what is wrong.
    fn check_effects(&self) -> Result<(), String> {
        let effects = self.effects();
        if effects.len() > Effect::MAX {
            return Err(format!("{} effects are more than {}", effects.len(), Effect::MAX));
        }
        let bytes: usize = effects.iter().map(Effect::bytes).sum();
        if bytes > Effect::BYTES_MAX {
            return Err(format!("{bytes} bytes are more than {}", Effect::BYTES_MAX));
        }
        effects.iter().try_for_each(Effect::check)
    }

    /// Is it done, and has no effects?
    fn is_simply_done(&self) -> bool {
        self.details.is_none()
    }

    fn failure(&self) -> Option<&Failure> {
        self.details.as_ref()?.failure.as_ref()
    }

    pub(crate) fn into_failure(self) -> Option<Failure> {
        self.details?.failure
    }

    /// Why it failed, if it did.
    pub fn cause(&self) -> Option<Cause> {
        self.failure().map(|failure| failure.cause)
    }

    /// The reason of the failure, if it failed.
    pub fn reason(&self) -> Option<&str> {
        self.failure().map(|failure| failure.reason.as_str())
    }

    /// The writes that are part of it.
    pub fn effects(&self) -> &[Effect] {
        self.details.as_ref().map_or(&[], |details| &details.effects)
    }

    /// Is it completed (and not failed)?
    pub fn is_done(&self) -> bool {
        self.failure().is_none()
    }
}

/// What a handler may return.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{Context, Message, testing};
///
/// // `()` is done, an `Err` is failed.
/// let parse = |message: Message, _: Context| async move { message.text().parse::<u32>().map(|_| ()) };
/// assert!(testing::handle(parse, "7").await.is_done());
/// assert!(!testing::handle(parse, "seven").await.is_done());
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait IntoOutcome {
    /// The outcome it stands for.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::done()
    }
}

impl<T: IntoOutcome, E: std::fmt::Display> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        self.map_or_else(|error| Outcome::failed(error.to_string()), T::into_outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let outcome = Outcome::failed("ä".repeat(4000));
        let reason = outcome.reason().expect("failed").to_owned();
        assert!(reason.len() <= REASON_BYTES_MAX + '…'.len_utf8());
        assert!(reason.ends_with('…'));
    }

    #[test]
    fn results_are_outcomes() {
        assert!(Ok::<(), String>(()).into_outcome().is_done());
        assert!(!Err::<(), _>("no").into_outcome().is_done());
    }
}
