//! [`FleetView`]: what this member last learned about its fleet.
//!
//! **Invariant:** a view is a hint. Every part of it may be stale, and safety never depends on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Moment;
use crate::id::MemberId;
use crate::term::Term;

/// The holder of the lease.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Holder {
    pub(crate) member: MemberId,
    pub(crate) term: Term,
    /// When its session ends unless it is refreshed, on our clock. A hint for our timer.
    pub(crate) deadline: Moment,
}

/// The fleet, as one member sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct FleetView {
    pub(crate) lease: Option<Holder>,
    /// Has a heartbeat reported yet who holds the lease?
    pub(crate) known: bool,
    pub(crate) rank: usize,
    pub(crate) members: usize,
    pub(crate) orphans: bool,
    /// What the clock of Redis showed, and when we asked.
    pub(crate) clock: Option<(Moment, u64)>,
    /// When the first scheduled message is due.
    pub(crate) due: Option<Due>,
}

/// A time on the clock of Redis, relative to a moment on ours.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Due {
    pub(crate) asked: Moment,
    /// So long after that moment; negative: it had passed then.
    pub(crate) in_ms: i64,
}

impl Due {
    /// How many ms are left; negative: how long it is overdue.
    pub(crate) fn left_ms(self, now: Moment) -> i64 {
        self.in_ms - now.since(self.asked).as_millis() as i64
    }
}

impl FleetView {
    /// What the clock of Redis shows now, about. `None` if it is not known.
    pub(crate) fn redis_ms(&self, now: Moment) -> Option<u64> {
        self.clock.map(|(asked, ms)| ms + now.since(asked).as_millis() as u64)
    }

    /// Notes that this member no longer leads.
    pub(super) fn freed_by(&mut self, member: &MemberId) {
        if self.lease.as_ref().is_some_and(|holder| holder.member == *member) {
            self.lease = None;
        }
    }
}

/// The current view, and its followers.
#[derive(Debug)]
pub(crate) struct Views {
    present: watch::Sender<FleetView>,
    /// Since when no member was seen to lead, µs; 0 while one leads.
    leaderless_since: AtomicU64,
}

impl Views {
    pub(super) fn new(began: Moment) -> Views {
        Views {
            present: watch::Sender::default(),
            leaderless_since: AtomicU64::new(began.as_micros()),
        }
    }

    /// The current view, and every later one.
    pub(crate) fn follow(&self) -> watch::Receiver<FleetView> {
        self.present.subscribe()
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut FleetView)) {
        self.present.send_modify(change);
        let since = &self.leaderless_since;
        if self.present.borrow().lease.is_some() {
            since.store(0, Ordering::Relaxed);
        } else {
            let now = Moment::now().as_micros();
            let _ = since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// For how long no member was seen to lead.
    pub(super) fn leaderless(&self) -> Duration {
        match self.leaderless_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Moment::now().since(Moment::from_micros(since)),
        }
    }
}
