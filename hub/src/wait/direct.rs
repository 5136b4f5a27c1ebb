//! [`Direct`]: events for one subscriber only, and events it has not committed yet.
//!
//! **Invariant:** an event is in exactly one place: waiting, in hand, or held by a handler that
//! collects. Only the current runner takes events from here; a replaced runner does not. At most as
//! many events from others wait here as the subscriber's queue allows.

use std::collections::VecDeque;

use crate::event::AnyEvent;

/// All under one lock, so that the events a subscriber has not started can be taken exactly once.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    /// Redelivered dead letters, events that another member of the group left, and events to be
    /// handled again because they were not committed when the handler was replaced.
    waiting: VecDeque<AnyEvent>,
    hand: Option<AnyEvent>,
    /// Handled, not yet committed.
    held: Vec<AnyEvent>,
    /// The handler is committing the held events now.
    commits: bool,
    /// How many events were taken so far.
    taken: u64,
    /// The number of the runner that may take events.
    pub(crate) runner: u32,
    /// No more events are accepted.
    shut: bool,
}

impl Direct {
    /// Events that wait, are in hand or held. After [`Direct::take_waiting`] the one in hand does
    /// not count.
    pub(crate) fn len(&self) -> usize {
        let hand = usize::from(self.hand.is_some() && !self.shut);
        self.waiting.len() + hand + self.held.len()
    }

    /// Whether any event waits.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Adds an event, unless `bound` events wait already or no more are accepted.
    pub(crate) fn push(&mut self, event: &AnyEvent, bound: usize) -> bool {
        let fits = !self.shut && self.waiting.len() < bound;
        if fits {
            self.waiting.push_back(event.clone());
        }
        fits
    }

    /// Takes the next event into the hand.
    pub(crate) fn take(&mut self) -> Option<AnyEvent> {
        let next = self.waiting.pop_front()?;
        self.taken += 1;
        self.hand = Some(next.clone());
        Some(next)
    }

    /// Finishes the event in hand.
    pub(crate) fn done(&mut self) -> Option<AnyEvent> {
        self.hand.take()
    }

    /// Adds an event that was handled but not committed. Returns how many are held.
    pub(crate) fn hold(&mut self, event: AnyEvent) -> usize {
        self.held.push(event);
        self.held.len()
    }

    /// The first held event.
    pub(crate) fn first_held(&self) -> Option<AnyEvent> {
        self.held.first().cloned()
    }

    /// Records that the handler begins to commit, or that its commit has failed.
    pub(crate) fn commits(&mut self, now: bool) {
        self.commits = now;
    }

    /// Takes the held events, which are committed now.
    pub(crate) fn committed(&mut self) -> Vec<AnyEvent> {
        self.commits = false;
        std::mem::take(&mut self.held)
    }

    /// Puts the held events in front of the waiting ones, followed by the event in hand. They are
    /// handled again. `false` if no event was held.
    pub(crate) fn again(&mut self, in_hand: Option<&AnyEvent>) -> bool {
        self.commits = false;
        let held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return false;
        }
        for event in in_hand.into_iter().chain(held.iter().rev()) {
            self.waiting.push_front(event.clone());
        }
        true
    }

    /// Makes this event the next one.
    pub(crate) fn put_first(&mut self, event: Option<AnyEvent>) {
        event.into_iter().for_each(|event| self.waiting.push_front(event));
    }

    /// Takes all waiting events. No more are accepted from here on.
    pub(crate) fn take_waiting(&mut self) -> Vec<AnyEvent> {
        self.shut = true;
        std::mem::take(&mut self.waiting).into()
    }

    /// Hands over to another runner. Returns what the old runner has in its hands: its event, or
    /// the events it was about to commit. Events it had only collected are handled again.
    pub(crate) fn replace(&mut self, runner: u32) -> Vec<AnyEvent> {
        self.runner = runner;
        let hand = self.hand.take();
        if !self.commits {
            self.again(None);
            return hand.into_iter().collect();
        }
        self.put_first(hand); // it was in hand, but not started
        self.committed()
    }

    /// How many events were taken so far, and whether the runner works on one of them.
    pub(crate) fn shown(&self) -> (u64, bool) {
        (self.taken, self.hand.is_some() || self.commits)
    }
}
