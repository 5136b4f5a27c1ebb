//! [`Crew`]: everything that runs inside one member, across its sessions.
//!
//! **Invariant:** what was started under a session ends before the next one is served, and nothing
//! runs on after [`run`](Crew::run) returns. The order of a graceful stop is written down in
//! `shutdown.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::election::{Elector, Lease};
use crate::fleet::Role;
use crate::generator::{Ending, Runner};
use crate::membership::{Exercise, Keeper, Session, resign_call};
use crate::notice::{Board, Notice};
use crate::panic::drop_quietly;
use crate::queue::adopt_all;
use crate::shutdown::Shutdown;
use crate::store::Store;
use crate::worker::{DynHandle, Mode, Worker};

/// Pause of the adopter after Redis refused it.
const ADOPT_RETRY: Duration = Duration::from_millis(500);

/// The parts of one member.
pub(crate) struct Crew {
    pub(crate) store: Store,
    pub(crate) config: Config,
    pub(crate) board: Board,
    pub(crate) runner: Option<Runner>,
    pub(crate) handle: Option<Arc<dyn DynHandle>>,
    pub(crate) role: watch::Sender<Role>,
    /// Answers when the fleet is asked for its numbers, for as long as we are a member.
    pub(crate) reporter: JoinHandle<()>,
    pub(crate) stop: Shutdown,
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.reporter.abort();
    }
}

impl Crew {
    /// Takes part until told to stop, and leaves.
    pub(crate) async fn run(mut self, keeper: Keeper) {
        let mut sessions = keeper.sessions();
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
        self.reporter.abort();
        let _ = (&mut self.reporter).await;
        keeper.leave().await;
    }

    /// Takes part under one session, until it is over or the fleet stops.
    async fn serve(&mut self, session: &Arc<Session>) {
        let (mode, modes) = watch::channel(Mode::Work);
        let mut worker = self.handle.as_ref().map(|handle| {
            let worker = Worker::new(
                self.store.clone(),
                session.clone(),
                self.config.clone(),
                handle,
                self.board.clone(),
                modes,
            );
            tokio::spawn(worker.run())
        });
        let adopter = tokio::spawn(adopt(self.store.clone(), session.clone(), self.board.clone()));
        self.lead(session, &mode).await;
        if !session.over.is_cancelled() {
            mode.send_replace(Mode::Drain);
            if let Some(worker) = &mut worker {
                let drained = tokio::time::timeout(self.stop.left(), &mut *worker).await;
                if drained.is_err() {
                    let running = session.in_flight.load(Ordering::Relaxed);
                    if running > 0 {
                        tracing::warn!(running, "handlers still run at the deadline");
                    }
                    mode.send_replace(Mode::Halt);
                }
            }
        }
        adopter.abort();
        let _ = adopter.await;
        if let Some(worker) = worker
            && !worker.is_finished()
        {
            drop_quietly(worker.await);
        }
    }

    /// Stands for election and leads, again and again, until the session is over or the fleet
    /// stops.
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
            takeover_timeout: self.config.takeover_timeout,
        };
        loop {
            let lease = tokio::select! {
                () = self.stop.token.cancelled() => break,
                lease = elector.elect() => lease,
            };
            let Some(lease) = lease else { break };
            mode.send_replace(Mode::Rest);
            self.role.send_replace(Role::Generator);
            self.board.publish(Notice::BecameGenerator { term: lease.term });
            let ending = tokio::select! {
                ending = runner.lead(&lease, &self.stop.token) => ending,
                // A runner that waits for an answer must not hold up a stop for ever.
                () = self.stop.overdue() => Ending::Stopped,
            };
            session.set_exercise(Exercise::Idle);
            self.role.send_replace(Role::Worker);
            let reason = match ending {
                Ending::Stopped => "stopping",
                Ending::Deposed => "its term is over",
                Ending::Over => "the session is over",
            };
            if ending == Ending::Stopped {
                resign(&self.store, &lease).await;
            }
            self.board.publish(Notice::LeaseLost { term: lease.term, reason });
            if ending == Ending::Stopped || session.over.is_cancelled() {
                break;
            }
            mode.send_replace(Mode::Work);
            // Whoever was deposed for making no progress lets others try first.
            tokio::select! {
                () = self.stop.token.cancelled() => break,
                () = tokio::time::sleep(session.lease() / 3) => {}
            }
        }
        session.set_exercise(Exercise::Idle);
    }
}

async fn resign(store: &Store, lease: &Lease) {
    let session = &lease.session;
    let call = resign_call(store, &session.id, lease.term);
    if let Err(error) = store.work.call(&call, session.call_timeout()).await {
        tracing::debug!(%error, "resigning unanswered: the lease ends with the session");
    }
}

/// Puts back what dead members held, whenever there is something.
async fn adopt(store: Store, session: Arc<Session>, board: Board) {
    let mut standing = session.standing();
    loop {
        let (orphans, rank) = {
            let standing = standing.borrow_and_update();
            (standing.orphans, standing.rank)
        };
        if orphans {
            // Everybody hears of it; the lower ranks are usually done before the others begin.
            tokio::time::sleep(Duration::from_millis(rank.min(20) as u64 * 5)).await;
            // Before, not after: what is heard of meanwhile must not be forgotten.
            session.update_standing(|standing| standing.orphans = false);
            if let Err(error) = adopt_all(&store, &session, &board).await {
                tracing::debug!(%error, "adopting");
                tokio::time::sleep(ADOPT_RETRY).await;
                session.update_standing(|standing| standing.orphans = true);
            }
        }
        tokio::select! {
            () = session.over.cancelled() => return,
            changed = standing.wait_for(|standing| standing.orphans) => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}
