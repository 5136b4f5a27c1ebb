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

use super::budget::Budget;

/// Why a batch is not known to be added.
pub(crate) enum Undelivered {
    /// None of its messages was added.
    Refused(Error),
    /// Redis did not answer. If they were added, this is the id of the first.
    InDoubt(MessageId),
    /// They were added, and only so many replicas have them, of so many that must.
    Unreplicated(u32, u32),
}

impl Undelivered {
    /// The error of a call that sent this many messages.
    pub(crate) fn into_error(self, messages: usize, under_key: bool, budget: Budget) -> Error {
        match self {
            Undelivered::Refused(error) => error,
            Undelivered::Unreplicated(replicas, wanted) => Error::Unreplicated { replicas, wanted },
            Undelivered::InDoubt(id) => {
                Error::InDoubt { id, messages, after: budget.spent(), under_key }
            }
        }
    }
}

/// How long a call waits for the batch before it, unless that ends sooner. Then it has those that wait sent beside it: the
/// task that should do so may be stuck, or gone.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(25);

/// How a call that travelled with others ended: the id of its first message.
type Answer = Result<MessageId, Undelivered>;

/// The calls of one lane.
#[derive(Default)]
pub(crate) struct Line(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    /// The turn that is responsible for those that wait; 0 if none is.
    turn: u64,
    turns: u64,
    /// When the last turn began.
    began: Option<Moment>,
    waiting: VecDeque<Waiting>,
}

impl Calls {
    fn begin(&mut self) -> u64 {
        self.turns += 1;
        self.began = Some(Moment::now());
        self.turn = self.turns;
        self.turn
    }
}

/// A call that waits for the next batch.
pub(crate) struct Waiting {
    pub(crate) budget: Budget,
    place: Arc<Place>,
    answer: oneshot::Sender<Answer>,
}

/// The side of the caller.
pub(crate) struct Waiter {
    place: Arc<Place>,
    answer: oneshot::Receiver<Answer>,
}

/// What came of waiting.
pub(crate) enum Waited {
    Answered(Answer),
    NotYet,
    /// There will be no answer: the task that had its messages is gone.
    Abandoned,
}

/// Decides between a caller that leaves and a batch that takes its messages.
struct Place(Mutex<State>);

enum State {
    /// Its messages are in no batch.
    Waiting(Vec<NewMessage>),
    /// Its messages are in a batch. This is the id of the first of them.
    Numbered(MessageId),
    /// The caller has left, before its messages were numbered or after.
    Left { in_doubt: bool },
}

impl Place {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller leaves. Returns the id of its first message, if its messages are in a batch.
    fn leave(&self) -> Option<MessageId> {
        let mut state = self.state();
        let in_doubt = matches!(*state, State::Numbered(_) | State::Left { in_doubt: true });
        match std::mem::replace(&mut *state, State::Left { in_doubt }) {
            State::Numbered(id) => Some(id),
            State::Waiting(_) | State::Left { .. } => None,
        }
    }
}

