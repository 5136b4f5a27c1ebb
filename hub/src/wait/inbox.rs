//! [`Inbox`]: the source of a runner's events.
//!
//! **Invariant:** at most one event is in hand. All waiting events are where others can take them
//! if the runner does not return.

use crate::event::AnyEvent;
use crate::run::subscriber::Subscriber;
use crate::stats::count;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::wait::queue::QueueReader;
use crate::wait::reader::{Reader, Stretch};

/// The log or the queue. Events for this subscriber only come first.
pub(crate) struct Inbox {
    source: Source,
    /// An event for this subscriber only, in hand. Boxed: most subscribers never have one.
    direct: Option<Box<AnyEvent>>,
    /// The number of the runner that reads here.
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

    /// Whether another runner has replaced this one. A runner that was only suspected continues
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

    /// The next event. Returns the same one until [`Inbox::advance`].
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

    /// Whether another runner was here before.
    pub(crate) fn is_successor(&self) -> bool {
        self.runner() > 0
    }

    /// Adds one to a counter. The first runner is its only writer. Later runners share it with a
    /// replaced runner that may still report its results.
    #[inline]
    pub(crate) fn count(&self, counter: &AtomicU64) {
        match self.runner() {
            0 => count(counter),
            _ => drop(counter.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Shows which event is in hand. The caller must check its orders after this.
    #[inline]
    pub(crate) fn show(&self) {
        match &self.source {
            Source::Log(reader) if self.direct.is_none() => reader.show(),
            _ => {} // shown when it was taken
        }
    }

    /// Records that the runner enters or has left user code.
    #[inline]
    pub(crate) fn is_inside(&self, is: bool) {
        match &self.source {
            Source::Log(reader) => reader.cursor().is_inside(is),
            Source::Queue(reader) => reader.is_inside(is),
        }
    }

    /// Finishes the event in hand.
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

    /// Events that can be handled one after the other without a check in between.
    #[inline]
    pub(crate) fn stretch(&mut self) -> Option<Stretch<'_, AnyEvent>> {
        match &mut self.source {
            Source::Log(reader) if self.direct.is_none() => reader.stretch(),
            _ => None,
        }
    }

    /// Finishes the first events of a stretch.
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

    /// How many events were lost before the one in hand.
    #[inline]
    pub(crate) fn lagged(&mut self) -> u64 {
        match &mut self.source {
            Source::Log(_) => 0,
            Source::Queue(reader) => reader.lagged(),
        }
    }

    /// Records that the handler was given the number of lost events.
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

    /// Takes the next event for this subscriber only, unless another event is in hand.
    pub(crate) fn take_direct(&mut self, me: &Subscriber) {
        if self.in_hand().is_none() {
            self.direct = me.next_direct(self.runner()).map(Box::new);
        }
    }

    /// Marks the event in hand as handled, to be committed together with others. Returns how many
    /// are held.
    pub(crate) fn hold(&mut self, me: &Subscriber, bytes: u64) -> usize {
        let Some(event) = self.in_hand().cloned() else { return 0 };
        let held = me.hold(event, self.runner());
        self.advance(me, bytes);
        held
    }

    /// Lets uncommitted events be handled again, followed by the event in hand.
    pub(crate) fn again(&mut self, me: &Subscriber) {
        let (event, runner) = (self.in_hand().cloned(), self.runner());
        if me.again(event.as_ref(), runner)
            && let Some(event) = event
        {
            self.advance(me, event.bytes.into());
        }
    }

    /// Records that the handler begins to commit, or that its commit has failed.
    pub(crate) fn commits(&self, me: &Subscriber, now: bool) {
        me.commits(self.runner(), now);
    }

    /// Takes the held events, which are committed or given up now.
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

    /// Whether an event is there, without a lock. For a runner that checks once more before it
    /// sleeps.
    pub(crate) fn peek(&mut self) -> bool {
        match &mut self.source {
            Source::Log(reader) => reader.peek(),
            Source::Queue(_) => false,
        }
    }

    /// How many readers the log has. If there are many, none of them should check before it sleeps.
    pub(crate) fn crowd(&self) -> usize {
        match &self.source {
            Source::Log(reader) => reader.crowd(),
            Source::Queue(_) => usize::MAX,
        }
    }

    /// Goes to sleep unless there is something to do. The waker is already registered.
    pub(crate) fn sleep(&mut self) -> bool {
        match &mut self.source {
            Source::Log(reader) => reader.sleep(),
            Source::Queue(reader) => reader.sleep(),
        }
    }

    /// Takes all events that were not handled.
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
