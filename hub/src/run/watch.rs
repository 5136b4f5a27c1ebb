//! [`Watch`]: replaces runners whose handlers hang.
//!
//! **Invariant:** a runner is replaced only if it was inside user code, with the same event in
//! hand, for longer than its subscriber's time-out. That event becomes a dead letter and is not
//! handled again. All other events go to the next runner. The hanging thread is left alone.
//!
//! A handler that awaits is not handled here: its runner checks the time itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::end::leftovers::end_subscriber;
use crate::event::AnyEvent;
use crate::hub_core::HubCore;
use crate::notice::HubNotice;
use crate::run::handling::{Failure, failed, letter};
use crate::run::runner_maker::RunnerStart;
use crate::run::subscriber::{Intake, Subscriber};
use crate::run::timer::LOOK;
use crate::stats::count;
use crate::wait::cursor::SETTLED;
use crate::wait::direct::Direct;
use crate::wait::inbox::{Inbox, Source};
use crate::wait::log::{ReplacedCursor, wake_writers};
use crate::wait::queue::QueueReader;
use crate::wait::reader::Reader;

/// The position of a runner that is inside user code with an event in hand. Two equal values mean
/// that it has not left user code in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    inside: u32,
    at: u64,
    direct: u64,
}

/// The result of replacing a runner.
pub(crate) struct Replaced {
    /// Where the next runner reads.
    pub(crate) source: Source,
    pub(crate) runner: u32,
    /// The events in the hands of the replaced runner.
    pub(crate) lost: Vec<AnyEvent>,
}

impl Subscriber {
    /// The position of its runner, if that is inside user code with an event in hand.
    pub(crate) fn shown(&self) -> Option<Shown> {
        let direct = self.direct.lock();
        self.shown_beside(direct.as_deref())
    }

    fn shown_beside(&self, direct: Option<&Direct>) -> Option<Shown> {
        let (direct, direct_in_hand) = direct.map_or((0, false), Direct::shown);
        let (inside, at, in_hand) = match &self.intake {
            Intake::Log { cursor, .. } => cursor.load().shown(),
            Intake::Queue { queue, .. } => queue.shown(),
            Intake::Inline(_) => return None,
        };
        (inside % 2 == 1 && (in_hand || direct_in_hand)).then_some(Shown { inside, at, direct })
    }

    /// Asked by a runner that may have been replaced: whether it continues, under the number
    /// `next`.
    pub(crate) fn goes_on(&self, runner: u32, next: u32) -> bool {
        let mut place = self.direct.lock();
        let direct = place.get_or_insert_default();
        let goes_on = direct.runner == runner;
        if goes_on {
            direct.runner = next;
            if let Intake::Queue { queue, .. } = &self.intake {
                queue.goes_on_as(next);
            }
        }
        goes_on
    }

    /// Replaces the runner if it is still at this position. `Life::ask_runner` was called long
    /// enough before, so that a runner that has returned in the meantime has noticed it.
    pub(crate) fn replace(&self, shown: Shown, runner: u32) -> Option<Replaced> {
        let mut place = self.direct.lock();
        let direct = place.get_or_insert_default();
        if direct.runner == runner || self.shown_beside(Some(direct)) != Some(shown) {
            return None;
        }
        let mut wakes = Vec::new();
        let (source, in_hand) = match &self.intake {
            Intake::Log { log, cursor } => {
                let old = cursor.load_full();
                let ReplacedCursor { next, in_hand, writers } =
                    log.replace(&old, |event| event.bytes.into());
                cursor.store(next.clone());
                wakes = writers;
                (Source::Log(Reader::from_cursor(log.clone(), next)), in_hand)
            }
            Intake::Queue { queue, .. } => {
                let event = queue.replace(runner);
                (Source::Queue(QueueReader::new(queue.clone(), runner)), event)
            }
            Intake::Inline(_) => return None,
        };
        let mut lost = direct.replace(runner);
        match lost.is_empty() {
            true => lost.extend(in_hand),
            false => direct.put_first(in_hand), // in hand but not started: for the next runner
        }
        self.direct_count.store(direct.len() as u32, Ordering::Release);
        if direct.waits() {
            self.life.direct();
        }
        drop(place);
        wake_writers(wakes);
        Some(Replaced { source, runner, lost })
    }
}

