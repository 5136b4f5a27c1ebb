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

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex as Line, Notify, OwnedMutexGuard, watch};
use tokio_util::sync::CancellationToken;

use super::guarded::{GuardedScript, json};
use super::{Redis, check_name};
use crate::Error;
use crate::clock::Moment;
use crate::election::lock_call;
use crate::membership::{End, Session, release_call};
use crate::store::{Ear, LOCK, Link, Listener, Reply, StoreError, Switchboard};
use crate::term::Token;

/// Whoever waits asks at least this often: whoever was told that it is free may have been frozen.
const POLL: Duration = Duration::from_secs(1);
/// A holder's deadline is given this much before it counts as missed.
const SLACK: Duration = Duration::from_millis(20);
/// Pause after Redis did not answer.
const RETRY: Duration = Duration::from_millis(50);
/// How often a release is repeated that nobody answers; then the heartbeat gives the lock back.
const RELEASE_TRIES: u32 = 5;

/// Makes the locks of one member.
pub(crate) struct Locksmith {
    redis: Redis,
    ear: Arc<Ear>,
    sessions: watch::Receiver<Option<Arc<Session>>>,
    /// Who waits inside this process, by name.
    lines: Mutex<HashMap<String, Arc<Line<()>>>>,
}

impl Locksmith {
    pub(crate) fn new(
        redis: Redis,
        sessions: watch::Receiver<Option<Arc<Session>>>,
    ) -> Result<Arc<Locksmith>, Error> {
        let ear = redis.store.ear()?;
        Ok(Arc::new(Locksmith { redis, ear, sessions, lines: Mutex::default() }))
    }

    pub(super) fn redis(&self) -> &Redis {
        &self.redis
    }

    pub(super) fn ear(&self) -> &Arc<Ear> {
        &self.ear
    }

    /// Where the tasks of this process wait for each other, by name.
    pub(super) fn line(&self, name: &str) -> Arc<Line<()>> {
        let mut lines = self.lines.lock().expect("never poisoned");
        lines.retain(|_, line| Arc::strong_count(line) > 1);
        lines.entry(name.to_owned()).or_default().clone()
    }

