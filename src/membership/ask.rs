//! [`Session::ask`]: the one way to make a call in the name of a session.
//!
//! **Invariant:** calls that were not answered are repeated byte for byte until each has its answer or
//! the [`Patience`] ends. An answer that must be on replicas and is not counts as none. `gone` ends the
//! session. Trust counts from before the call was sent, and is refreshed only by an answer with which
//! Redis has refreshed the session itself.

use std::time::Duration;

use futures_util::future::join_all;

use super::{End, Session};
use crate::clock::Moment;
use crate::notice::Notice;
use crate::store::{Call, Link, Reply, StoreError};

/// Pause before a call is repeated.
const PAUSE: Duration = Duration::from_millis(50);
/// If the answer to a call is missing this often, although Redis answers other calls, the call is
/// replaced.
const TRIES_BEFORE_INSTEAD: u32 = 3;

/// What a call does while its session is in doubt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum InDoubt {
    /// It is sent nevertheless: nothing depends on its answer.
    Send,
    /// It is sent once, and not repeated.
    GiveUp,
    /// It waits until the session is trusted.
    Wait,
}

/// How often and how long a call is repeated, and how many refusals it survives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    tries: u32,
    in_doubt: InDoubt,
    /// After this many permanent refusals the call is given up. With `ends_session` the session is
    /// ended then, so that others get what it holds.
    refusals: u32,
    ends_session: bool,
    /// The call waits for its answer no longer than one beat of the session.
    within_beat: bool,
}

impl Patience {
    /// Sent once.
    pub(crate) const ONCE: Patience = Patience {
        tries: 1,
        in_doubt: InDoubt::Send,
        refusals: 1,
        ends_session: false,
        within_beat: false,
    };
    /// Sent once, by the task that keeps the session alive, which has no time to wait.
    pub(crate) const ONE_BEAT: Patience = Patience { within_beat: true, ..Patience::ONCE };
    /// Repeated a few times.
    pub(crate) const SHORT: Patience = Patience { tries: 5, ..Patience::ONCE };
    /// Repeated as long as the session is trusted.
    pub(crate) const WHILE_TRUSTED: Patience =
        Patience { tries: u32::MAX, in_doubt: InDoubt::GiveUp, ..Patience::ONCE };
    /// Repeated until it is answered or the session is over.
    pub(crate) const UNTIL_OVER: Patience = Patience { tries: u32::MAX, ..Patience::ONCE };
    /// The same, but it is sent only while the session is trusted.
    pub(crate) const UNTIL_ANSWERED: Patience =
        Patience { tries: u32::MAX, in_doubt: InDoubt::Wait, ..Patience::ONCE };
    /// The same, sent once: the caller has something to do between two tries.
    pub(crate) const ONCE_TRUSTED: Patience = Patience { tries: 1, ..Patience::UNTIL_ANSWERED };
    /// Repeated until it is answered. If Redis refuses permanently, it is repeated for a while; then the session is ended.
    pub(crate) const UNTIL_RECORDED: Patience =
        Patience { refusals: 60, ends_session: true, ..Patience::UNTIL_ANSWERED };

    /// The next step after a try without an answer.
    fn next(self, tries: u32, refusals: u32, trusted: bool) -> Next {
        if refusals >= self.refusals {
            return Next::Refused;
        }
        if tries >= self.tries || (self.in_doubt == InDoubt::GiveUp && !trusted) {
            return Next::Unanswered;
        }
        Next::Again
    }
}

#[derive(Debug, Eq, PartialEq)]
enum Next {
    Again,
    Unanswered,
    Refused,
}

