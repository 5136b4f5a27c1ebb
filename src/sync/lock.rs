//! [`Lock`]: at most one holder at a time, across processes and machines.
//!
//! **Invariant:** a lock is held by the living session whose token stands in it, and by nobody else;
//! tokens only grow. It hangs on its holder's session exactly as the lease does, and is taken and
//! given up by the same scripts: no renewal of its own, free as soon as its holder is judged dead.
//!
//! ```text
//!                 acquire = won                    release · drop
//!   waiting ───────────────────────▶ held ───────────────────────────▶ free
//!      ▲                              │ session over, or not refreshed for
//!      │ told by whoever releases it  │ two thirds of a lease
//!      └── or once a second           ▼
//!                                    lost (guarded writes are refused by Redis)
//! ```
//!
//! Within one process only one task asks Redis for a lock at a time; the others wait in line here.
//! An attempt that was never answered leaves nothing behind: a lock in our name that nobody here
//! holds is given back after the next heartbeat.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedMutexGuard};

use super::guard::give_up;
use super::smith::{Line, decided_within};
use super::{LockGuard, Locksmith, RETRY, check_name, jittered};
use crate::Error;
use crate::election::lock_call;
use crate::membership::{End, Session};
use crate::store::{LOCK, Listener, Reply, StoreError, Switchboard};
use crate::term::Token;

/// Whoever waits asks at least this often: whoever was told that it is free may have been frozen.
const POLL: Duration = Duration::from_secs(1);
const POLL_MIN: Duration = Duration::from_millis(150);
/// A holder's deadline is given this much before it counts as missed.
const SLACK: Duration = Duration::from_millis(20);

/// A lock of a fleet, by its name. Made by [`Fleet::lock`](crate::Fleet::lock).
///
/// ```
/// # let server = artel_testkit::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// // A program that only wants a lock joins without generating or handling: as an observer.
/// let fleet = artel::Fleet::builder().redis(url).name("shop").start().await?;
/// let report = fleet.lock("nightly-report")?;
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
    pub(super) smith: Arc<Locksmith>,
    pub(super) name: Arc<str>,
}

impl Lock {
    pub(crate) fn new(smith: &Arc<Locksmith>, name: &str) -> Result<Lock, Error> {
        check_name("lock", name)?;
        Ok(Lock { smith: smith.clone(), name: name.into() })
    }

    /// Waits until it is ours. While Redis is away, it waits on.
    ///
    /// # Errors
    ///
    /// If the fleet stops, Redis refuses, or the key holds something else.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropped before it returns, it leaves the queue, and a lock that was granted meanwhile
    /// is given back.
    pub async fn acquire(&self) -> Result<LockGuard, Error> {
        self.contend(&AtomicBool::new(false)).await
    }