    /// A session that may act, as soon as there is one.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Error> {
        let mut sessions = self.sessions.clone();
        loop {
            let session = match sessions.wait_for(Option::is_some).await {
                Ok(session) => session.clone(),
                Err(_) => None,
            };
            let session = session.ok_or(Error::Stopping)?;
            if session.until_trusted().await {
                return Ok(session);
            }
            // It is over, and what comes next is not there yet.
            if sessions.changed().await.is_err() {
                return Err(Error::Stopping);
            }
        }
    }
}

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
    smith: Arc<Locksmith>,
    name: Arc<str>,
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
        let place = self.smith.line(&self.name).lock_owned().await;
        let mut contender = Contender::new(self.clone(), place);
        loop {
            let session = self.smith.session().await?;
            match contender.attempt(&session, true).await? {
                Attempt::Won(token) => return Ok(contender.won(session, token)),
                Attempt::Held(left) => contender.wait(&session, left).await,
                Attempt::Unheard(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    /// Takes it if it is free at this moment; `None` if somebody has it.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and if Redis does not answer.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>, Error> {
        let Ok(place) = self.smith.line(&self.name).try_lock_owned() else { return Ok(None) };
        let session = self.smith.sessions.borrow().clone();
        let store = &self.smith.redis.store;
        let away = || StoreError::Unconnected("this process has no session at the moment".into());
        let session = session.ok_or_else(|| store.explain(away()))?;
        let mut contender = Contender::new(self.clone(), place);
        match contender.attempt(&session, false).await? {
            Attempt::Won(token) => Ok(Some(contender.won(session, token))),
            Attempt::Held(_) => Ok(None),
            Attempt::Unheard(error) => Err(store.explain(error)),
        }
    }

    /// Waits until it is ours, but not longer than this: then `None`. With a time of 0 it tries once.
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
        match tokio::time::timeout(timeout, self.acquire()).await {
            Ok(guard) => guard.map(Some),
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
    /// Its place at the head of the line inside this process.
    place: Option<OwnedMutexGuard<()>>,
    bell: Arc<Bell>,
    /// Its place in the queue in Redis.
    ticket: String,
    /// The session it asked under.
    asked: Option<Arc<Session>>,
}

impl Contender {
    fn new(lock: Lock, place: OwnedMutexGuard<()>) -> Contender {
        let (line, switchboard) =
            (format!("{LOCK}{}", lock.name), lock.smith.ear.switchboard.clone());
        let bell = Arc::new(Bell { line: line.clone(), switchboard, rung: Notify::new() });
        let listener: Arc<dyn Listener> = bell.clone();
        bell.switchboard.plug(line, Arc::downgrade(&listener));
        Contender { lock, place: Some(place), bell, ticket: String::new(), asked: None }
    }

    /// Asks until it is answered, or until the session is in doubt.
    async fn attempt(&mut self, session: &Arc<Session>, wait: bool) -> Result<Attempt, Error> {
        let (redis, name) = (&self.lock.smith.redis, &*self.lock.name);
        let attempt = session.rights.want(name);
        self.asked = Some(session.clone());
        let ticket = wait.then_some(self.ticket.as_str());
        let call = lock_call(&redis.store, session, name, attempt, ticket);
        let (sent, reply) = loop {
            let sent = Moment::now();
            let reply = redis.store.work.call(&call, session.call_timeout()).await;
            match reply.and_then(Reply::parse) {
                Ok(reply) => break (sent, reply),
                Err(error) if !error.is_passing() => {
                    return Err(redis.explain(&redis.store.keys.lock(name), error));
                }
                Err(error) if !wait || !session.trusted() => return Ok(Attempt::Unheard(error)),
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        };
        let odd = |error| redis.store.explain(error);
        match reply.tag.as_str() {
            "won" => {
                session.refresh(sent);
                let token = Token::parse(&reply.text(0).map_err(odd)?);
                token.map(Attempt::Won).ok_or_else(|| odd(reply.unexpected()))
            }
            "held" => {
                self.ticket = reply.text(2).map_err(odd)?;
                let left = reply.number(1).map_err(odd)?.max(0) as u64;
                Ok(Attempt::Held(Duration::from_millis(left)))
            }
            "gone" => {
                session.end(End::Gone);
                Ok(Attempt::Unheard(StoreError::odd("the session is over")))
            }
            // A late copy was in our way: the next attempt has a higher number.
            "late" => Ok(Attempt::Unheard(StoreError::odd("a late copy was answered"))),
            _ => Err(odd(reply.unexpected())),
        }
    }

    /// Waits for a reason to try again.
    async fn wait(&self, session: &Session, left: Duration) {
        let link = &self.lock.smith.ear.link;
        let poll = POLL.mul_f64(0.8 + 0.2 * rand::random::<f64>());
        tokio::select! {
            () = self.bell.rung.notified() => {}
            () = session.over.cancelled() => {}
            // Nobody can tell us while we do not listen.
            () = link.past(link.epoch()) => tokio::time::sleep(RETRY).await,
            () = tokio::time::sleep(poll.min(left + SLACK)) => {}
        }
    }

    fn won(mut self, session: Arc<Session>, token: Token) -> LockGuard {
        self.asked = None;
        let lost = session.over.child_token();
        session.rights.hold(&self.lock.name, token, &lost);
        LockGuard { lock: self.lock.clone(), session, token, lost, place: self.place.take() }
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let Some(session) = self.asked.take() else { return };
        session.rights.forget(&self.lock.name);
        if self.ticket.is_empty() {
            return; // an attempt that was granted unheard is found by the heartbeat
        }
        let (lock, place) = (self.lock.clone(), self.place.take());
        self.lock.smith.ear.spawn(async move {
            let _ = give_up(&lock, &lock.smith.ear.link, &session, None).await;
            drop(place);
        });
    }
}

/// Gives up a lock, or only waiting for it, until that is answered or the session is over. Was it
/// ours until then, as far as can be known?
async fn give_up(
    lock: &Lock,
    link: &Link,
    session: &Session,
    token: Option<Token>,
) -> Result<bool, StoreError> {
    let call = release_call(&lock.smith.redis.store, &session.id, &session.id, &lock.name, token);
    let mut tries = 0;
    loop {
        if session.over.is_cancelled() {
            return Ok(false);
        }
        tries += 1;
        match link.call(&call, session.call_timeout()).await.and_then(Reply::parse) {
            // Not ours any more; after an unheard copy it may have been that one's doing.
            Ok(reply) => return Ok(reply.tag == "ok" || tries > 1),
            Err(error) if !error.is_passing() || tries >= RELEASE_TRIES => return Err(error),
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

/// A lock that is held, until this is released or dropped, or until it is lost.
///
/// It has no renewal of its own: it is held for as long as this process's session lives. Dropping it
/// releases it in the background; [`release`](Self::release) says when that is done.
#[must_use = "dropping it releases the lock"]
pub struct LockGuard {
    lock: Lock,
    session: Arc<Session>,
    token: Token,
    lost: CancellationToken,
    place: Option<OwnedMutexGuard<()>>,
}

impl LockGuard {
    /// The fencing token: higher than that of every holder before, also after Redis lost its data.
    /// Hand it to whatever the lock protects, and let that refuse a lower one than it has seen.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Until when it may be relied on without hearing from Redis again; usually it is moved on long
    /// before. Past it, somebody else may soon have the lock.
    pub fn deadline(&self) -> Instant {
        let (now, left) = (Moment::now(), self.session.trusted_until());
        Instant::now() + left.since(now)
    }

    /// May it be relied on at this instant?
    pub fn is_held(&self) -> bool {
        !self.lost.is_cancelled() && self.session.trusted()
    }

    /// Waits until the lock cannot be relied on any longer: the session is over, Redis no longer
    /// names us, or the [`deadline`](Self::deadline) passed unheard. Stop then what the lock
    /// protects: it happens well before somebody else can be granted it.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only waits.
    pub async fn lost(&self) {
        tokio::select! {
            () = self.lost.cancelled() => {}
            () = self.session.until_in_doubt() => {}
        }
    }

    /// Runs a script in Redis, only if the lock is held at that moment: the comparison and the
    /// script are one. The keys are taken as they are; on a cluster they must carry the fleet's hash
    /// tag, `{name}`.
    ///
    /// ```
    /// # let server = artel_testkit::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let fleet = artel::Fleet::builder().redis(url).start().await?;
    /// let append = artel::GuardedScript::new("return redis.call('RPUSH', KEYS[1], ARGV[1])")?;
    /// let guard = fleet.lock("list")?.acquire().await?;
    /// let length = guard.run(&append, &["artel:{artel}:data:list"], &["one"]).await?;
    /// assert_eq!(length, 1);
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if it is not held: then nothing was written. It is sent once: after
    /// [`Error::NoAnswer`] or [`Error::Unreachable`] it may have been done, or may still be.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, the script may have run or not.
    pub async fn run<K: AsRef<str>, A: AsRef<[u8]>>(
        &self,
        script: &GuardedScript,
        keys: &[K],
        args: &[A],
    ) -> Result<serde_json::Value, Error> {
        let redis = &self.lock.smith.redis;
        let names = &redis.store.keys;
        let mut all = vec![names.members(), names.lock(&self.lock.name)];
        all.extend(keys.iter().map(|key| key.as_ref().to_owned()));
        let mut call = script.script.call(&all).arg(self.session.id.as_str()).arg(self.token.get());
        for arg in args {
            call.push_arg(arg.as_ref());
        }
        match redis.store.work.call(&call, self.session.call_timeout()).await {
            Ok(value) => Ok(json(&value)),
            Err(StoreError::Server { code, .. }) if code == "LOCKLOST" => {
                self.lost.cancel();
                Err(Error::LockLost { name: self.lock.name.to_string() })
            }
            Err(error) => Err(redis.store.explain(error)),
        }
    }

    /// Releases it, and returns when Redis has confirmed it; the next who waits is told at once.
    ///
    /// # Errors
    ///
    /// [`Error::LockLost`] if it was lost before; or if Redis does not answer: then it is free as
    /// soon as a heartbeat gets through, or this session is judged dead.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropped before it returns, it goes on in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let store = &self.lock.smith.redis.store;
        let released = give_up(&self.lock, &store.work, &self.session, Some(self.token)).await;
        self.session.rights.forget(&self.lock.name);
        self.place.take();
        match released {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::LockLost { name: self.lock.name.to_string() }),
            Err(error) => Err(store.explain(error)),
        }
    }
}

impl Drop for LockGuard {
    /// Whoever waits in this process comes next only after the release: an attempt that overtook it
    /// would find the lock held.
    fn drop(&mut self) {
        let Some(place) = self.place.take() else { return };
        let (lock, session, token) = (self.lock.clone(), self.session.clone(), self.token);
        self.lock.smith.ear.spawn(async move {
            let _ = give_up(&lock, &lock.smith.ear.link, &session, Some(token)).await;
            session.rights.forget(&lock.name);
            drop(place);
        });
    }
}

impl std::fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.lock.name)
            .field("token", &self.token)
            .finish()
    }
}
