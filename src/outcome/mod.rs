//! Stage 5: how a message ended. Takes: a claim by value and an [`Outcome`]. It is the last stage.
//!
//! **Invariant:** exactly one outcome is recorded per message. A handler may start again if its process
//! dies or is cut off; the late outcome is refused (`lost`). Everything that belongs to an outcome
//! (counters, error record, ledger entry, effects, messages that follow) is recorded with it in one script or not at all.

mod books;
mod effect;
mod error_store;
mod losses;
mod numbers;
mod record;
mod requeue;
mod settlement;
mod status;
mod take;

pub use effect::Effect;
pub(crate) use error_store::drains;
pub use error_store::{Cursor, ErrorStore};
pub use losses::Loss;
pub use numbers::FleetCounts;
pub(crate) use numbers::FleetNumbers;
#[cfg(test)]
pub(crate) use numbers::LaneNumbers;
pub use record::ErrorRecord;
pub(crate) use record::record_of;
pub use requeue::{Requeued, Requeuer};
pub(crate) use settlement::{Ended, Report, Settled, SettledBy, Settlement};
pub use status::{
    ErrorsStatus, GeneratorStatus, LaneLengths, MemberStatus, MessageCounts, RedisStatus, Status,
    Trouble,
};
pub use take::Taker;

use std::time::Duration;

use crate::cause::Cause;
use crate::lane::Lane;
use crate::message::NewMessage;

