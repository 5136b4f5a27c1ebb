//! [`Line`]: the calls of one lane that wait for the batch before them.
//!
//! **Invariant:** the messages of a call are in at most one batch at a time. Whether a caller left before its messages were
//! numbered, or after, is decided once.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::Error;
use crate::clock::Moment;
use crate::id::MessageId;
use crate::message::NewMessage;

/// How long one try waits for its answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a call may take.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    began: Moment,
    pub(crate) timeout: Duration,
}

impl Budget {
    /// This time from now on.
    pub(crate) fn new(timeout: Duration) -> Budget {
        Budget { began: Moment::now(), timeout }
    }

    /// The one that ends last.
    pub(crate) fn later(self, other: Budget) -> Budget {
        if other.end() > self.end() { other } else { self }
    }

    fn end(self) -> Moment {
        self.began + self.timeout
    }

    pub(crate) fn left(self) -> Duration {
        self.end().since(Moment::now())
    }

    pub(crate) fn is_over(self) -> bool {
        self.left().is_zero()
    }

    /// How long one try may wait for its answer.
    pub(crate) fn one_try(self) -> Duration {
        self.left().min(CALL_TIMEOUT)
    }
}

/// Why a batch is not known to be added.
pub(crate) enum Undelivered {
    /// None of its messages was added.
    Refused(Error),
    /// Redis did not answer. If they were added, this is the id of the first.
    InDoubt(MessageId),
}

impl Undelivered {
    /// The error of a call that sent this many messages.
    pub(crate) fn into_error(self, messages: usize, under_key: bool, budget: Budget) -> Error {
        match self {
            Undelivered::Refused(error) => error,
            Undelivered::InDoubt(id) => {
                let after = Moment::now().since(budget.began);
                Error::InDoubt { id, messages, after, under_key }
            }
        }
    }
}

/// How a call that travelled with others ended: the id of its first message.
type Answer = Result<MessageId, Undelivered>;

/// The calls of one lane.
#[derive(Default)]
pub(crate) struct Line(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    /// A batch is on its way.
    is_busy: bool,
    waiting: VecDeque<Waiting>,
}

/// A call that waits for the next batch.
pub(crate) struct Waiting {
    pub(crate) messages: Vec<NewMessage>,
    pub(crate) budget: Budget,
    place: Arc<Place>,
    answer: oneshot::Sender<Answer>,
}

/// The side of the caller.
pub(crate) struct Waiter {
    place: Arc<Place>,
    answer: oneshot::Receiver<Answer>,
}

/// Decides between a caller that leaves and a batch that takes its messages.
#[derive(Default)]
struct Place(Mutex<State>);

#[derive(Default)]
enum State {
    #[default]
    Waiting,
    /// The caller has left: its messages are not sent.
    Left,
    /// Its messages are in a batch. This is the id of the first of them.
    Numbered(MessageId),
}

impl Place {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller leaves. Returns the id of its first message, if its messages are in a batch.
    fn leave(&self) -> Option<MessageId> {
        let mut state = self.state();
        match &*state {
            State::Numbered(id) => Some(id.clone()),
            State::Waiting | State::Left => {
                *state = State::Left;
                None
            }
        }
    }
}

impl Waiting {
    /// Puts its messages into a batch, or gives them other numbers there. Returns false if the caller has left.
    pub(crate) fn number(&self, first: MessageId) -> bool {
        let mut state = self.place.state();
        let is_here = !matches!(*state, State::Left);
        if is_here {
            *state = State::Numbered(first);
        }
        is_here
    }

    /// Tells the caller how it ended. A caller that has left needs no answer.
    pub(crate) fn answer(self, how: Answer) {
        let _ = self.answer.send(how);
    }

    fn has_left(&self) -> bool {
        matches!(*self.place.state(), State::Left)
    }

    fn bytes(&self) -> usize {
        self.messages.iter().map(|message| message.payload().len()).sum()
    }
}

impl Waiter {
    /// Waits for the answer for this long. Without one the caller leaves: the error is the id of its first message, if its
    /// messages may have been sent.
    pub(crate) async fn wait(mut self, time: Duration) -> Result<Answer, Option<MessageId>> {
        if let Ok(Ok(answer)) = tokio::time::timeout(time, &mut self.answer).await {
            return Ok(answer);
        }
        let left = self.place.leave();
        // It may have come in the last moment.
        self.answer.try_recv().map_err(|_| left)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.place.leave();
    }
}

impl Line {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the calls that wait, if a batch is on its way. Gives the messages back if there is none: then the caller
    /// sends them itself, and the lane is busy until [`end`](Self::end).
    pub(crate) fn join<'a>(
        &self,
        messages: Cow<'a, [NewMessage]>,
        budget: Budget,
    ) -> Result<Waiter, Cow<'a, [NewMessage]>> {
        let mut calls = self.calls();
        if !std::mem::replace(&mut calls.is_busy, true) {
            return Err(messages);
        }
        let (place, (answer, answered)) = (Arc::<Place>::default(), oneshot::channel());
        let messages = messages.into_owned();
        calls.waiting.push_back(Waiting { messages, budget, place: place.clone(), answer });
        Ok(Waiter { place, answer: answered })
    }

    /// No batch is on its way any more. Returns false if calls wait: then the lane stays busy.
    pub(crate) fn end(&self) -> bool {
        let mut calls = self.calls();
        calls.is_busy = !calls.waiting.is_empty();
        !calls.is_busy
    }

    /// The next calls that fit into one batch, at most this many. Empty if nobody waits.
    pub(crate) fn next(
        &self,
        calls_max: usize,
        messages_max: usize,
        bytes_max: usize,
    ) -> Vec<Waiting> {
        let (mut next, mut messages, mut bytes) = (Vec::new(), 0, 0);
        let mut calls = self.calls();
        while let Some(first) = calls.waiting.front() {
            messages += first.messages.len();
            bytes += first.bytes();
            let fits = messages <= messages_max && bytes <= bytes_max;
            if next.len() == calls_max || (!fits && !next.is_empty()) {
                break;
            }
            next.extend(calls.waiting.pop_front().filter(|call| !call.has_left()));
        }
        next
    }

    /// Has these calls wait again, before all others.
    pub(crate) fn put_back(&self, waiting: Vec<Waiting>) {
        let mut calls = self.calls();
        for call in waiting.into_iter().rev() {
            *call.place.state() = State::Waiting;
            calls.waiting.push_front(call);
        }
    }
}