/// The pause before the next try. The more often Redis has refused, the longer it is.
fn pause(refused: u32) -> Duration {
    PAUSE * (refused / 4 + 1).min(10)
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum AskError {
    /// The session is over.
    Over,
    /// This call found out that the session is over: Redis no longer knows it.
    Gone,
    /// Redis did not answer, or refused.
    Failed(StoreError),
}

impl AskError {
    /// As an error of the store, for callers that treat the end of the session as one more failure.
    pub(crate) fn into_store(self) -> StoreError {
        match self {
            AskError::Over | AskError::Gone => StoreError::odd("the session is over"),
            AskError::Failed(error) => error,
        }
    }
}

/// One of several calls that are made together.
pub(crate) struct Part<R> {
    pub(crate) call: Call<R>,
    pub(crate) instead: Option<Instead<R>>,
}

/// The replacement for a call whose answer is too large for the link: the answer does not arrive,
/// although Redis answers other calls.
pub(crate) struct Instead<R> {
    /// How many bytes the answer may have. The next try gets the time for them.
    pub(crate) bytes: usize,
    /// The call that is sent in the end.
    pub(crate) call: Call<R>,
}

impl<R> From<Call<R>> for Part<R> {
    fn from(call: Call<R>) -> Part<R> {
        Part { call, instead: None }
    }
}

/// The state of calls that are made together.
struct Asking<R> {
    parts: Vec<Part<R>>,
    answers: Vec<Option<R>>,
    /// Tries of each part that were too slow.
    slow: Vec<u32>,
    tries: u32,
    /// Permanent refusals, and temporary ones.
    refusals: u32,
    passing: u32,
}

impl Session {
    /// Makes one call in the name of this session.
    pub(crate) async fn ask<R>(
        &self,
        link: &Link,
        patience: Patience,
        call: Call<R>,
    ) -> Result<R, AskError> {
        let mut asking = Asking::new(vec![call.into()]);
        asking.answered(self, link, patience).await?;
        asking.answers.pop().flatten().ok_or(AskError::Over)
    }

    /// Makes calls that are written and repeated together. Returns when all are answered.
    pub(crate) async fn ask_all<R>(
        &self,
        link: &Link,
        patience: Patience,
        parts: Vec<Part<R>>,
    ) -> Result<Vec<R>, AskError> {
        let mut asking = Asking::new(parts);
        match asking.answered(self, link, patience).await {
            // The answers that Redis gave before it forgot us are still true.
            Err(AskError::Gone) if asking.answers.iter().any(Option::is_some) => {}
            answered => answered?,
        }
        Ok(asking.answers.into_iter().flatten().collect())
    }
}

impl<R> Asking<R> {
    fn new(parts: Vec<Part<R>>) -> Asking<R> {
        let answers = parts.iter().map(|_| None).collect();
        let slow = vec![0; parts.len()];
        Asking { parts, answers, slow, tries: 0, refusals: 0, passing: 0 }
    }

    /// Sends the calls without an answer, again and again until all are answered.
    async fn answered(
        &mut self,
        session: &Session,
        link: &Link,
        patience: Patience,
    ) -> Result<(), AskError> {
        loop {
            if session.over.is_cancelled()
                || (patience.in_doubt == InDoubt::Wait && !session.trust.wait().await)
            {
                return Err(AskError::Over);
            }
            let Some(error) = self.try_once(session, link, patience).await? else { return Ok(()) };
            match patience.next(self.tries, self.refusals, session.trust.holds()) {
                Next::Again => {}
                Next::Unanswered => return Err(AskError::Failed(error)),
                Next::Refused if patience.ends_session => {
                    // Nothing was recorded, and nothing will be: let others have what we hold.
                    session.board.publish(Notice::Refused { reason: error.to_string() });
                    session.end(End::Refused);
                    return Err(AskError::Over);
                }
                Next::Refused => return Err(AskError::Failed(error)),
            }
            tokio::time::sleep(pause(self.refusals.max(self.passing))).await;
        }
    }

    /// Tries all calls without an answer once. Returns the last error, if there was one.
    async fn try_once(
        &mut self,
        session: &Session,
        link: &Link,
        patience: Patience,
    ) -> Result<Option<StoreError>, AskError> {
        let trust = &session.trust;
        let timeout = if patience.within_beat { trust.beat() } else { trust.call_timeout() };
        let open: Vec<usize> =
            (0..self.parts.len()).filter(|&at| self.answers[at].is_none()).collect();
        let sent = Moment::now();
        let calls = open.iter().map(|&at| link.answer(&self.parts[at].call, timeout));
        let results = join_all(calls).await;
        self.tries += 1;
        let (mut failed, mut is_gone) = (None, false);
        for (at, result) in open.into_iter().zip(results) {
            match result {
                Ok((reply, _)) if reply.tag() == "gone" => is_gone = true,
                Ok((reply, _)) => self.take(session, at, reply, sent)?,
                Err(error) => {
                    self.note(session, patience, at, &error, sent);
                    failed = Some(error);
                }
            }
        }
        if is_gone {
            session.end(End::Gone);
            return Err(AskError::Gone);
        }
        Ok(failed)
    }

    /// Stores an answer.
    fn take(
        &mut self,
        session: &Session,
        at: usize,
        reply: Reply,
        sent: Moment,
    ) -> Result<(), AskError> {
        let call = &self.parts[at].call;
        if call.refreshes(&reply) {
            session.trust.refresh(sent);
        }
        match call.read(reply) {
            Ok(answer) => self.answers[at] = Some(answer),
            Err(StoreError::Gone) => {
                session.end(End::Gone);
                return Err(AskError::Gone);
            }
            Err(error) => return Err(AskError::Failed(error)),
        }
        Ok(())
    }

    /// Counts a try that failed.
    fn note(
        &mut self,
        session: &Session,
        patience: Patience,
        at: usize,
        error: &StoreError,
        sent: Moment,
    ) {
        // Memory may be freed: a call that must be recorded waits for that.
        let passes = error.is_passing() || (patience.ends_session && error.is_oom());
        if !passes {
            self.refusals += 1;
            if patience.ends_session {
                tracing::warn!(%error, refusals = self.refusals, "Redis refused");
            }
            return;
        }
        tracing::debug!(%error, "unanswered");
        self.passing += u32::from(matches!(error, StoreError::Server { .. }));
        // Redis answers other calls, but not this one: the answer may be large, and the link slow.
        let slow = matches!(error, StoreError::Silent(_)) && session.trust.refreshed_at() > sent;
        let part = &mut self.parts[at];
        if !slow || part.instead.is_none() {
            return;
        }
        self.slow[at] += 1;
        if self.slow[at] < TRIES_BEFORE_INSTEAD {
            let bytes = part.instead.as_ref().map_or(0, |instead| instead.bytes);
            part.call = part.call.clone().answering(bytes);
        } else if let Some(instead) = part.instead.take() {
            part.call = instead.call;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_where_it_says() {
        assert_eq!(Patience::ONCE.next(1, 0, true), Next::Unanswered);
        assert_eq!(Patience::SHORT.next(4, 0, false), Next::Again);
        assert_eq!(Patience::SHORT.next(5, 0, true), Next::Unanswered);
        assert_eq!(Patience::WHILE_TRUSTED.next(900, 0, true), Next::Again);
        assert_eq!(Patience::WHILE_TRUSTED.next(1, 0, false), Next::Unanswered);
        assert_eq!(Patience::UNTIL_OVER.next(900, 0, false), Next::Again);
        assert_eq!(Patience::UNTIL_ANSWERED.next(900, 0, false), Next::Again);
    }

    #[test]
    fn a_refusal_is_told_at_once_or_waited_out_for_a_while() {
        assert_eq!(Patience::UNTIL_ANSWERED.next(1, 1, true), Next::Refused);
        assert_eq!(Patience::UNTIL_RECORDED.next(59, 59, true), Next::Again);
        assert_eq!(Patience::UNTIL_RECORDED.next(60, 60, true), Next::Refused);
    }

    #[test]
    fn a_redis_that_refuses_is_asked_less_and_less() {
        assert_eq!(
            [0, 3, 4, 8, 400].map(pause).map(|pause| pause.as_millis()),
            [50, 50, 100, 150, 500]
        );
    }
}