    /// As [`acquire`](Self::acquire), and notes whether the holder was overdue when last heard of.
    async fn contend(&self, overdue: &AtomicBool) -> Result<LockGuard, Error> {
        let line = self.smith.line(&self.name);
        let place = tokio::select! {
            place = line.turn.clone().lock_owned() => place,
            () = self.smith.stopped() => return Err(Error::Stopping),
        };
        let mut contender = Contender::new(self.clone(), line, place);
        loop {
            let session = self.smith.session().await?;
            match contender.attempt(&session, true).await? {
                Attempt::Won(token) => return Ok(contender.won(session, token)),
                // Not queued yet: that needs a bell, which a free lock does not.
                Attempt::Held(_) if contender.bell.is_none() => contender.hang_up_bell(),
                Attempt::Held(left) => {
                    overdue.store(left.is_zero(), Ordering::Release);
                    contender.wait(&session, left).await;
                }
                Attempt::Unheard(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    /// Takes it if it is free at this moment; `None` if somebody has it. A holder that is overdue, and
    /// may be dead, is waited for until that is decided: a lease and a little, longer on a busy machine.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and if Redis does not answer.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>, Error> {
        let session = self.smith.session_now()?;
        let line = self.smith.line(&self.name);
        line.all_left().await;
        let Ok(place) = line.turn.clone().try_lock_owned() else { return Ok(None) };
        let mut contender = Contender::new(self.clone(), line, place);
        let (began, mut overdue) = (Instant::now(), false);
        loop {
            match contender.attempt(&session, false).await? {
                Attempt::Won(token) => return Ok(Some(contender.won(session, token))),
                // Its holder is overdue: dead, unless a judge hears of it. That takes a lease, or longer
                // on a machine so busy that the judge must begin anew.
                Attempt::Held(Duration::ZERO) if began.elapsed() < decided_within(&session) => {
                    overdue = true;
                    tokio::time::sleep(POLL_MIN).await;
                }
                Attempt::Held(_) => return Ok(None),
                Attempt::Unheard(_) if overdue && began.elapsed() < decided_within(&session) => {
                    tokio::time::sleep(RETRY).await;
                }
                Attempt::Unheard(error) => return Err(self.smith.redis.store.explain(error)),
            }
        }
    }

    /// Waits until it is ours, but not longer than this: then `None`. With a time of 0 it tries once. A
    /// holder that is overdue then is waited for as [`try_acquire`](Self::try_acquire) does.
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

/// What came of one attempt.
enum Attempt {
    Won(Token),
    /// Somebody has it, whose session ends after this time unless it is refreshed.
    Held(Duration),
    Unheard(StoreError),
}

/// Rings when whoever releases the lock tells us.
struct Bell {
    line: String,
    switchboard: Arc<Switchboard>,
    rung: Notify,
}

impl Listener for Bell {
    fn hear(&self, _: &str) {
        self.rung.notify_one();
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.switchboard.unplug(&self.line);
    }
}

/// The one task of this process that asks for the lock. Dropped, it leaves nothing behind.
struct Contender {
    lock: Lock,
    line: Arc<Line>,
    /// Its place at the head of the line inside this process.
    place: Option<OwnedMutexGuard<()>>,
    /// There once it has had to wait.
    bell: Option<Arc<Bell>>,
    /// Its place in the queue in Redis.
    ticket: String,
    /// The session it asked under, and the number of an attempt that nobody has answered yet.
    asked: Option<(Arc<Session>, Option<u64>)>,
}

impl Contender {
    fn new(lock: Lock, line: Arc<Line>, place: OwnedMutexGuard<()>) -> Contender {
        Contender { lock, line, place: Some(place), bell: None, ticket: String::new(), asked: None }
    }

    /// Before it has a place in the queue: whoever is told and does not hear passes it on.
    fn hang_up_bell(&mut self) {
        let line = format!("{LOCK}{}", self.lock.name);
        let switchboard = self.lock.smith.ear.switchboard.clone();
        let bell = Arc::new(Bell { line: line.clone(), switchboard, rung: Notify::new() });
        let listener: Arc<dyn Listener> = bell.clone();
        bell.switchboard.plug(line, Arc::downgrade(&listener));
        self.bell = Some(bell);
    }

    /// Asks until it is answered, or until the session is in doubt.
    async fn attempt(&mut self, session: &Arc<Session>, wait: bool) -> Result<Attempt, Error> {
        let (redis, name) = (&self.lock.smith.redis, &*self.lock.name);
        let attempt = session.rights.want(name);
        self.asked = Some((session.clone(), Some(attempt)));
        let ticket = self.bell.as_ref().map(|_| self.ticket.as_str());
        let call = lock_call(&redis.store, session, name, attempt, ticket);
        let reply = loop {
            let reply = redis.store.work.call(&call, session.call_timeout()).await;
            match reply.and_then(Reply::parse) {
                Ok(reply) => break reply,
                Err(error) if !error.is_passing() => {
                    return Err(redis.explain(&redis.store.keys.lock(name), error));
                }
                Err(error) if !wait || !session.trusted() => return Ok(Attempt::Unheard(error)),
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        };
        self.asked = Some((session.clone(), None));
        let odd = |error| redis.store.explain(error);
        match reply.tag.as_str() {
            "won" => {
                let token = Token::parse(&reply.text(0).map_err(odd)?);
                token.map(Attempt::Won).ok_or_else(|| odd(reply.unexpected()))
            }
            "held" => {
                if self.bell.is_some() {
                    self.ticket = reply.text(2).map_err(odd)?;
                }
                let left = reply.number(1).map_err(odd)?.max(0) as u64;
                Ok(Attempt::Held(Duration::from_millis(left)))
            }
            "gone" => {
                session.end(End::Gone);
                Ok(Attempt::Unheard(StoreError::odd("the session is over")))
            }
            "spent" => Err(Error::Exhausted { key: redis.store.keys.token() }),
            "strange" => {
                let key = redis.store.keys.lock(name);
                let strange =
                    StoreError::Server { code: "WRONGTYPE".to_owned(), text: String::new() };
                Err(redis.explain(&key, strange))
            }
            // A late copy was in our way: the next attempt has a higher number.
            "late" => Ok(Attempt::Unheard(StoreError::odd("a late copy was answered"))),
            _ => Err(odd(reply.unexpected())),
        }
    }

    /// Waits for a reason to try again.
    async fn wait(&self, session: &Session, left: Duration) {
        let link = &self.lock.smith.ear.link;
        let poll = jittered(POLL);
        let rung = async {
            match &self.bell {
                Some(bell) => bell.rung.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = rung => {}
            () = session.over.cancelled() => {}
            // Nobody can tell us while we do not listen.
            () = link.past(link.epoch()) => tokio::time::sleep(RETRY).await,
            // A holder that is overdue is not dead before somebody has judged it.
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
        session.rights.forget(&self.lock.name);
        if unanswered.is_none() && self.ticket.is_empty() {
            return;
        }
        let (lock, place, leaving) = (self.lock.clone(), self.place.take(), self.line.leave());
        self.lock.smith.ear.spawn(async move {
            let link = &lock.smith.ear.link;
            let mut token = None;
            if let Some(attempt) = unanswered {
                // The same attempt again finds out whether it was granted. What arrives even later
                // is found by the heartbeat, and a call meant for us is passed on.
                let store = &lock.smith.redis.store;
                let call = lock_call(store, &session, &lock.name, attempt, None);
                let reply = link.call(&call, session.call_timeout()).await.and_then(Reply::parse);
                if let Ok(reply) = reply
                    && reply.tag == "won"
                {
                    token = reply.text(0).ok().and_then(|text| Token::parse(&text));
                }
            }
            let _ = give_up(&lock, link, &session, token).await;
            drop((place, leaving));
        });
    }
}