/// What is remembered between two checks.
#[derive(Default)]
pub(crate) struct Watch {
    /// Runners inside user code: their position, and since when they have been seen there.
    inside: HashMap<u64, (Shown, Instant)>,
    looked_around: Option<Instant>,
}

/// A runner that is to be replaced.
struct Overdue {
    subscriber: Arc<Subscriber>,
    time: Duration,
    shown: Shown,
    /// The number of its successor.
    runner: u32,
}

impl Watch {
    pub(crate) fn look(&mut self, core: &Arc<HubCore>) {
        let suspects = self.suspects(core, Instant::now());
        if !suspects.is_empty() {
            // Long enough for runners that have just returned to become visible.
            std::thread::sleep(SETTLED);
            suspects.into_iter().for_each(|suspect| replace(core, suspect));
        }
        if self.looked_around.is_none_or(|then| then.elapsed() + SETTLED >= LOOK) {
            self.looked_around = Some(Instant::now());
            core.look_around();
        }
    }

    fn suspects(&mut self, core: &HubCore, now: Instant) -> Vec<Overdue> {
        let mut seen = HashMap::new();
        let mut suspects = Vec::new();
        for subscriber in core.registry().subscribers() {
            let Some(time) = subscriber.timeout() else { continue };
            let Some(shown) = subscriber.shown() else { continue };
            let before = self.inside.get(&subscriber.id).filter(|(before, _)| *before == shown);
            let since = before.map_or(now, |(_, since)| *since);
            if now.duration_since(since) < time {
                seen.insert(subscriber.id, (shown, since));
                continue;
            }
            let (runner, subscriber) = (subscriber.life.ask_runner(), subscriber.clone());
            suspects.push(Overdue { subscriber, time, shown, runner });
        }
        self.inside = seen;
        suspects
    }
}

/// Starts another runner, unless this one has returned.
fn replace(core: &Arc<HubCore>, suspect: Overdue) {
    let Overdue { subscriber: me, time, shown, runner } = suspect;
    let leaving = me.leaves(); // until its event is a dead letter
    let (Some(replaced), Some(maker)) = (me.replace(shown, runner), &me.maker) else { return };
    let Replaced { source, runner, lost } = replaced;
    let failure = Failure::late(time);
    for event in &lost {
        letter(core, &me, event, 1, &failure);
    }
    drop(leaving);
    core.caught_up();
    if let Some(event) = lost.first() {
        failed(core, &me, event, &failure, 1);
    }
    core.waits.forget(me.id);
    let pause = maker.replaced();
    if me.life.orders().stop() {
        return end(core, &me, Inbox::new(source, runner), None); // no other runner is needed
    }
    let Some(pause) = pause else {
        return end(core, &me, Inbox::new(source, runner), Some(failure.reason));
    };
    count(&me.counts.troubles().restarts);
    core.say(HubNotice::Restarting {
        subscriber: me.name().to_string(),
        reason: failure.reason,
        pause_ms: pause.as_millis() as u64,
    });
    let begin = RunnerStart { source, runner, pause: Some(pause) };
    if let Err(error) = maker.clone().start(core, &me, begin) {
        // The new runner was dropped; it has made the waiting events dead letters.
        core.leave_failed(&me, Vec::new(), &format!("it could not be started anew: {error}"));
    }
}

/// Ends a subscriber without its hanging runner and without a new one.
fn end(core: &HubCore, me: &Arc<Subscriber>, mut inbox: Inbox, reason: Option<String>) {
    me.shut();
    let leaving = me.leaves();
    let unread = inbox.take_unread(me);
    end_subscriber(core, me, unread, reason, leaving);
}
