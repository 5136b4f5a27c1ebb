//! [`Inbox`]: where a runner gets its events from, whichever way they come.

use std::collections::VecDeque;

use crate::cursor::{Reader, Stretch};
use crate::event::AnyEvent;
use crate::queue::QueueReader;
use crate::subscriber::Subscriber;

/// The log or the queue, and before them what is for this subscriber alone.
pub(crate) struct Inbox {
    source: Source,
    #[expect(clippy::box_collection, reason = "most have none, and there may be very many")]
    direct: Option<Box<VecDeque<AnyEvent>>>,
}

pub(crate) enum Source {
    Log(Reader<AnyEvent>),
    Queue(QueueReader<AnyEvent>),
}

impl Inbox {
    pub(crate) fn new(source: Source) -> Inbox {
        Inbox { source, direct: None }
    }

    /// The next event, the same one until [`Inbox::advance`].
    #[inline]
    pub(crate) fn current(&mut self) -> Option<&AnyEvent> {
        if self.direct.is_some() {
            return self.direct.as_ref().and_then(|direct| direct.front());
        }
        match &mut self.source {
            Source::Log(reader) => reader.current(),
            Source::Queue(reader) => reader.current(),
        }
    }

    /// The event in hand is done with.
    #[inline]
    pub(crate) fn advance(&mut self, me: &Subscriber, bytes: u64) {
        if let Some(direct) = &mut self.direct {
            direct.pop_front();
            self.direct.take_if(|direct| direct.is_empty());
            me.done_direct();
            return;
        }
        match &mut self.source {
            Source::Log(reader) => reader.advance(bytes),
            Source::Queue(reader) => reader.advance(),
        }
    }

    /// Events that can be handled one after the other without asking for each.
    #[inline]
    pub(crate) fn stretch(&mut self) -> Option<Stretch<'_, AnyEvent>> {
        match &mut self.source {
            Source::Log(reader) if self.direct.is_none() => reader.stretch(),
            _ => None,
        }
    }

    /// The first so many of a stretch are done with.
    pub(crate) fn passed(&mut self, events: u64, bytes: u64, in_hand: bool) {
        if let Source::Log(reader) = &mut self.source {
            reader.passed(events, bytes, in_hand);
        }
    }

    /// The event in hand is being handled, or no longer: others may take what waits behind it.
    pub(crate) fn handles(&self, is: bool) {
        if let Source::Log(reader) = &self.source {
            reader.handles(is && self.direct.is_none());
        }
    }

    /// Events that were lost before the one in hand.
    #[inline]
    pub(crate) fn lagged(&mut self) -> u64 {
        match &mut self.source {
            Source::Log(_) => 0,
            Source::Queue(reader) => reader.lagged(),
        }
    }

    /// The subscriber has handled an event, and with it was told how many it lost.
    #[inline]
    pub(crate) fn told_lagged(&mut self) {
        if let Source::Queue(reader) = &mut self.source {
            reader.told_lagged();
        }
    }

    /// Whether it is time to let others run.
    #[inline]
    pub(crate) fn stretch_ended(&self) -> bool {
        match &self.source {
            Source::Log(reader) => reader.stretch_ended(),
            Source::Queue(reader) => reader.stretch_ended(),
        }
    }

    pub(crate) fn take_direct(&mut self, me: &Subscriber) {
        let events = me.take_direct();
        if !events.is_empty() {
            self.direct.get_or_insert_default().extend(events);
        }
    }

    /// What was handled but not committed is to be handled again, first.
    pub(crate) fn again(&mut self, me: &Subscriber, events: Vec<AnyEvent>) {
        me.again_direct(events.len() as u32);
        for event in events.into_iter().rev() {
            self.direct.get_or_insert_default().push_front(event);
        }
    }

    pub(crate) fn is_empty(&mut self) -> bool {
        self.direct.is_none()
            && match &mut self.source {
                Source::Log(reader) => reader.is_empty(),
                Source::Queue(reader) => reader.is_empty(),
            }
    }

    /// Whether an event is there, without any lock: for those who look again before they sleep.
    pub(crate) fn peek(&mut self) -> bool {
        match &mut self.source {
            Source::Log(reader) => reader.peek(),
            Source::Queue(_) => false,
        }
    }

    /// How many readers there are to look again: with many of them nobody should.
    pub(crate) fn crowd(&self) -> usize {
        match &self.source {
            Source::Log(reader) => reader.crowd(),
            Source::Queue(_) => usize::MAX,
        }
    }

    /// Goes to sleep, unless there is something to do. The waker is registered already.
    pub(crate) fn sleep(&mut self) -> bool {
        match &mut self.source {
            Source::Log(reader) => reader.sleep(),
            Source::Queue(reader) => reader.sleep(),
        }
    }

    /// Everything that was not handled.
    pub(crate) fn rest(&mut self, me: &Subscriber) -> Vec<AnyEvent> {
        let last = me.last_direct();
        let direct = self.direct.take();
        let mut rest: Vec<AnyEvent> =
            direct.into_iter().flat_map(|direct| *direct).chain(last).collect();
        rest.iter().for_each(|_| me.done_direct());
        rest.extend(match &mut self.source {
            Source::Log(reader) => reader.rest(),
            Source::Queue(reader) => reader.rest(),
        });
        rest
    }
}
