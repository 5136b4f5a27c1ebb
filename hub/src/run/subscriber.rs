//! [`Subscriber`]: the state of one subscriber, shared by the hub, its publishers and its runner.
//!
//! **Invariant:** the waiting events of a subscriber can be taken from it at any time, exactly
//! once: each event is either taken or stays with the runner. Only one runner may continue. The
//! lock of `direct` decides which one.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::clock::millis;
use crate::end::life::Life;
use crate::event::AnyEvent;
use crate::key::{Pattern, Selection};
use crate::publish::group::Group;
use crate::publish::route::{name_of, number_of};
use crate::run::context::inline::Inline;
use crate::run::runner_maker::StartRunner;
use crate::stats::{Counts, State, SubscriberStats, Troubles};
use crate::sync::Mutex;
use crate::wait::cursor::Cursor;
use crate::wait::direct::Direct;
use crate::wait::log::Log;
use crate::wait::queue::EventQueue;

/// Where events wait for a subscriber.
pub(crate) enum Intake {
    /// It reads a log that it shares with others. The cursor changes when a runner is replaced.
    Log { log: Arc<Log<AnyEvent>>, cursor: ArcSwap<Cursor<AnyEvent>> },
    /// It has its own queue. In a group, several such subscribers share the events.
    Queue { queue: Arc<EventQueue<AnyEvent>>, group: Option<Arc<Group>> },
    /// Nowhere: the publisher calls it.
    Inline(Box<Inline>),
}

/// The order in which subscribers end when the hub is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Subscribers of the user.
    User,
    /// Archives. They record what the others did.
    Archive,
    /// Alerts. They report what the others did.
    Alert,
}

/// What the runner of a subscriber is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Running,
    Pausing,
    Stopped,
    Failed,
}

/// Where its handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Runs {
    Task,
    Pool,
    Thread,
    Inline,
}

impl Runs {
    fn text(self) -> &'static str {
        match self {
            Runs::Task => "task",
            Runs::Pool => "pool",
            Runs::Thread => "thread",
            Runs::Inline => "inline",
        }
    }
}

pub(crate) struct Subscriber {
    pub(crate) id: u64,
    /// Created on demand if the user gave no name.
    name: OnceLock<Arc<str>>,
    pub(crate) selection: Arc<Selection>,
    context: Runs,
    pub(crate) stage: Stage,
    pub(crate) life: Life,
    pub(crate) counts: Counts,
    pub(crate) intake: Intake,
    /// Dropped events become dead letters.
    pub(crate) keeps_dropped: bool,
    /// Events still reach it.
    pub(crate) routed: AtomicBool,
    keeps_leftovers: AtomicBool,
    /// How many threads are passing on its remaining events. It is not idle while there are any.
    leaving: AtomicU32,
    phase: AtomicU8,
    /// Events for this subscriber only. Boxed: most subscribers never have any, and there may be
    /// very many.
    pub(crate) direct: Mutex<Option<Box<Direct>>>,
    pub(crate) direct_count: AtomicU32,
    /// The time-out of its handler in milliseconds. 0: none.
    timeout_ms: u32,
    /// Creates a new runner if the current one hangs.
    pub(crate) maker: Option<Arc<dyn StartRunner>>,
    /// Its index in the registry's list. Under the registry's lock.
    pub(crate) seat: AtomicU32,
    /// A notice says that it loses events, and it has not caught up since.
    pub(crate) lagging: AtomicBool,
    /// The progress that the last periodic check saw, and how many checks in a row saw the same.
    /// Only the check writes them.
    watched_done: AtomicU64,
    watched_looks: AtomicU32,
    /// The longest time that it blocked a shared thread, in milliseconds. Not reported yet.
    blocked_ms: AtomicU32,
}

/// Exists while a thread passes on the remaining events of a subscriber.
pub(crate) struct Leaving<'a> {
    subscriber: &'a Subscriber,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.subscriber.leaving.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The settings of a new subscriber.
pub(crate) struct New {
    pub(crate) id: u64,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) selection: Arc<Selection>,
    pub(crate) context: Runs,
    pub(crate) stage: Stage,
    pub(crate) intake: Intake,
    pub(crate) keeps_dropped: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) maker: Option<Arc<dyn StartRunner>>,
}

/// The result of a periodic check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Fine,
    StuckSince(u32),
    GoesOn,
}

