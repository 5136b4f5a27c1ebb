//! [`Direct`]: what is for one subscriber alone, and what it has not committed.
//!
//! **Invariant:** an event is in exactly one place: waiting, in hand, or held by a handler that
//! collects. Only the runner that is entitled takes from here, and one that was replaced is not.
//! Never more than the subscriber's bound wait that others gave it.

use std::collections::VecDeque;

use crate::event::AnyEvent;

/// Under one lock, so that what a subscriber does not come to can be taken from it exactly.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    /// Letters that are delivered again, what a member of its group left, and what it has handled
    /// and not committed, if its handler was made anew.
    waiting: VecDeque<AnyEvent>,
    hand: Option<AnyEvent>,
    /// Handled, not yet committed.
    held: Vec<AnyEvent>,
    /// The handler commits them now.
    commits: bool,
    /// How many were taken so far.
    taken: u64,
    /// Which runner may take.
    pub(crate) runner: u32,
    /// Nothing more comes.
    shut: bool,
}

impl Direct {
    /// Waiting, in hand or held; what a runner that was robbed has in hand is nobody's to wait for.
    pub(crate) fn len(&self) -> usize {
        let hand = usize::from(self.hand.is_some() && !self.shut);
        self.waiting.len() + hand + self.held.len()
    }

    /// Whether any wait.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Adds one, unless so many wait already or nothing more comes.
    pub(crate) fn push(&mut self, event: &AnyEvent, bound: usize) -> bool {
        let fits = !self.shut && self.waiting.len() < bound;
        if fits {
            self.waiting.push_back(event.clone());
        }
        fits
    }

    /// Takes the next one into the hand.
    pub(crate) fn take(&mut self) -> Option<AnyEvent> {
        let next = self.waiting.pop_front()?;
        self.taken += 1;
        self.hand = Some(next.clone());
        Some(next)
    }

    /// The one in hand is done with.
    pub(crate) fn done(&mut self) -> Option<AnyEvent> {
        self.hand.take()
    }

    /// One more was handled, and is not committed.
    pub(crate) fn hold(&mut self, event: AnyEvent) -> usize {
        self.held.push(event);
        self.held.len()
    }

    /// The first that is held.
    pub(crate) fn first_held(&self) -> Option<AnyEvent> {
        self.held.first().cloned()
    }

    /// The handler begins to commit, or has failed to.
    pub(crate) fn commits(&mut self, now: bool) {
        self.commits = now;
    }

    /// What was held is committed.
    pub(crate) fn committed(&mut self) -> Vec<AnyEvent> {
        self.commits = false;
        std::mem::take(&mut self.held)
    }

    /// What was held is to be handled again before the others, and behind it what is in hand.
    /// `false` if nothing was held.
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

    /// This one is next.
    pub(crate) fn put_first(&mut self, event: Option<AnyEvent>) {
        event.into_iter().for_each(|event| self.waiting.push_front(event));
    }

    /// Takes all that waits. From here on nothing comes any more.
    pub(crate) fn take_waiting(&mut self) -> Vec<AnyEvent> {
        self.shut = true;
        std::mem::take(&mut self.waiting).into()
    }

    /// Another runner takes over. What is in the old one's hands is returned: the event, or what it
    /// was about to commit. What it had collected is handled again.
    pub(crate) fn replace(&mut self, runner: u32) -> Vec<AnyEvent> {
        self.runner = runner;
        let hand = self.hand.take();
        if !self.commits {
            self.again(None);
            return hand.into_iter().collect();
        }
        self.put_first(hand); // it waited in hand
        self.committed()
    }

    /// How many were taken so far, and whether anything here is in the runner's hands.
    pub(crate) fn shown(&self) -> (u64, bool) {
        (self.taken, self.hand.is_some() || self.commits)
    }
}
