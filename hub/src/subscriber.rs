//! [`Subscriber`]: what the hub, its publishers and its own runner know about one subscriber.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::context::inline::Inline;
use crate::cursor::Cursor;
use crate::event::AnyEvent;
use crate::group::Group;
use crate::key::{Pattern, Selection};
use crate::life::Life;
use crate::log::Log;
use crate::queue::Queue;
use crate::route::{name_of, number_of};
use crate::stats::{Counts, State, SubscriberStats, Troubles};
use crate::sync::Mutex;

/// Where events wait for a subscriber.
pub(crate) enum Post {
    /// It reads the log it shares with others.
    Log { log: Arc<Log<AnyEvent>>, cursor: Arc<Cursor<AnyEvent>> },
    /// It has a queue of its own; in a group it is one of several that share what comes.
    Queue { queue: Arc<Queue<AnyEvent>>, group: Option<Arc<Group>> },
    /// Nowhere: the publisher calls it.
    Inline(Box<Inline>),
}

/// In which order subscribers end when the hub does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The user's.
    User,
    /// What writes down what the user's did.
    Archive,
    /// What tells somebody about it.
    Alert,
}

/// What a subscriber is doing, as its runner says.
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
    /// One without a name of its own gets one when somebody asks for it.
    name: OnceLock<Arc<str>>,
    pub(crate) selection: Arc<Selection>,
    context: Runs,
    pub(crate) stage: Stage,
    pub(crate) life: Life,
    pub(crate) counts: Counts,
    pub(crate) post: Post,
    /// What it drops goes to the dead letters.
    pub(crate) keeps_dropped: bool,
    /// Events reach it.
    pub(crate) routed: AtomicBool,
    keeps_leftovers: AtomicBool,
    /// Nothing is taken for it alone any more. Changed under the lock of `direct`.
    direct_shut: AtomicBool,
    phase: AtomicU8,
    /// Handled, but not committed.
    pub(crate) uncommitted: AtomicU32,
    /// Events for this one alone: letters that are delivered again.
    #[expect(clippy::box_collection, reason = "most have none, and there may be very many")]
    direct: Mutex<Option<Box<Vec<AnyEvent>>>>,
    direct_count: AtomicU32,
    /// Where it stands in the registry's list: under the registry's lock.
    pub(crate) seat: AtomicU32,
    /// It was said that it loses events, and it has not caught up since.
    pub(crate) lagging: AtomicBool,
    /// What the caretaker saw last time, and how often in a row it saw just that. Nobody else
    /// writes them.
    watched_done: AtomicU64,
    watched_looks: AtomicU32,
    /// For how many milliseconds it kept a thread of others, at most; not yet told.
    blocked_ms: AtomicU32,
}

/// What the caretaker found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Fine,
    StuckSince(u32),
    GoesOn,
}

