//! [`Stages`]: the part of one member in the stages, across its sessions.
//!
//! **Invariant:** everything that was started under a session ends before the next session is served,
//! and nothing runs on after [`run`](Stages::run) returns. `shutdown.rs` describes the order of a
//! graceful stop.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use crate::config::{Config, LeaderWorks};
use crate::duties::Duties;
use crate::election::{Elector, Lease};
use crate::generator::Runner;
use crate::membership::{Patience, Session, SessionHandle, another_handles};
use crate::notice::{Board, Notice};
use crate::panic::drop_quietly;
use crate::queue::Ending;
use crate::role::Role;
use crate::shutdown::Shutdown;
use crate::store::{Store, StoreError};
use crate::tenure::{LeaseUse, resign};
use crate::worker::{Mode, Routing, Worker};

/// How often a leader checks whether any other member works: soon if it may have to work itself or to
/// report, otherwise rarely.
const CHECK_SOON: Duration = Duration::from_secs(1);
const CHECK_LATER: Duration = Duration::from_secs(10);
/// A leader that has seen no member work for this long reports it.
const NO_WORKER_AFTER: Duration = Duration::from_secs(1);

/// The parts of one member.
pub(crate) struct Stages {
    pub(crate) store: Store,
    pub(crate) config: Config,
    pub(crate) board: Board,
    pub(crate) runner: Option<Runner>,
    pub(crate) routing: Option<Routing>,
    pub(crate) role: watch::Sender<Role>,
    /// Its role while it does not lead.
    pub(crate) resting: Role,
    pub(crate) stop: Shutdown,
}

impl Stages {
    /// Takes part until it is stopped, and leaves.
    pub(crate) async fn run(mut self, handle: SessionHandle, duties: Duties) {
        let mut sessions = handle.sessions();
        loop {
            let session = sessions.borrow_and_update().clone();
            match session {
                Some(session) if !session.over.is_cancelled() => self.serve(&session).await,
                _ => tokio::select! {
                    () = self.stop.token.cancelled() => {}
                    changed = sessions.changed() => if changed.is_err() {
                        tracing::error!("the session thread is gone");
                        break;
                    },
                },
            }
            if self.stop.token.is_cancelled() {
                break;
            }
        }
        duties.stop().await;
        handle.leave().await;
    }

    /// Takes part under one session, until it is over or the member stops.
    async fn serve(&mut self, session: &Arc<Session>) {
        let (mode, modes) = watch::channel(Mode::Work);
        let mut worker = self.routing.as_ref().map(|routing| {
            let worker = Worker::new(
                self.store.clone(),
                session.clone(),
                self.config.clone(),
                routing,
                self.board.clone(),
                modes,
            );
            tokio::spawn(worker.run())
        });
        self.lead(session, &mode).await;
        if !session.over.is_cancelled() {
            mode.send_replace(Mode::Drain);
            if let Some(worker) = &mut worker {
                let drained = tokio::time::timeout(self.stop.left(), &mut *worker).await;
                if drained.is_err() {
                    let running = session.tally.in_flight.load(Ordering::Relaxed);
                    if running > 0 {
                        tracing::warn!(running, "handlers still run at the deadline");
                    }
                    mode.send_replace(Mode::Halt);
                }
            }
        }
        if let Some(worker) = worker
            && !worker.is_finished()
        {
            drop_quietly(worker.await);
        }
    }