impl Subscriber {
    pub(crate) fn new(new: New) -> Subscriber {
        Subscriber {
            id: new.id,
            name: new.name.map_or_else(OnceLock::new, OnceLock::from),
            selection: new.selection,
            context: new.context,
            stage: new.stage,
            life: Life::new(),
            counts: Counts::default(),
            intake: new.intake,
            keeps_dropped: new.keeps_dropped,
            routed: AtomicBool::new(true),
            keeps_leftovers: AtomicBool::new(false),
            leaving: AtomicU32::new(0),
            phase: AtomicU8::new(Phase::Running as u8),
            direct: Mutex::new(None),
            direct_count: AtomicU32::new(0),
            timeout_ms: new.timeout.map_or(0, millis),
            maker: new.maker,
            seat: AtomicU32::new(0),
            lagging: AtomicBool::new(false),
            watched_done: AtomicU64::new(0),
            watched_looks: AtomicU32::new(0),
            blocked_ms: AtomicU32::new(0),
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        self.name.get_or_init(|| name_of(self.id).into())
    }

    /// Its name, unless it is the one made from its number.
    pub(crate) fn own_name(&self) -> Option<&Arc<str>> {
        self.name.get().filter(|name| number_of(name) != Some(self.id))
    }

    pub(crate) fn group(&self) -> Option<&Arc<Group>> {
        match &self.intake {
            Intake::Queue { group, .. } => group.as_ref(),
            _ => None,
        }
    }

    /// The time-out of its handler.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        (self.timeout_ms > 0).then(|| Duration::from_millis(self.timeout_ms.into()))
    }

    /// Events it has not finished, waiting or in hand.
    pub(crate) fn behind(&self) -> u64 {
        let queued = match &self.intake {
            Intake::Log { log, cursor } => {
                let cursor = cursor.load();
                // Its own progress first: the log only grows, so the result is never too small.
                let (done, _) = cursor.progress();
                match cursor.is_gone() {
                    false => log.pushed().saturating_sub(done),
                    true => cursor.remaining(),
                }
            }
            Intake::Queue { queue, .. } => queue.behind(),
            Intake::Inline(inline) => inline.busy(),
        };
        let direct = u64::from(self.direct_count.load(Ordering::Acquire));
        queued + direct + u64::from(self.leaving.load(Ordering::Acquire))
    }

    /// Wakes its runner. Must be called after every change that concerns the runner.
    pub(crate) fn wake(&self) {
        match &self.intake {
            Intake::Log { cursor, .. } => cursor.load().signal.wake(),
            Intake::Queue { queue, .. } => queue.signal.wake(),
            Intake::Inline(_) => {}
        }
    }

    /// Accepts no more events. Waiting events can still be read.
    pub(crate) fn shut(&self) {
        match &self.intake {
            Intake::Log { log, cursor } => log.remove(&cursor.load_full(), true),
            Intake::Queue { queue, .. } => queue.close(),
            Intake::Inline(inline) => inline.close(),
        }
    }

    /// Takes its waiting events. It was ordered to stop before. The event in the runner's hand
    /// stays there.
    pub(crate) fn take_waiting(&self) -> Vec<AnyEvent> {
        let mut stolen = self.with_direct(|direct| direct.take_waiting());
        stolen.extend(match &self.intake {
            Intake::Log { cursor, .. } => cursor.load().take_waiting(),
            Intake::Queue { queue, .. } => queue.take_waiting(),
            Intake::Inline(_) => Vec::new(),
        });
        stolen
    }

    /// Accesses the events for this subscriber only.
    fn with_direct<R>(&self, work: impl FnOnce(&mut Direct) -> R) -> R {
        let mut place = self.direct.lock();
        let direct = place.get_or_insert_default();
        let result = work(direct);
        self.direct_count.store(direct.len() as u32, Ordering::Release);
        match direct.waits() {
            true => self.life.direct(),
            false => self.life.took_direct(),
        }
        result
    }

    /// The same for one of its runners. A replaced runner has no effect.
    fn with_direct_of<R: Default>(&self, runner: u32, work: impl FnOnce(&mut Direct) -> R) -> R {
        self.with_direct(|direct| match direct.runner == runner {
            true => work(direct),
            false => R::default(),
        })
    }

    /// Gives it an event that no other subscriber gets. `false` if it has ended, has no room or is
    /// inline.
    pub(crate) fn deliver(&self, event: &AnyEvent) -> bool {
        let bound = match &self.intake {
            Intake::Log { cursor, .. } => {
                usize::try_from(cursor.load().bound).unwrap_or(usize::MAX)
            }
            Intake::Queue { queue, .. } => queue.bounds.events,
            Intake::Inline(_) => return false,
        };
        let given = self.with_direct(|direct| direct.push(event, bound));
        if given {
            self.wake();
        }
        given
    }

    /// Takes the remaining events for this subscriber only. No more are accepted.
    pub(crate) fn last_direct(&self) -> Vec<AnyEvent> {
        let (_hand, last) = self.with_direct(|direct| (direct.done(), direct.take_waiting()));
        last
    }

    /// Takes the next event for this subscriber only.
    pub(crate) fn next_direct(&self, runner: u32) -> Option<AnyEvent> {
        self.with_direct_of(runner, Direct::take)
    }

    /// Finishes the event in hand.
    pub(crate) fn done_direct(&self, runner: u32) {
        drop(self.with_direct_of(runner, Direct::done));
    }

    /// Adds an event that was handled but not committed. Returns how many are held.
    pub(crate) fn hold(&self, event: AnyEvent, runner: u32) -> usize {
        self.with_direct_of(runner, |direct| direct.hold(event))
    }

