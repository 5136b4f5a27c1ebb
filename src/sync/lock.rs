//! [`Lock`]: at most one holder at a time, across processes and machines.
//!
//! **Invariant:** a lock is held by the living session whose token is stored in it, and by nobody else.
//! Tokens only grow. It depends on its holder's session exactly as the lease does, and the same scripts
//! take it and give it up: it has no renewal of its own, and is free as soon as its holder is judged
//! dead.
//!
//! ```text
//!                 acquire = won                    release · drop
//!   waiting ───────────────────────▶ held ───────────────────────────▶ free
//!      ▲                              │ session over, or not refreshed for
//!      │ woken by a release           │ two thirds of a lease
//!      └── or once a second           ▼
//!                                    lost (guarded writes are refused by Redis)
//! ```
//!
//! Within one process only one task asks Redis for a lock at a time. The others wait in line here. An
//! attempt that was never answered leaves nothing behind: a lock in our name that nobody here holds is
//! given back after the next heartbeat.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedMutexGuard};

use super::context::{Line, decided_within};
use super::lock_guard::give_up;
use super::{LockGuard, RETRY, SyncContext, check_name};
use crate::Error;
use crate::membership::{AskError, Patience, Session};
use crate::store::{Listener, PushRouter, Route, StoreError};
use crate::tenure::{LockAnswer, acquire_lock};
use crate::term::Token;
use crate::watch::jittered;

/// A waiter asks at least this often: the waiter that was notified may be frozen.
const POLL: Duration = Duration::from_secs(1);
const POLL_MIN: Duration = Duration::from_millis(150);
/// A holder's deadline counts as missed only when this time has passed after it.
const SLACK: Duration = Duration::from_millis(20);

/// A lock of a fleet, by its name. Made by [`Member::lock`](crate::Member::lock).
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// // A program that only wants a lock joins without generating or handling: as an observer.
/// let member = artel::Fleet::connect(url, "shop").await?.join().start().await?;
/// let report = member.lock("nightly-report")?;
///
/// let guard = report.acquire().await?;
/// tokio::select! {
///     () = guard.lost() => eprintln!("somebody else may have it: stop"),
///     () = async { /* what only one process may do */ } => {}
/// }
/// guard.release().await?;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Lock {
    pub(super) context: Arc<SyncContext>,
    pub(super) name: Arc<str>,
}

impl Lock {
    pub(crate) fn new(context: &Arc<SyncContext>, name: &str) -> Result<Lock, Error> {
        check_name("lock", name)?;
        Ok(Lock { context: context.clone(), name: name.into() })
    }

    /// Waits until the lock is ours. While Redis is down, it keeps waiting.
    ///
    /// # Errors
    ///
    /// If this member stops, Redis refuses, or the key holds something else.
    ///
    /// # Cancel safety
    ///
    /// Safe: if it is dropped before it returns, it leaves the queue, and a lock that was granted
    /// meanwhile is given back.
    pub async fn acquire(&self) -> Result<LockGuard, Error> {
        self.contend(&AtomicBool::new(false)).await
    }

