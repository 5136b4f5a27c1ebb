//! Sends of one lane that travel together.
//!
//! **Invariant:** no send waits for others to arrive. While a batch of a lane is on its way, the calls that arrive meanwhile
//! wait, and the next batch carries them all. A call that ends before its batch is numbered sends nothing; one that ends
//! later takes nobody else's messages with it.

use std::borrow::Cow;

use tokio::runtime::Handle;

use crate::Error;
use crate::fleet::{Budget, Line, Undelivered, Waiting};
use crate::id::MessageId;
use crate::message::NewMessage;

use super::send::Sender;

/// A lane is busy while this exists. When it is dropped, those that wait are sent.
struct Turn(Sender);

impl Drop for Turn {
    fn drop(&mut self) {
        if self.0.line().end() {
            return;
        }
        let sender = self.0.clone();
        if let Ok(runtime) = Handle::try_current() {
            // The turn is made when the task runs. A runtime that shuts down drops the task unrun, and a turn inside it
            // would start the next task, and so on.
            runtime.spawn(async move { Turn(sender).send_waiting().await });
        }
    }
}

impl Turn {
    /// Sends those that wait, batch after batch, until nobody waits.
    async fn send_waiting(self) {
        let (sender, mut calls_max) = (&self.0, usize::MAX);
        loop {
            let (messages_max, bytes_max) = (Sender::BATCH_MAX, Sender::BATCH_BYTES_MAX);
            let group = sender.line().next(calls_max, messages_max, bytes_max);
            if group.is_empty() {
                return;
            }
            let calls = group.len();
            match sender.send_group(group).await {
                Ok(()) => calls_max = calls_max.saturating_mul(2),
                // Some of them may fit.
                Err(group) => {
                    calls_max = (calls / 2).max(1);
                    sender.line().put_back(group);
                }
            }
        }
    }
}

impl Sender {
    fn line(&self) -> &Line {
        &self.fleet.names.lines[self.lane as usize]
    }

    /// Sends a small batch: alone, or with others if a batch of its lane is on its way. Returns the id of its first
    /// message.
    pub(super) async fn send_in_line(
        &self,
        messages: Cow<'_, [NewMessage]>,
        budget: Budget,
    ) -> Result<MessageId, Undelivered> {
        let waiter = match self.line().join(messages, budget) {
            Ok(waiter) => waiter,
            Err(messages) => {
                let _turn = Turn(self.clone());
                let sent = self.send_alone(&messages, None, budget).await?;
                return Ok(sent.id);
            }
        };
        match waiter.wait(budget.left()).await {
            Ok(answer) => answer,
            Err(Some(id)) => Err(Undelivered::InDoubt(id)),
            Err(None) => Err(Undelivered::Refused(self.unreached(budget))),
        }
    }

    /// Sends these calls in one batch, and tells each how it ended. Gives them back if there is no room for all of them.
    async fn send_group(&self, group: Vec<Waiting>) -> Result<(), Vec<Waiting>> {
        let budget = group.iter().map(|call| call.budget).reduce(Budget::later);
        let Some(budget) = budget else { return Ok(()) };
        let name = match self.name(budget).await {
            Ok(name) => name,
            Err(error) => {
                refuse(group, &error);
                return Ok(());
            }
        };
        let (mut calls, mut messages) = (Vec::with_capacity(group.len()), Vec::new());
        let first = name.numbers.first();
        for mut call in group {
            let index = messages.len();
            if call.number(first.following(index as u64)) {
                messages.append(&mut call.messages);
                calls.push((index, call));
            }
        }
        if messages.is_empty() {
            self.fleet.names.free().push(name.numbers);
            return Ok(());
        }
        let renamed = |first: &MessageId| {
            for (index, call) in &calls {
                call.number(first.following(*index as u64));
            }
        };
        match self.deliver(name, &messages, None, budget, renamed).await {
            Ok(sent) => answer(calls, &sent.id, Ok),
            Err(Undelivered::InDoubt(first)) => {
                answer(calls, &first, |id| Err(Undelivered::InDoubt(id)));
            }
            Err(Undelivered::Refused(Error::Full { .. })) if calls.len() > 1 => {
                return Err(with_messages(calls, messages));
            }
            Err(Undelivered::Refused(error)) => {
                refuse(calls.into_iter().map(|(_, call)| call), &error);
            }
        }
        Ok(())
    }
}

/// Gives the calls of a batch their messages back.
fn with_messages(calls: Vec<(usize, Waiting)>, mut messages: Vec<NewMessage>) -> Vec<Waiting> {
    let back = calls.into_iter().rev().map(|(index, mut call)| {
        call.messages = messages.split_off(index);
        call
    });
    let mut back: Vec<Waiting> = back.collect();
    back.reverse();
    back
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