    /// Records that the handler begins to commit, or that its commit has failed.
    pub(crate) fn commits(&self, runner: u32, now: bool) {
        self.with_direct_of(runner, |direct| direct.commits(now));
    }

    pub(crate) fn first_held(&self) -> Option<AnyEvent> {
        self.with_direct(|direct| direct.first_held())
    }

    /// Takes the held events, which are committed or given up now.
    pub(crate) fn committed(&self, runner: u32) -> Vec<AnyEvent> {
        self.with_direct_of(runner, Direct::committed)
    }

    /// Lets the held events be handled again, followed by the event in hand. `false` if none was
    /// held.
    pub(crate) fn again(&self, in_hand: Option<&AnyEvent>, runner: u32) -> bool {
        let held = self.direct_count.load(Ordering::Acquire) > 0;
        held && self.with_direct_of(runner, |direct| direct.again(in_hand))
    }

    /// Marks that its remaining events are being passed on, until the result is dropped.
    pub(crate) fn leaves(&self) -> Leaving<'_> {
        self.leaving.fetch_add(1, Ordering::AcqRel);
        Leaving { subscriber: self }
    }

    /// Whether others run on the same thread.
    pub(crate) fn shares_threads(&self) -> bool {
        self.context != Runs::Thread
    }

    /// Records that it blocked a shared thread for this long. The next periodic check reports it.
    pub(crate) fn has_blocked(&self, time: Duration) {
        self.blocked_ms.fetch_max(millis(time), Ordering::Relaxed);
    }

    pub(crate) fn take_blocked(&self) -> Option<u64> {
        Some(self.blocked_ms.swap(0, Ordering::Relaxed)).filter(|ms| *ms > 0).map(u64::from)
    }

    pub(crate) fn is_routed(&self) -> bool {
        self.routed.load(Ordering::Acquire)
    }

    /// Its remaining events become dead letters. Not set if the owner just dropped the
    /// subscription.
    pub(crate) fn keep_leftovers(&self) {
        self.keeps_leftovers.store(true, Ordering::Release);
    }

    pub(crate) fn keeps_leftovers(&self) -> bool {
        self.keeps_leftovers.load(Ordering::Acquire) || !self.life.orders().stop()
    }

    pub(crate) fn enter_if(&self, from: Phase, to: Phase) {
        let (from, to) = (from as u8, to as u8);
        let _ = self.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Marks it as failed. `false` if it had failed before.
    pub(crate) fn fails(&self) -> bool {
        self.phase.swap(Phase::Failed as u8, Ordering::AcqRel) != Phase::Failed as u8
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.phase.load(Ordering::Acquire) == Phase::Failed as u8
    }

    fn pauses(&self) -> bool {
        self.phase.load(Ordering::Acquire) == Phase::Pausing as u8
    }

    fn done(&self) -> u64 {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        let troubles = counts.has_troubles().map_or(0, |one| of(&one.errors) + of(&one.letters));
        of(&counts.processed) + of(&counts.filtered) + troubles
    }

    /// Checks whether it has made progress since the last check, about a second ago.
    pub(crate) fn look(&self) -> Found {
        let done = self.done();
        let looks = self.watched_looks.load(Ordering::Relaxed);
        let last = self.watched_done.swap(done, Ordering::Relaxed);
        if done != last || self.pauses() || self.behind() == 0 {
            self.watched_looks.store(0, Ordering::Relaxed);
            return if looks > 1 { Found::GoesOn } else { Found::Fine };
        }
        self.watched_looks.store(looks + 1, Ordering::Relaxed);
        if looks == 0 { Found::Fine } else { Found::StuckSince(looks) }
    }

    pub(crate) fn state(&self) -> State {
        let orders = self.life.orders();
        match self.phase.load(Ordering::Acquire) {
            phase if phase == Phase::Failed as u8 => State::Failed,
            phase if phase == Phase::Stopped as u8 => State::Stopped,
            _ if self.watched_looks.load(Ordering::Relaxed) > 1 => State::Stuck,
            _ if orders.drain() || orders.stop() => State::Draining,
            phase if phase == Phase::Pausing as u8 => State::Pausing,
            _ => State::Running,
        }
    }

    pub(crate) fn stats(&self) -> SubscriberStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let none = Troubles::default();
        let (counts, troubles) = (&self.counts, self.counts.has_troubles().unwrap_or(&none));
        SubscriberStats {
            name: self.name().to_string(),
            keys: self.selection.patterns.iter().map(Pattern::text).map(String::from).collect(),
            group: self.group().map(|group| group.name.to_string()),
            context: self.context.text(),
            state: self.state(),
            processed: of(&counts.processed),
            filtered: of(&counts.filtered),
            errors: of(&troubles.errors),
            panics: of(&troubles.panics),
            retries: of(&troubles.retries),
            restarts: of(&troubles.restarts),
            letters: of(&troubles.letters),
            dropped: of(&troubles.dropped),
            abandoned: of(&troubles.abandoned),
            lag: self.behind(),
            times: counts.times(),
        }
    }
}

impl std::fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscriber").field("name", self.name()).finish_non_exhaustive()
    }
}
