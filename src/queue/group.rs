//! Sends of one lane that travel together.
//!
//! **Invariant:** no send waits for others to arrive. While a batch of a lane is on its way, the calls that arrive meanwhile
//! wait, for a moment at most, and the next batch carries them all. A call that ends before its batch is numbered sends
//! nothing; one that ends later takes nobody else's messages with it, and its number is never somebody else's.

use std::borrow::Cow;

use tokio::runtime::Handle;

use crate::Error;
use crate::fleet::{Budget, Joined, Line, Undelivered, WAIT_MAX, Waited, Waiting};
use crate::id::MessageId;
use crate::message::NewMessage;

use super::delivery::{Failed, Name};
use super::send::Sender;

/// The responsibility for those that wait. When it is dropped, they are sent.
struct Turn {
    sender: Sender,
    number: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(number) = self.sender.line().end(self.number) {
            self.sender.spawn_turn(number);
        }
    }
}

/// How a group ended.
enum Group {
    Answered,
    /// Nothing was added. The same calls can be sent again: fewer of them at once, or under another name.
    Again(Vec<Waiting>),
    /// There is no room for a single message.
    Full(Error),
}

impl Turn {
    /// Sends those that wait, batch after batch, until nobody waits or another turn is responsible for them.
    async fn send_waiting(self) {
        let (sender, mut calls_max) = (&self.sender, usize::MAX);
        loop {
            let (messages_max, bytes_max) = (Sender::BATCH_MAX, Sender::BATCH_BYTES_MAX);
            let group = sender.line().next(calls_max, messages_max, bytes_max);
            if group.is_empty() {
                return;
            }
            let calls = group.len();
            match sender.send_group(group).await {
                Group::Answered => calls_max = calls_max.saturating_mul(2),
                // Some of them may fit.
                Group::Again(group) => {
                    calls_max = (calls / 2).max(1);
                    sender.line().put_back(group);
                }
                // Then there is none for those behind it.
                Group::Full(error) => {
                    let waiting = sender.line().next(usize::MAX, usize::MAX, usize::MAX);
                    refuse(waiting, &error);
                }
            }
        }
    }
}

impl Sender {
    fn line(&self) -> &Line {
        &self.fleet.names.lines[self.lane as usize]
    }

    /// Sends those that wait, in a task of its own. Without a runtime, or with one that shuts down, another caller takes over.
    fn spawn_turn(&self, number: u64) {
        let sender = self.clone();
        if let Ok(runtime) = Handle::try_current() {
            // The turn is made when the task runs. A runtime that shuts down drops the task unrun, and a turn inside it
            // would start the next task, and so on.
            runtime.spawn(async move { Turn { sender, number }.send_waiting().await });
        }
    }

    /// Sends a small batch: alone, or with others if a batch of its lane is on its way. Returns the id of its first
    /// message.
    pub(super) async fn send_in_line(
        &self,
        messages: Cow<'_, [NewMessage]>,
        budget: Budget,
    ) -> Result<MessageId, Undelivered> {
        let mut waiter = match self.line().join(messages, budget) {
            Joined::Waits(waiter) => waiter,
            Joined::Sends(number, messages) => {
                let _turn = Turn { sender: self.clone(), number };
                let sent = self.send_alone(&messages, None, budget).await?;
                return Ok(sent.id);
            }
        };
        while !budget.is_over() {
            let time = if waiter.is_waiting() { WAIT_MAX } else { budget.left() };
            match waiter.wait(time.min(budget.left())).await {
                Waited::Answered(answer) => return answer,
                Waited::NotYet => {}
                Waited::Abandoned => break,
            }
            if waiter.is_waiting() && !budget.is_over() {
                self.line().take_over().into_iter().for_each(|number| self.spawn_turn(number));
            }
        }
        match waiter.leave() {
            Some(answer) => answer,
            None => Err(Undelivered::Refused(self.unreached(budget))),
        }
    }

    /// Sends these calls in one batch, and tells each how it ended.
    async fn send_group(&self, group: Vec<Waiting>) -> Group {
        let budget = group.iter().map(|call| call.budget).reduce(Budget::later);
        let Some(budget) = budget else { return Group::Answered };
        let Name { numbers, _turn } = match self.name(budget).await {
            Ok(name) => name,
            Err(error) => {
                refuse(group, &error);
                return Group::Answered;
            }
        };
        let (mut calls, mut messages) = (Vec::with_capacity(group.len()), Vec::new());
        let first = numbers.first();
        for call in group {
            let index = messages.len();
            if let Some(mut own) = call.number(first.following(index as u64)) {
                messages.append(&mut own);
                calls.push((index, call));
            }
        }
        if calls.is_empty() {
            self.give_back(numbers, 0);
            return Group::Answered;
        }
        let failed = match self.deliver(&numbers, &messages, None, budget).await {
            Ok(sent) => {
                self.tell_sent(&numbers, None, &messages, true);
                self.give_back(numbers, messages.len());
                answer(calls, &sent.id, Ok);
                return Group::Answered;
            }
            Err(Failed::InDoubt) => {
                answer(calls, &first, |id| Err(Undelivered::InDoubt(id)));
                return Group::Answered;
            }
            Err(Failed::Unreplicated(have, wanted)) => {
                answer(calls, &first, |_| Err(Undelivered::Unreplicated(have, wanted)));
                return Group::Answered;
            }
            Err(failed) => failed,
        };
        let (many, count) = (calls.len() > 1, messages.len());
        let (mut waiting, nobody_in_doubt) = withdraw(calls, messages);
        let error = match failed {
            Failed::Refused { error, keeps_name } => {
                if keeps_name && nobody_in_doubt {
                    self.give_back(numbers, 0);
                }
                error
            }
            Failed::Forgotten | Failed::InDoubt | Failed::Unreplicated(..) => {
                // One of them is told what is forgotten.
                if let Err(error) = self.tell_forgotten() {
                    refuse(waiting.pop(), &error);
                }
                return Group::Again(waiting);
            }
        };
        match error {
            Error::Full { .. } if many => Group::Again(waiting),
            error => {
                refuse(waiting, &error);
                let no_room = matches!(error, Error::Full { .. }) && count == 1;
                if no_room { Group::Full(error) } else { Group::Answered }
            }
        }
    }
}

/// Takes the messages of these calls out of a batch that was not added. Returns whether nobody has left in doubt meanwhile:
/// then its numbers can be used again.
fn withdraw(calls: Vec<(usize, Waiting)>, mut messages: Vec<NewMessage>) -> (Vec<Waiting>, bool) {
    let (mut waiting, mut nobody_in_doubt) = (Vec::with_capacity(calls.len()), true);
    for (index, call) in calls.into_iter().rev() {
        nobody_in_doubt &= call.withdraw(messages.split_off(index));
        waiting.push(call);
    }
    waiting.reverse();
    (waiting, nobody_in_doubt)
}

/// Tells every call that nothing of it was added.
fn refuse(calls: impl IntoIterator<Item = Waiting>, error: &Error) {
    for call in calls {
        call.answer(Err(Undelivered::Refused(error.clone())));
    }
}

/// Tells every call of a batch how it ended, with the id of its first message.
fn answer(
    calls: Vec<(usize, Waiting)>,
    first: &MessageId,
    how: impl Fn(MessageId) -> Result<MessageId, Undelivered>,
) {
    for (index, call) in calls {
        call.answer(how(first.following(index as u64)));
    }
}