impl Subscriber {
    pub(crate) fn new(
        id: u64,
        name: Option<Arc<str>>,
        selection: Arc<Selection>,
        context: Runs,
        stage: Stage,
        post: Post,
        keeps_dropped: bool,
    ) -> Subscriber {
        Subscriber {
            id,
            name: name.map_or_else(OnceLock::new, OnceLock::from),
            selection,
            context,
            stage,
            life: Life::new(),
            counts: Counts::default(),
            post,
            keeps_dropped,
            routed: AtomicBool::new(true),
            keeps_leftovers: AtomicBool::new(false),
            direct_shut: AtomicBool::new(false),
            phase: AtomicU8::new(Phase::Running as u8),
            uncommitted: AtomicU32::new(0),
            direct: Mutex::new(None),
            direct_count: AtomicU32::new(0),
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

    /// Its name, if it was given one that does not say its number.
    pub(crate) fn own_name(&self) -> Option<&Arc<str>> {
        self.name.get().filter(|name| number_of(name) != Some(self.id))
    }

    pub(crate) fn group(&self) -> Option<&Arc<Group>> {
        match &self.post {
            Post::Queue { group, .. } => group.as_ref(),
            _ => None,
        }
    }

    /// Events it is not done with, waiting or in hand.
    pub(crate) fn behind(&self) -> u64 {
        let queued = match &self.post {
            Post::Log { log, cursor } if !cursor.is_gone() => {
                // Its own progress first: the log only grows, so this is never less than true.
                let (done, _) = cursor.progress();
                log.pushed().saturating_sub(done)
            }
            Post::Log { cursor, .. } => cursor.remaining(),
            Post::Queue { queue, .. } => queue.behind(),
            Post::Inline(inline) => inline.busy(),
        };
        let (direct, held) = (&self.direct_count, &self.uncommitted);
        let more = |counter: &AtomicU32| u64::from(counter.load(Ordering::Acquire));
        queued + more(direct) + more(held)
    }

    /// To be called after anything it should look at.
    pub(crate) fn wake(&self) {
        match &self.post {
            Post::Log { cursor, .. } => cursor.signal.wake(),
            Post::Queue { queue, .. } => queue.signal.wake(),
            Post::Inline(_) => {}
        }
    }

    /// Nothing more comes in; what is waiting may still be read if it drains.
    pub(crate) fn shut(&self, drain: bool) {
        match &self.post {
            Post::Log { log, cursor } => log.leave(cursor, drain),
            Post::Queue { queue, .. } => queue.close(),
            Post::Inline(inline) => inline.close(),
        }
    }

    /// Takes what waits for it, when it is inside a handler that does not return.
    pub(crate) fn steal(&self) -> Vec<AnyEvent> {
        let mut stolen = self.last_direct();
        self.direct_count.fetch_sub(stolen.len() as u32, Ordering::AcqRel);
        stolen.extend(match &self.post {
            Post::Log { cursor, .. } => cursor.steal(),
            Post::Queue { queue, .. } => queue.steal(),
            Post::Inline(_) => Vec::new(),
        });
        stolen
    }

    /// Gives it events that nobody else gets. `false` if it takes none any more, or is inline.
    pub(crate) fn deliver(&self, events: Vec<AnyEvent>) -> bool {
        {
            let mut direct = self.direct.lock();
            if self.direct_shut.load(Ordering::Relaxed) || matches!(self.post, Post::Inline(_)) {
                return false;
            }
            self.direct_count.fetch_add(events.len() as u32, Ordering::AcqRel);
            direct.get_or_insert_default().extend(events);
        }
        self.life.direct();
        self.wake();
        true
    }

    /// Takes the last of what is for it alone; from here on there is no more.
    pub(crate) fn last_direct(&self) -> Vec<AnyEvent> {
        let mut direct = self.direct.lock();
        self.direct_shut.store(true, Ordering::Relaxed);
        direct.take().map_or_else(Vec::new, |events| *events)
    }

    /// Others run on the same threads.
    pub(crate) fn shares_threads(&self) -> bool {
        self.context != Runs::Thread
    }

    /// It kept such a thread for this long. The caretaker tells.
    pub(crate) fn has_blocked(&self, time: Duration) {
        let ms = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        self.blocked_ms.fetch_max(ms, Ordering::Relaxed);
    }

    pub(crate) fn take_blocked(&self) -> Option<u64> {
        Some(self.blocked_ms.swap(0, Ordering::Relaxed)).filter(|ms| *ms > 0).map(u64::from)
    }

    pub(crate) fn is_routed(&self) -> bool {
        self.routed.load(Ordering::Acquire)
    }

    pub(crate) fn take_direct(&self) -> Vec<AnyEvent> {
        self.life.took_direct();
        self.direct.lock().take().map_or_else(Vec::new, |events| *events)
    }

    pub(crate) fn done_direct(&self) {
        self.direct_count.fetch_sub(1, Ordering::AcqRel);
    }

    /// Events it was given once already wait for it again.
    pub(crate) fn again_direct(&self, events: u32) {
        self.direct_count.fetch_add(events, Ordering::AcqRel);
    }

    /// What it leaves is to be kept: it was not simply dropped by its owner.
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

    /// Looks whether it has got on since last time, about a second ago.
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