impl Waiting {
    /// Puts its messages into a batch. `None` if the caller has left.
    pub(crate) fn number(&self, first: MessageId) -> Option<Vec<NewMessage>> {
        let mut state = self.place.state();
        match std::mem::replace(&mut *state, State::Numbered(first)) {
            State::Waiting(messages) => Some(messages),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Takes its messages out of a batch that was not added. Returns false if the caller has left in doubt meanwhile: then its
    /// number must not be used again.
    pub(crate) fn withdraw(&self, messages: Vec<NewMessage>) -> bool {
        let mut state = self.place.state();
        match *state {
            State::Left { in_doubt } => !in_doubt,
            State::Waiting(_) | State::Numbered(_) => {
                *state = State::Waiting(messages);
                true
            }
        }
    }

    /// Tells the caller how it ended. A caller that has left needs no answer.
    pub(crate) fn answer(self, how: Answer) {
        let _ = self.answer.send(how);
    }

    /// How many messages it has, and their bytes. `None` if the caller has left.
    fn size(&self) -> Option<(usize, usize)> {
        match &*self.place.state() {
            State::Waiting(messages) => {
                let bytes = messages.iter().map(|message| message.payload().len()).sum();
                Some((messages.len(), bytes))
            }
            State::Numbered(_) | State::Left { .. } => None,
        }
    }
}

impl Waiter {
    /// Waits for the answer for this long.
    pub(crate) async fn wait(&mut self, time: Duration) -> Waited {
        match tokio::time::timeout(time, &mut self.answer).await {
            Ok(Ok(answer)) => Waited::Answered(answer),
            Ok(Err(_)) => Waited::Abandoned,
            Err(_) => Waited::NotYet,
        }
    }

    /// Are its messages in no batch?
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(*self.place.state(), State::Waiting(_))
    }

    /// The caller leaves. Returns how it ended, if it is known or in doubt; `None` if nothing was sent.
    pub(crate) fn leave(&mut self) -> Option<Answer> {
        let left = self.place.leave();
        // It may have come in the last moment.
        match self.answer.try_recv() {
            Ok(answer) => Some(answer),
            Err(_) => left.map(|id| Err(Undelivered::InDoubt(id))),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.place.leave();
    }
}

/// What a caller does.
pub(crate) enum Joined<'a> {
    /// It waits with others.
    Waits(Waiter),
    /// It sends its messages itself, and then those that wait: this is its turn.
    Sends(u64, Cow<'a, [NewMessage]>),
}

impl Line {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the calls that wait, if a batch is on its way.
    pub(crate) fn join<'a>(&self, messages: Cow<'a, [NewMessage]>, budget: Budget) -> Joined<'a> {
        let mut calls = self.calls();
        if calls.turn == 0 {
            return Joined::Sends(calls.begin(), messages);
        }
        let (answer, answered) = oneshot::channel();
        let place = Arc::new(Place(Mutex::new(State::Waiting(messages.into_owned()))));
        calls.waiting.push_back(Waiting { budget, place: place.clone(), answer });
        Joined::Waits(Waiter { place, answer: answered })
    }

    /// This turn is over. Returns the next one if calls wait, unless another turn is responsible for them.
    pub(crate) fn end(&self, turn: u64) -> Option<u64> {
        let mut calls = self.calls();
        if calls.turn != turn {
            return None;
        }
        if calls.waiting.is_empty() {
            calls.turn = 0;
            return None;
        }
        Some(calls.begin())
    }

    /// A new turn for those that wait, beside one that takes too long. `None` if that one has just begun, or nobody waits.
    pub(crate) fn take_over(&self) -> Option<u64> {
        let mut calls = self.calls();
        let is_new = calls.began.is_some_and(|began| Moment::now().since(began) < WAIT_MAX);
        (!is_new && !calls.waiting.is_empty()).then(|| calls.begin())
    }

    /// The next calls that fit into one batch, at most this many, all with the same time-out. Empty if nobody waits.
    pub(crate) fn next(
        &self,
        calls_max: usize,
        messages_max: usize,
        bytes_max: usize,
    ) -> Vec<Waiting> {
        let (mut next, mut messages, mut bytes) = (Vec::<Waiting>::new(), 0, 0);
        let mut calls = self.calls();
        while let Some(first) = calls.waiting.front() {
            if let Some((count, length)) = first.size() {
                (messages, bytes) = (messages + count, bytes + length);
                let fits = messages <= messages_max && bytes <= bytes_max;
                let same =
                    next.first().is_none_or(|one| one.budget.timeout == first.budget.timeout);
                let goes_along = next.is_empty() || (fits && same);
                if next.len() == calls_max || !goes_along {
                    break;
                }
                next.extend(calls.waiting.pop_front());
            } else {
                calls.waiting.pop_front();
            }
        }
        next
    }

    /// Has these calls wait again, before all others.
    pub(crate) fn put_back(&self, waiting: Vec<Waiting>) {
        let mut calls = self.calls();
        for call in waiting.into_iter().rev() {
            calls.waiting.push_front(call);
        }
    }
}