    /// As [`acquire`](Self::acquire), and notes whether the holder was overdue at the last answer.
    async fn contend(&self, overdue: &AtomicBool) -> Result<LockGuard, Error> {
        let line = self.context.line(&self.name);
        let place = tokio::select! {
            place = line.turn.clone().lock_owned() => place,
            () = self.context.stopped() => return Err(Error::Stopping),
        };
        let mut contender = Contender::new(self.clone(), line, place);
        loop {
            let session = self.context.session().await?;
            match contender.attempt(&session, true).await? {
                Attempt::Won(token) => return Ok(contender.won(session, token)),
                // It is not in the queue yet. For that it must listen, which a free lock does not need.
                Attempt::Held(_) if contender.unlocked.is_none() => contender.listen(),
                Attempt::Held(left) => {
                    overdue.store(left.is_zero(), Ordering::Release);
                    contender.wait(&session, left).await;
                }
                Attempt::Unheard(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    /// Takes the lock if it is free at this moment. `None` if another holder has it. If the holder is
    /// overdue and may be dead, this waits until that is decided: a lease and a little, longer on a
    /// busy machine.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and if Redis does not answer.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>, Error> {
        let session = self.context.session_now()?;
        let line = self.context.line(&self.name);
        line.all_left().await;
        let Ok(place) = line.turn.clone().try_lock_owned() else { return Ok(None) };
        let mut contender = Contender::new(self.clone(), line, place);
        let (began, mut overdue) = (Instant::now(), false);
        loop {
            match contender.attempt(&session, false).await? {
                Attempt::Won(token) => return Ok(Some(contender.won(session, token))),
                // Its holder is overdue: it is dead, unless it refreshes its session. The decision
                // takes a lease, or longer on a machine that is so busy that the judge must start
                // again.
                Attempt::Held(Duration::ZERO) if began.elapsed() < decided_within(&session) => {
                    overdue = true;
                    tokio::time::sleep(POLL_MIN).await;
                }
                Attempt::Held(_) => return Ok(None),
                Attempt::Unheard(_) if overdue && began.elapsed() < decided_within(&session) => {
                    tokio::time::sleep(RETRY).await;
                }
                Attempt::Unheard(error) => return Err(self.context.fleet.store.explain(error)),
            }
        }
    }

    /// Waits until the lock is ours, but not longer than this. Then it returns `None`. With a time of 0
    /// it tries once. If the holder is overdue then, it waits as [`try_acquire`](Self::try_acquire)
    /// does.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Option<LockGuard>, Error> {
        if timeout.is_zero() {
            return self.try_acquire().await;
        }
        let overdue = AtomicBool::new(false);
        match tokio::time::timeout(timeout, self.contend(&overdue)).await {
            Ok(guard) => guard.map(Some),
            Err(_) if overdue.into_inner() => self.try_acquire().await,
            Err(_) => Ok(None),
        }
    }
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lock").field(&self.name).finish()
    }
}

/// The result of one attempt.
enum Attempt {
    Won(Token),
    /// Another member holds it. Its session ends after this time unless it is refreshed.
    Held(Duration),
    Unheard(StoreError),
}

/// Receives the message that the lock is free.
struct Unlocked {
    route: Route,
    router: Arc<PushRouter>,
    heard: Notify,
}

impl Listener for Unlocked {
    fn hear(&self, _: &str) {
        self.heard.notify_one();
    }
}

impl Drop for Unlocked {
    fn drop(&mut self) {
        self.router.remove(&self.route);
    }
}

/// The one task of this process that asks for the lock. When it is dropped, it leaves nothing behind.
struct Contender {
    lock: Lock,
    line: Arc<Line>,
    /// Its place at the head of the line inside this process.
    place: Option<OwnedMutexGuard<()>>,
    /// Set as soon as it must wait.
    unlocked: Option<Arc<Unlocked>>,
    /// Its place in the queue in Redis.
    ticket: String,
    /// The session it asked under, and the number of an attempt that is not answered yet.
    asked: Option<(Arc<Session>, Option<u64>)>,
}

impl Contender {
    fn new(lock: Lock, line: Arc<Line>, place: OwnedMutexGuard<()>) -> Contender {
        Contender {
            lock,
            line,
            place: Some(place),
            unlocked: None,
            ticket: String::new(),
            asked: None,
        }
    }

    /// Listens, before it has a place in the queue. A message that finds no listener is passed on.
    fn listen(&mut self) {
        let route = Route::Lock(self.lock.name.to_string());
        let router = self.lock.context.session_link.router.clone();
        let unlocked = Arc::new(Unlocked { route: route.clone(), router, heard: Notify::new() });
        let listener: Arc<dyn Listener> = unlocked.clone();
        unlocked.router.add(route, Arc::downgrade(&listener));
        self.unlocked = Some(unlocked);
    }