/// How a run of a message ended.
///
/// A message that is done or failed is over. One that is retried or snoozed runs again later.
///
/// ```
/// # use artel::{Effect, Outcome};
/// let done = Outcome::done().with(Effect::incr_by("sold", 3)).then("send the bill");
/// let failed = Outcome::failed("no such customer");
/// let busy = Outcome::retry("the shop is busy");
/// assert!(done.is_done() && !failed.is_done() && busy.is_retry());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// `None` if it is simply done. Most outcomes are, so they are as small as a pointer.
    details: Option<Box<Details>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Details {
    how: How,
    effects: Vec<Effect>,
    follow_ups: Vec<FollowUp>,
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum How {
    #[default]
    Done,
    Failed(Failure),
    Retry(Retry),
    /// Not now.
    Snooze(Snooze),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    pub(crate) reason: String,
    /// The handler decided it. Anything else is an accident, which may be retried.
    pub(crate) is_verdict: bool,
    /// It goes to the error store.
    pub(crate) is_kept: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Retry {
    pub(crate) reason: String,
    /// `None` until it is decided.
    pub(crate) after: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Snooze {
    pub(crate) after: Duration,
    /// Why, if it was not its handler that wanted it.
    pub(crate) reason: Option<String>,
}

/// A message that is sent with an outcome.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FollowUp {
    pub(crate) lane: Lane,
    pub(crate) message: NewMessage,
}

/// A reason longer than this is cut.
const REASON_BYTES_MAX: usize = 4096;
/// The most messages that follow one outcome, and their bytes.
const FOLLOW_UPS_MAX: usize = 100;
const FOLLOW_UP_BYTES_MAX: usize = 1 << 20;

fn cut(reason: impl Into<String>) -> String {
    let mut reason = reason.into();
    if reason.len() > REASON_BYTES_MAX {
        let end = (0..=REASON_BYTES_MAX).rev().find(|&at| reason.is_char_boundary(at));
        reason.truncate(end.unwrap_or(0));
        reason.push('…');
    }
    reason
}

impl Outcome {
    /// The message is completed.
    pub fn done() -> Outcome {
        Outcome { details: None }
    }

    /// The message failed, and that is final: it goes to the error store, with this reason.
    pub fn failed(reason: impl Into<String>) -> Outcome {
        Outcome::failed_by(Cause::Handler, reason)
    }

    /// It did not work this time: run it again later. How often, and after how long, its kind says
    /// ([`Kind`](crate::Kind)), or [`after`](Self::after). When the retries are used up, it fails with this reason.
    pub fn retry(reason: impl Into<String>) -> Outcome {
        Outcome::of(How::Retry(Retry { reason: cut(reason), after: None }))
    }

    /// Not now: run it again after this time. This is neither an error nor a retry.
    pub fn snooze(time: Duration) -> Outcome {
        Outcome::of(How::Snooze(Snooze { after: time, reason: None }))
    }

    /// Retries after this time, in place of the back-off of its kind. It changes nothing in an outcome that is done or
    /// failed.
    pub fn after(mut self, time: Duration) -> Outcome {
        match self.details.as_deref_mut().map(|details| &mut details.how) {
            Some(How::Retry(retry)) => retry.after = Some(time),
            Some(How::Snooze(snooze)) => snooze.after = time,
            Some(How::Done | How::Failed(_)) | None => {}
        }
        self
    }

    fn of(how: How) -> Outcome {
        Outcome { details: Some(Box::new(Details { how, ..Details::default() })) }
    }

    /// A final failure.
    pub(crate) fn failed_by(cause: Cause, reason: impl Into<String>) -> Outcome {
        let (is_verdict, is_kept) = (true, true);
        Outcome::of(How::Failed(Failure { cause, reason: cut(reason), is_verdict, is_kept }))
    }

    /// If it is a failure, it is not kept.
    pub(crate) fn forgotten(mut self) -> Outcome {
        if let Some(How::Failed(failure)) = self.how_mut() {
            failure.is_kept = false;
        }
        self
    }

    /// A failure that nobody decided: it may be retried.
    pub(crate) fn accident(cause: Cause, reason: impl Into<String>) -> Outcome {
        let (is_verdict, is_kept) = (false, true);
        Outcome::of(How::Failed(Failure { cause, reason: cut(reason), is_verdict, is_kept }))
    }

    /// Adds a write that happens exactly once, together with this outcome, or not at all. An outcome
    /// has at most [`Effect::MAX`] effects, with [`Effect::BYTES_MAX`] bytes. If an effect is refused,
    /// the message fails.
    pub fn with(mut self, effect: Effect) -> Outcome {
        self.details.get_or_insert_default().effects.push(effect);
        self
    }

    /// Sends a message to the lane `normal`, exactly once, together with this outcome, or not at all. So a chain of
    /// steps never loses or doubles a step. An outcome has at most 100 of them, with 1 MiB. Only those of the last run
    /// are sent, also if it failed; those of a run that is retried or snoozed are dropped. Effects happen once in every
    /// run that returns them.
    pub fn then(self, message: impl Into<NewMessage>) -> Outcome {
        self.then_in(Lane::Normal, message)
    }

    /// As [`then`](Self::then), to this lane.
    pub fn then_in(mut self, lane: Lane, message: impl Into<NewMessage>) -> Outcome {
        let message = message.into();
        self.details.get_or_insert_default().follow_ups.push(FollowUp { lane, message });
        self
    }

    /// How many bytes it sends to Redis.
    fn bytes(&self) -> usize {
        let reason = self.reason().map_or(0, str::len);
        reason + self.effects().iter().map(Effect::bytes).sum::<usize>() + self.follow_up_bytes()
    }

    fn follow_up_bytes(&self) -> usize {
        self.follow_ups().iter().map(|next| next.message.payload().len()).sum()
    }

    /// Checks what belongs to it. The error says what is wrong.
    fn check(&self, payload_bytes_max: usize) -> Result<(), String> {
        let (effects, follow_ups) = (self.effects(), self.follow_ups());
        if effects.len() > Effect::MAX {
            return Err(format!("{} effects are more than {}", effects.len(), Effect::MAX));
        }
        let bytes: usize = effects.iter().map(Effect::bytes).sum();
        if bytes > Effect::BYTES_MAX {
            return Err(format!("{bytes} bytes are more than {}", Effect::BYTES_MAX));
        }
        effects.iter().try_for_each(Effect::check)?;
        if follow_ups.is_empty() {
            return Ok(());
        }
        let (count, bytes) = (follow_ups.len(), self.follow_up_bytes());
        if count > FOLLOW_UPS_MAX {
            return Err(format!("{count} messages that follow are more than {FOLLOW_UPS_MAX}"));
        }
        if bytes > FOLLOW_UP_BYTES_MAX {
            return Err(format!("{bytes} bytes that follow are more than {FOLLOW_UP_BYTES_MAX}"));
        }
        for FollowUp { lane, message } in follow_ups {
            let checked = lane.check_open().and_then(|()| message.check(payload_bytes_max));
            checked.map_err(|error| format!("a message that follows: {error}"))?;
        }
        Ok(())
    }

    /// The same, and nothing follows.
    pub(crate) fn without_follow_ups(mut self) -> Outcome {
        if let Some(details) = &mut self.details {
            details.follow_ups.clear();
        }
        self
    }

    /// Is it done, and nothing belongs to it?
    fn is_simply_done(&self) -> bool {
        self.details.is_none()
    }

    /// How it ended; `None` if it is simply done.
    pub(crate) fn how(&self) -> Option<&How> {
        self.details.as_ref().map(|details| &details.how)
    }

    pub(crate) fn how_mut(&mut self) -> Option<&mut How> {
        self.details.as_mut().map(|details| &mut details.how)
    }

    fn failure(&self) -> Option<&Failure> {
        match self.how()? {
            How::Failed(failure) => Some(failure),
            How::Done | How::Retry(_) | How::Snooze(_) => None,
        }
    }

    pub(crate) fn into_how(self) -> How {
        self.details.map_or(How::Done, |details| details.how)
    }

    /// Why it failed, if it did.
    pub fn cause(&self) -> Option<Cause> {
        self.failure().map(|failure| failure.cause)
    }

    /// The reason, if it failed or is retried.
    pub fn reason(&self) -> Option<&str> {
        match self.how()? {
            How::Failed(failure) => Some(&failure.reason),
            How::Retry(retry) => Some(&retry.reason),
            How::Done | How::Snooze(_) => None,
        }
    }

    /// The writes that are part of it.
    pub fn effects(&self) -> &[Effect] {
        self.details.as_ref().map_or(&[], |details| &details.effects)
    }

    pub(crate) fn follow_ups(&self) -> &[FollowUp] {
        self.details.as_ref().map_or(&[], |details| &details.follow_ups)
    }

    /// The messages that are sent with it.
    pub fn messages(&self) -> impl Iterator<Item = &NewMessage> {
        self.follow_ups().iter().map(|next| &next.message)
    }

    /// Is it completed?
    pub fn is_done(&self) -> bool {
        matches!(self.how(), None | Some(How::Done))
    }

    /// Does it ask for a retry?
    pub fn is_retry(&self) -> bool {
        matches!(self.how(), Some(How::Retry(_)))
    }

    /// Does it ask for a later run that is no retry?
    pub fn is_snooze(&self) -> bool {
        matches!(self.how(), Some(How::Snooze(_)))
    }
}

/// What a handler may return.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{Context, Message, testing};
///
/// // `()` is done. An `Err` is an accident: it is retried if its kind allows that, else it failed.
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
        let failed = |error: E| Outcome::accident(Cause::Handler, error.to_string());
        self.map_or_else(failed, T::into_outcome)
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
