//! [`Inbox`]: where a runner gets its events from, whichever way they come.
//!
//! **Invariant:** one event at most is in hand. All that waits is where others can take it from a
//! runner that does not come back.

use crate::event::AnyEvent;
use crate::run::subscriber::Subscriber;
use crate::stats::count;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::wait::queue::QueueReader;
use crate::wait::reader::{Reader, Stretch};

/// The log or the queue, and before them what is for this subscriber alone.
pub(crate) struct Inbox {
    source: Source,
    /// In hand, and given to this subscriber alone. Boxed: most never have one.
    direct: Option<Box<AnyEvent>>,
    /// Which runner of its subscriber reads here.
    runner: AtomicU32,
}

pub(crate) enum Source {
    Log(Reader<AnyEvent>),
    Queue(QueueReader<AnyEvent>),
}

impl Inbox {
    pub(crate) fn new(source: Source, runner: u32) -> Inbox {
        Inbox { source, direct: None, runner: AtomicU32::new(runner) }
    }

    fn runner(&self) -> u32 {
        self.runner.load(Ordering::Relaxed)
    }

    /// Whether another runner has taken the place of this one. One that was only suspected goes on,
    /// under its new number.
    #[inline]
    pub(crate) fn is_replaced(&self, me: &Subscriber) -> bool {
        let (mine, next) = (self.runner(), me.life.orders().runner());
        mine != next && self.was_replaced(me, mine, next)
    }

    #[cold]
    fn was_replaced(&self, me: &Subscriber, mine: u32, next: u32) -> bool {
        let goes_on = me.goes_on(mine, next);
        if goes_on {
            self.runner.store(next, Ordering::Relaxed);
            if let Source::Queue(reader) = &self.source {
                reader.goes_on_as(next);
            }
        }
        !goes_on
    }

    /// The next event, the same one until [`Inbox::advance`].
    #[inline]
    pub(crate) fn current(&mut self) -> Option<&AnyEvent> {
        if self.direct.is_some() {
            return self.direct.as_deref();
        }
        match &mut self.source {
            Source::Log(reader) => reader.current(),
            Source::Queue(reader) => reader.current(),
        }
    }

    /// The event in hand, if [`Inbox::current`] found one.
    #[inline]
    pub(crate) fn in_hand(&self) -> Option<&AnyEvent> {
        if self.direct.is_some() {
            return self.direct.as_deref();
        }
        match &self.source {
            Source::Log(reader) => reader.in_hand(),
            Source::Queue(reader) => reader.in_hand(),
        }
    }

    /// Another runner was here before it.
    pub(crate) fn is_successor(&self) -> bool {
        self.runner() > 0
    }

    /// One more. The first runner is the only writer; beside the others there is one that was
    /// replaced, and may still tell what it did before.
    #[inline]
    pub(crate) fn count(&self, counter: &AtomicU64) {
        match self.runner() {
            0 => count(counter),
            _ => drop(counter.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Shows which event is in hand. Orders are to be looked at after this.
    #[inline]
    pub(crate) fn show(&self) {
        match &self.source {
            Source::Log(reader) if self.direct.is_none() => reader.show(),
            _ => {} // shown as it was taken
        }
    }

    /// The runner enters the user's code, or has left it.
    #[inline]
    pub(crate) fn is_inside(&self, is: bool) {
        match &self.source {
            Source::Log(reader) => reader.cursor().is_inside(is),
            Source::Queue(reader) => reader.is_inside(is),
        }
    }

    /// The event in hand is done with.
    #[inline]
    pub(crate) fn advance(&mut self, me: &Subscriber, bytes: u64) {
        if self.direct.take().is_some() {
            return me.done_direct(self.runner());
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

    /// Whether its runner was replaced at the last event of a stretch.
    pub(crate) fn lost_last(&self) -> bool {
        match &self.source {
            Source::Log(reader) => reader.lost_last(),
            Source::Queue(_) => false,
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

    /// Takes the next one that is for this subscriber alone, unless another event is in hand.
    pub(crate) fn take_direct(&mut self, me: &Subscriber) {
        if self.in_hand().is_none() {
            self.direct = me.next_direct(self.runner()).map(Box::new);
        }
    }

    /// The event in hand was handled, and is to be committed together with others. How many now?
    pub(crate) fn hold(&mut self, me: &Subscriber, bytes: u64) -> usize {
        let Some(event) = self.in_hand().cloned() else { return 0 };
        let held = me.hold(event, self.runner());
        self.advance(me, bytes);
        held
    }

    /// What was handled and not committed is to be handled again, and then what is in hand.
    pub(crate) fn again(&mut self, me: &Subscriber) {
        let (event, runner) = (self.in_hand().cloned(), self.runner());
        if me.again(event.as_ref(), runner)
            && let Some(event) = event
        {
            self.advance(me, event.bytes.into());
        }
    }

    /// The handler begins to commit what it holds, or has failed to.
    pub(crate) fn commits(&self, me: &Subscriber, now: bool) {
        me.commits(self.runner(), now);
    }

    /// What was held is committed, or given up.
    pub(crate) fn committed(&self, me: &Subscriber) -> Vec<AnyEvent> {
        me.committed(self.runner())
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
    pub(crate) fn take_unread(&mut self, me: &Subscriber) -> Vec<AnyEvent> {
        let hand = self.direct.take().map(|event| *event);
        let mut rest: Vec<AnyEvent> = hand.into_iter().chain(me.last_direct()).collect();
        rest.extend(match &mut self.source {
            Source::Log(reader) => reader.take_unread(),
            Source::Queue(reader) => reader.take_unread(),
        });
        rest
    }
}
