//! The events that a subscriber leaves when it ends, or when it is ended while its handler hangs.
//!
//! **Invariant:** events that a subscriber did not handle go to the other members of its group, as
//! far as these have room. The rest is counted and kept as dead letters; if the owner dropped the
//! subscription, the rest is only counted. This happens at once, even if the handler hangs. Doing
//! it twice has no further effect.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::event::AnyEvent;
use crate::hub_core::HubCore;
use crate::keep::dead_letter::{Cause, Letter};
use crate::notice::HubNotice;
use crate::run::handler::Severity;
use crate::run::subscriber::{Leaving, Phase, Subscriber};

/// Why events were left, for notices and dead letters.
pub(crate) const OVERFLOWED: &str = "its queue overflowed";
pub(crate) const STOPPED: &str = "it was stopped before it came to it";

/// Dead letters for events that this subscriber did not handle.
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
    /// Passes unhandled events to the other members of the group. Events that do not fit there are
    /// counted, and kept as dead letters unless the owner just dropped the subscription. Returns
    /// how many did not fit.
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

    /// Ends a subscriber early; it leaves these events.
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

    /// Passes the events of a leaving member to the other members, as far as they have room.
    /// Returns the rest.
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

    /// Stops a subscriber whose queue overflowed. Does not wait for its handler.
    pub(crate) fn detach(&self, subscriber: &Arc<Subscriber>) {
        let first = subscriber.fails(); // before its runner can see the order to stop
        let leaving = subscriber.leaves();
        self.stop(subscriber);
        let leftovers = self.leave_behind(subscriber, subscriber.take_waiting(), OVERFLOWED);
        if first {
            self.say_stopped(subscriber, OVERFLOWED, leftovers);
        }
        drop(leaving);
        self.caught_up();
    }

    /// Stops a subscriber whose subscription was dropped. Does not wait for its handler.
    pub(crate) fn discard(&self, subscriber: &Subscriber) {
        let leaving = subscriber.leaves();
        self.stop(subscriber);
        self.leave_behind(subscriber, subscriber.take_waiting(), STOPPED);
        drop(leaving);
        self.caught_up(); // its unhandled events keep nobody waiting
    }

    /// Orders a subscriber to end now and removes it from the routes. Its waiting events can be
    /// taken then.
    fn stop(&self, subscriber: &Subscriber) {
        subscriber.life.stop();
        self.end(subscriber);
    }
}

/// The last steps of a subscriber: events left, notice, routes. After them it has ended.
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
        // The notice was published when it was detached.
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