    /// Asks for the lock. With `wait` it asks until it is answered, or until the session is in doubt.
    async fn attempt(&mut self, session: &Arc<Session>, wait: bool) -> Result<Attempt, Error> {
        let (fleet, name) = (&self.lock.context.fleet, &*self.lock.name);
        let attempt = session.tenures.locks.want(name);
        self.asked = Some((session.clone(), Some(attempt)));
        let ticket = self.unlocked.as_ref().map(|_| self.ticket.as_str());
        let lease_ms = session.trust.lease_ms();
        let call = acquire_lock(&fleet.store, &session.id, lease_ms, name, attempt, ticket);
        let patience = if wait { Patience::WHILE_TRUSTED } else { Patience::ONCE };
        let answer = match session.ask(&fleet.store.work, patience, call).await {
            Ok(answer) => answer,
            Err(AskError::Failed(error)) if !error.is_passing() => {
                return Err(fleet.explain(&fleet.store.keys.lock(name), error));
            }
            Err(error) => return Ok(Attempt::Unheard(error.into_store())),
        };
        self.asked = Some((session.clone(), None));
        match answer {
            LockAnswer::Won(token) => Ok(Attempt::Won(token)),
            LockAnswer::Held(left, ticket) => {
                if self.unlocked.is_some() {
                    self.ticket = ticket;
                }
                Ok(Attempt::Held(left))
            }
            // A late copy was in our way: the next attempt has a higher number.
            LockAnswer::Late => Ok(Attempt::Unheard(StoreError::odd("a late copy was answered"))),
            LockAnswer::Spent => Err(Error::Exhausted { key: fleet.store.keys.token() }),
            LockAnswer::Strange => {
                let (code, text) = ("WRONGTYPE".to_owned(), String::new());
                let strange = StoreError::Server { code, text };
                Err(fleet.explain(&fleet.store.keys.lock(name), strange))
            }
        }
    }

    /// Waits for a reason to try again.
    async fn wait(&self, session: &Session, left: Duration) {
        let link = &self.lock.context.session_link.link;
        let poll = jittered(POLL);
        let told = async {
            match &self.unlocked {
                Some(unlocked) => unlocked.heard.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = told => {}
            () = session.over.cancelled() => {}
            // Without a connection we get no message.
            () = link.past(link.epoch()) => tokio::time::sleep(RETRY).await,
            // An overdue holder is not dead before it has been judged.
            () = tokio::time::sleep((left + SLACK).clamp(POLL_MIN, poll)) => {}
        }
    }

    fn won(mut self, session: Arc<Session>, token: Token) -> LockGuard {
        self.asked = None;
        LockGuard::new(self.lock.clone(), self.line.clone(), session, token, self.place.take())
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let Some((session, unanswered)) = self.asked.take() else { return };
        session.tenures.locks.forget(&self.lock.name);
        if unanswered.is_none() && self.ticket.is_empty() {
            return;
        }
        let (lock, place, leaving) = (self.lock.clone(), self.place.take(), self.line.leave());
        self.lock.context.session_link.spawn(async move {
            let link = &lock.context.session_link.link;
            let mut token = None;
            if let Some(attempt) = unanswered {
                // The same attempt, repeated, finds out whether it was granted. A copy that arrives
                // even later is found by the heartbeat, and a message for us is passed on.
                let (store, lease_ms) = (&lock.context.fleet.store, session.trust.lease_ms());
                let call = acquire_lock(store, &session.id, lease_ms, &lock.name, attempt, None);
                let answer = session.ask(link, Patience::ONCE, call).await;
                if let Ok(LockAnswer::Won(granted)) = answer {
                    token = Some(granted);
                }
            }
            let _ = give_up(&lock, link, &session, token).await;
            drop((place, leaving));
        });
    }
}