    /// Stands for election and leads, again and again, until the session is over or the member stops.
    async fn lead(&mut self, session: &Arc<Session>, mode: &watch::Sender<Mode>) {
        let Some(runner) = &mut self.runner else {
            tokio::select! {
                () = session.over.cancelled() => {}
                () = self.stop.token.cancelled() => {}
            }
            return;
        };
        let elector = Elector {
            store: self.store.clone(),
            session: session.clone(),
            takeover_step: self.config.takeover_step,
        };
        loop {
            let lease = tokio::select! {
                () = self.stop.token.cancelled() => break,
                lease = elector.elect() => lease,
            };
            let Some(lease) = lease else { break };
            let check = WorkerCheck {
                store: &self.store,
                session,
                board: &self.board,
                policy: self.config.leader_works,
                handles: self.routing.is_some(),
                mode,
            };
            // Until it is known which members work, the number of members counts.
            check.follow(session.views.follow().borrow().members > 1);
            self.role.send_replace(Role::Generator);
            let (term, gap) = (lease.term, lease.gap);
            self.board.publish(Notice::BecameGenerator { term, gap });
            let ending = tokio::select! {
                ending = runner.lead(&lease, &self.stop.token) => ending,
                // A runner that waits for an answer must not hold up a stop for ever.
                () = self.stop.overdue() => Ending::Stopped,
                never = check.run() => match never {},
            };
            session.tenures.lease.set(LeaseUse::Idle);
            self.role.send_replace(self.resting);
            let reason = reason(ending);
            if matches!(ending, Ending::Stopped | Ending::Forgotten) {
                resign_lease(&self.store, &lease).await;
            }
            self.board.publish(Notice::LeaseLost { term: lease.term, reason });
            if ending == Ending::Stopped || session.over.is_cancelled() {
                break;
            }
            mode.send_replace(Mode::Work);
            session.tally.works.store(self.routing.is_some(), Ordering::Relaxed);
            // A generator that was deposed because it made no progress lets others try first, and one that was asked to
            // step down even more so.
            let asked = session.orders.follow().borrow().ends(&session.id, lease.term);
            let pause = match asked {
                true => session.trust.lease(),
                // Its next term has numbers of its own.
                false if ending == Ending::Forgotten => Duration::ZERO,
                false => session.trust.lease() / 3,
            };
            tokio::select! {
                () = self.stop.token.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        session.tenures.lease.set(LeaseUse::Idle);
    }
}

/// Why a member leads no longer, in words.
fn reason(ending: Ending) -> &'static str {
    match ending {
        Ending::Stopped => "stopping",
        Ending::Deposed => "its term is over",
        Ending::Forgotten => "Redis has lost numbers of its term",
        Ending::Over => "the session is over",
    }
}

/// Whether a leader works: this depends on its setting, and on whether any other member works.
fn leader_mode(policy: LeaderWorks, others: bool) -> Mode {
    match policy {
        LeaderWorks::Always => Mode::Work,
        LeaderWorks::Alone if !others => Mode::Work,
        LeaderWorks::Alone | LeaderWorks::Never => Mode::Rest,
    }
}

/// A leader's check whether any other member works.
struct WorkerCheck<'a> {
    store: &'a Store,
    session: &'a Session,
    board: &'a Board,
    policy: LeaderWorks,
    handles: bool,
    mode: &'a watch::Sender<Mode>,
}

impl WorkerCheck<'_> {
    /// Works or rests. Returns whether it works now.
    fn follow(&self, others: bool) -> bool {
        let wanted = leader_mode(self.policy, others);
        self.mode.send_if_modified(|mode| std::mem::replace(mode, wanted) != wanted);
        let works = self.handles && wanted == Mode::Work;
        self.session.tally.works.store(works, Ordering::Relaxed);
        works
    }

    async fn run(&self) -> Infallible {
        let (began, mut told) = (tokio::time::Instant::now(), false);
        loop {
            let mut soon = self.policy == LeaderWorks::Alone;
            match self.others_work().await {
                Ok(others) => {
                    let nobody = !self.follow(others) && !others;
                    if nobody && began.elapsed() >= NO_WORKER_AFTER && !told {
                        told = true;
                        self.board.publish(Notice::NoWorker);
                    }
                    soon |= nobody && !told;
                }
                Err(error) => tracing::debug!(%error, "checking for workers failed"),
            }
            tokio::time::sleep(if soon { CHECK_SOON } else { CHECK_LATER }).await;
        }
    }

    async fn others_work(&self) -> Result<bool, StoreError> {
        if self.session.views.follow().borrow().members <= 1 {
            return Ok(false);
        }
        let timeout = self.session.trust.call_timeout();
        another_handles(&self.store.work, &self.store.keys, &self.session.id, timeout).await
    }
}

async fn resign_lease(store: &Store, lease: &Lease) {
    let session = &lease.session;
    let call = resign(store, &session.id, lease.term);
    if session.ask(&store.work, Patience::ONCE, call).await.is_err() {
        tracing::debug!("resign was not answered: the lease ends with the session");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_works_as_it_was_told() {
        use LeaderWorks::{Alone, Always, Never};
        let works = |policy, others| leader_mode(policy, others) == Mode::Work;
        assert!(!works(Never, false) && !works(Never, true));
        assert!(works(Alone, false) && !works(Alone, true));
        assert!(works(Always, false) && works(Always, true));
    }
}
