//! [`Session`]: what the stages of one process share while one session lasts.
//!
//! **Invariant:** `trusted()` is true only until two thirds of a lease after the last answered call
//! was *sent*; a slow answer shortens trust and never stretches it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{MemberId, Rights};
use crate::clock::Moment;
use crate::mutant::{Rule, off};
use crate::store::{CALLS, Link};
use crate::term::Term;
use crate::timings::Timings;

/// Why a session ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// Redis says it is not a member: it was judged dead, or Redis lost its data.
    Gone,
    /// What it knows and what Redis knows differ: Redis lost data.
    DataLoss,
    /// Redis keeps refusing what it must record: others shall have what it holds.
    Refused,
    /// It leaves on purpose.
    Leave,
}

/// Who holds the lease.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Holder {
    pub(crate) member: MemberId,
    pub(crate) term: Term,
    /// When its session ends unless it is refreshed, on our clock. A hint for our timer.
    pub(crate) deadline: Moment,
}

/// What this member last heard about the fleet. Hints: every one of them may be stale.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) lease: Option<Holder>,
    /// Has the lease been asked for at all yet?
    pub(crate) known: bool,
    pub(crate) rank: usize,
    pub(crate) members: usize,
    pub(crate) orphans: bool,
}

/// What this member does with the lease.
#[derive(Clone, Debug)]
pub(crate) enum Exercise {
    /// Nothing: a lease in its name is a late copy's doing and is given back.
    Idle,
    /// An acquire is on its way, so a lease in its name may be the answer to it.
    Acquiring,
    /// It generates under this term until the token is cancelled.
    Leading(Term, CancellationToken),
}

/// The blocks a worker knows of, for the check that Redis has lost none and made none up.
#[derive(Debug, Default)]
struct Books {
    held: usize,
    hi: u64,
    fetching: bool,
    changes: u64,
}

/// One session of this process.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: MemberId,
    /// Lease and grace of the fleet, ms. While only observers are here they may change.
    lease_ms: AtomicU64,
    grace_ms: AtomicU64,
    /// Messages that may wait in a lane of this fleet.
    pub(crate) backlog_max: usize,
    /// Cancelled when the session is over: what runs under it stops.
    pub(crate) over: CancellationToken,
    end: Mutex<Option<End>>,
    trusted_until: AtomicU64,
    refreshed: AtomicU64,
    trust_back: Notify,
    /// The epoch of the session connection in which it is subscribed.
    present_in: AtomicU64,
    exercise: Mutex<Exercise>,
    progress: AtomicU64,
    books: Mutex<Books>,
    standing: watch::Sender<Standing>,
    /// The locks it holds and asks for.
    pub(crate) rights: Rights,
    pub(crate) done: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Handlers that run.
    pub(crate) in_flight: AtomicU64,
    /// Messages it has claimed, started or not.
    pub(crate) claimed: AtomicU64,
    /// It works, and has a free slot and nothing to do.
    pub(crate) idle: AtomicBool,
    /// It handles messages at present.
    pub(crate) works: AtomicBool,
    /// Since when it has seen nobody lead, µs; 0 while somebody does.
    leaderless_since: AtomicU64,
    /// How long its handlers took.
    pub(crate) timings: Timings,
}

impl Session {
    pub(super) fn new(
        id: MemberId,
        lease: Duration,
        grace: Duration,
        backlog_max: usize,
        sent: Moment,
    ) -> Session {
        let session = Session {
            id,
            lease_ms: AtomicU64::new(lease.as_millis() as u64),
            grace_ms: AtomicU64::new(grace.as_millis() as u64),
            backlog_max,
            over: CancellationToken::new(),
            end: Mutex::new(None),
            trusted_until: AtomicU64::new(0),
            refreshed: AtomicU64::new(0),
            trust_back: Notify::new(),
            present_in: AtomicU64::new(0),
            exercise: Mutex::new(Exercise::Idle),
            progress: AtomicU64::new(sent.as_micros()),
            books: Mutex::default(),
            standing: watch::Sender::new(Standing::default()),
            rights: Rights::default(),
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            idle: AtomicBool::new(false),
            works: AtomicBool::new(false),
            leaderless_since: AtomicU64::new(sent.as_micros()),
            timings: Timings::default(),
        };
        session.refresh(sent);
        session
    }

