//! What a subscriber leaves when it ends, or is ended while its handler hangs.
//!
//! **Invariant:** what a subscriber did not come to goes to the others of its group, as far as they
//! have room; the rest is kept as dead letters and counted, or only counted if its owner dropped it.
//! That is done at once, whatever its handler does, and twice is once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::event::AnyEvent;
use crate::hub_core::HubCore;
use crate::keep::dead_letter::{Cause, Letter};
use crate::notice::HubNotice;
use crate::run::handler::Severity;
use crate::run::subscriber::{Leaving, Phase, Subscriber};

/// Why events were left.
pub(crate) const OVERFLOWED: &str = "its queue overflowed";
pub(crate) const STOPPED: &str = "it was stopped before it came to it";

/// Events that this subscriber did not handle, as letters.
pub(crate) fn letters(
    of: &Subscriber,
    events: &[AnyEvent],
    reason: &str,
    cause: Cause,
) -> Vec<Letter> {
    let letter = |event| Letter::new(event, of.name(), 0, Severity::Error, reason).because(cause);
    events.iter().map(letter).collect()
}

impl HubCore {
    /// What a subscriber does not come to is for the others of its group; what they have no room
    /// for is counted, and kept unless its owner simply dropped it. How many are that?
    pub(crate) fn leave_behind(
        &self,
        from: &Subscriber,
        events: Vec<AnyEvent>,
        reason: &str,
    ) -> u64 {
        let left = self.give_to_group(from, events);
        let many = left.len() as u64;
        if many > 0 {
            from.counts.troubles().abandoned.fetch_add(many, Ordering::Relaxed);
            if from.has_failed() || from.keeps_leftovers() {
                self.keep(letters(from, &left, reason, Cause::Left));
            } else {
                self.discarded.fetch_add(many, Ordering::Relaxed);
            }
        }
        many
    }

    /// A subscriber ended before its time, and leaves these behind.
    pub(crate) fn leave_failed(&self, from: &Subscriber, events: Vec<AnyEvent>, reason: &str) {
        let first = from.fails();
        let leftovers = self.leave_behind(from, events, reason);
        if first {
            self.say_stopped(from, reason, leftovers);
        }
    }

    fn say_stopped(&self, from: &Subscriber, reason: &str, leftovers: u64) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let subscriber = from.name().to_string();
        self.say(HubNotice::Stopped { subscriber, reason: reason.into(), leftovers });
    }

    /// What a member of a group leaves is for the others, as far as they have room.
    fn give_to_group(&self, from: &Subscriber, events: Vec<AnyEvent>) -> Vec<AnyEvent> {
        let Some(group) = from.group() else { return events };
        group.remove(from);
        let mut left = Vec::new();
        for event in events {
            let chosen = catch_unwind(AssertUnwindSafe(|| group.choose(&event))).ok().flatten();
            let given = chosen.is_some_and(|member| self.deliver(&member, &event));
            if !given {
                left.push(event);
            }
        }
        left
    }

    /// A subscriber whose queue overflowed, and that is to be stopped then. At once, whatever its
    /// handler does.
    pub(crate) fn detach(&self, subscriber: &Arc<Subscriber>) {
        let first = subscriber.fails(); // before its runner can see that it is to stop
        let leaving = subscriber.leaves();
        self.stop(subscriber);
        let leftovers = self.leave_behind(subscriber, subscriber.take_waiting(), OVERFLOWED);
        if first {
            self.say_stopped(subscriber, OVERFLOWED, leftovers);
        }
        drop(leaving);
        self.caught_up();
    }

    /// A subscriber that nobody wants any more. At once, whatever its handler does.
    pub(crate) fn discard(&self, subscriber: &Subscriber) {
        let leaving = subscriber.leaves();
        self.stop(subscriber);
        self.leave_behind(subscriber, subscriber.take_waiting(), STOPPED);
        drop(leaving);
        self.caught_up(); // what it had not handled is nobody's to wait for
    }

    /// Tells a subscriber to end now, and takes it out of the routes. What waits for it can be taken.
    fn stop(&self, subscriber: &Subscriber) {
        subscriber.life.stop();
        self.end(subscriber);
    }
}

/// The last things: leftovers, notice, routes; and then it is over.
pub(crate) fn end_subscriber(
    core: &HubCore,
    me: &Arc<Subscriber>,
    unread: Vec<AnyEvent>,
    spent: Option<String>,
    leaving: Leaving<'_>,
) {
    if me.life.is_over() {
        return;
    }
    match (spent, me.has_failed()) {
        (Some(reason), _) => core.leave_failed(me, unread, &reason),
        // It was said when it was detached.
        (None, true) => drop(core.leave_behind(me, unread, OVERFLOWED)),
        (None, false) => {
            core.leave_behind(me, unread, STOPPED);
            me.enter(Phase::Stopped);
        }
    }
    drop(leaving);
    core.registry_mut().forget_subscriber(me);
    me.life.end();
    core.caught_up();
}