    /// How long it lasts without a refresh.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms.load(Ordering::Acquire))
    }

    fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms.load(Ordering::Acquire))
    }

    /// What the fleet has now, with which Redis has just refreshed it.
    pub(super) fn follow(&self, lease_ms: u64, grace_ms: u64) {
        self.lease_ms.store(lease_ms, Ordering::Release);
        self.grace_ms.store(grace_ms, Ordering::Release);
    }

    /// How long a call of this session waits for its answer.
    pub(crate) fn call_timeout(&self) -> Duration {
        (self.lease() / 3).clamp(Duration::from_millis(500), Duration::from_secs(2))
    }

    /// How often the session is refreshed.
    pub(super) fn beat(&self) -> Duration {
        self.lease() / 6
    }

    /// Notes that a call sent at `sent` was answered, and refreshed the session.
    pub(crate) fn refresh(&self, sent: Moment) {
        let sent = if off(Rule::TrustFromSending) { Moment::now() } else { sent };
        let until = (sent + self.lease() * 2 / 3).as_micros();
        tracing::trace!(target: CALLS, until, "trusted");
        self.refreshed.fetch_max(sent.as_micros(), Ordering::AcqRel);
        if self.trusted_until.fetch_max(until, Ordering::AcqRel) <= Moment::now().as_micros() {
            self.trust_back.notify_waiters();
        }
    }

    /// When the last answered call was sent that refreshed it.
    pub(crate) fn refreshed_at(&self) -> Moment {
        Moment::from_micros(self.refreshed.load(Ordering::Acquire))
    }

    /// The end of trust, unless the session is refreshed before.
    pub(super) fn trusted_until(&self) -> Moment {
        Moment::from_micros(self.trusted_until.load(Ordering::Acquire))
    }

    /// May this process still act on its session at this instant?
    pub(crate) fn trusted(&self) -> bool {
        Moment::now() < self.trusted_until() && !self.over.is_cancelled()
    }

    /// Waits until the session is trusted; false if it is over.
    pub(crate) async fn until_trusted(&self) -> bool {
        if self.trusted() {
            return true;
        }
        loop {
            let mut back = std::pin::pin!(self.trust_back.notified());
            back.as_mut().enable();
            if self.over.is_cancelled() {
                return false;
            }
            if self.trusted() {
                return true;
            }
            tokio::select! {
                () = back => {}
                () = self.over.cancelled() => return false,
            }
        }
    }

    /// Our presence is visible in this epoch of the session connection.
    pub(super) fn present_in(&self, epoch: u64) {
        self.present_in.store(epoch, Ordering::Release);
    }

    /// Until when what hangs on it may be relied on without hearing from Redis again. Without
    /// presence, whose end Redis sees as soon as we do, that is not even the grace; unless Redis itself
    /// is away, which judges nobody, and nobody for a lease once it is back.
    pub(crate) fn secure_until(&self, link: &Link) -> Moment {
        let trusted = self.trusted_until();
        if link.epoch() == self.present_in.load(Ordering::Acquire) || link.is_refused() {
            return trusted;
        }
        secure_until(trusted, link.ended_at().max(self.refreshed_at()), self.grace())
    }

    /// Ends the session, for the first reason given.
    pub(crate) fn end(&self, why: End) {
        self.end.lock().expect("never poisoned").get_or_insert(why);
        self.over.cancel();
    }

    pub(crate) fn ended(&self) -> Option<End> {
        *self.end.lock().expect("never poisoned")
    }

    pub(crate) fn set_exercise(&self, exercise: Exercise) {
        self.note_progress();
        *self.exercise.lock().expect("never poisoned") = exercise;
    }

    pub(crate) fn exercise(&self) -> Exercise {
        self.exercise.lock().expect("never poisoned").clone()
    }

    /// The generator has just proved that it works, not only lives.
    pub(crate) fn note_progress(&self) {
        self.progress.store(Moment::now().as_micros(), Ordering::Release);
    }

    pub(super) fn progress(&self) -> Moment {
        Moment::from_micros(self.progress.load(Ordering::Acquire))
    }

    /// The worker tells how many blocks it holds, its last number, and whether a fetch is on its way.
    pub(crate) fn note_blocks(&self, held: usize, hi: u64, fetching: bool) {
        let mut books = self.books.lock().expect("never poisoned");
        books.changes += 1;
        books.held = held;
        books.hi = hi;
        books.fetching = fetching;
    }

    /// For a heartbeat: `held`, `hi`, and a mark that tells whether they were valid all the time.
    pub(super) fn blocks(&self) -> (usize, u64, Option<u64>) {
        let books = self.books.lock().expect("never poisoned");
        (books.held, books.hi, (!books.fetching).then_some(books.changes))
    }

    pub(crate) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    pub(crate) fn update_standing(&self, change: impl FnOnce(&mut Standing)) {
        self.standing.send_modify(change);
        if self.standing.borrow().lease.is_some() {
            self.leaderless_since.store(0, Ordering::Relaxed);
        } else {
            let now = Moment::now().as_micros();
            let _ = self.leaderless_since.compare_exchange(
                0,
                now,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// For how long it has seen nobody lead.
    pub(super) fn leaderless(&self) -> Duration {
        match self.leaderless_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Moment::now().since(Moment::from_micros(since)),
        }
    }
}

/// The end of what may be relied on while absent: a judge lets a suspect live for `grace` after it
/// was last heard of, and we stop before that.
fn secure_until(trusted: Moment, heard: Moment, grace: Duration) -> Moment {
    trusted.min(heard + grace * 2 / 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(lease: Duration, sent: Moment) -> Session {
        Session::new(MemberId::random(), lease, Duration::ZERO, 1, sent)
    }

    #[test]
    fn trust_counts_from_before_the_call_was_sent() {
        let now = Moment::now();
        let lease = Duration::from_secs(3);
        let session = session(lease, now);
        assert_eq!(session.trusted_until(), now + Duration::from_secs(2));
        session.refresh(Moment::from_micros(now.as_micros() - 1_000_000));
        assert_eq!(session.trusted_until(), now + Duration::from_secs(2), "never shortened");
        assert!(session.trusted());
    }

    #[test]
    fn absence_shortens_what_may_be_relied_on_and_never_lengthens_it() {
        let (now, grace) = (Moment::now(), Duration::from_millis(300));
        let ms = Duration::from_millis;
        assert_eq!(secure_until(now + ms(2000), now, grace), now + ms(200));
        assert_eq!(secure_until(now + ms(100), now, grace), now + ms(100));
    }

    #[test]
    fn an_old_refresh_gives_no_trust() {
        let long_ago = Moment::from_micros(Moment::now().as_micros() - 2_100_000);
        assert!(!session(Duration::from_secs(3), long_ago).trusted());
    }

    #[test]
    fn a_session_ends_once_and_is_not_trusted_after() {
        let session = session(Duration::from_secs(3), Moment::now());
        session.end(End::DataLoss);
        session.end(End::Gone);
        assert_eq!(session.ended(), Some(End::DataLoss));
        assert!(!session.trusted());
    }
}
