//! [`LockGuard`]: a lock that is held.
//!
//! **Invariant:** it is released once, on request or when it is dropped, under its own token. No other
//! task of this process comes next before that.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use super::Lock;
use super::context::Line;
use super::guarded_script::GuardedScript;
use crate::Error;
use crate::membership::{AskError, Patience, Session};
use crate::store::{Link, StoreError};
use crate::tenure::release_lock;
use crate::term::Token;

/// Gives up a lock, or only the place in its queue. Returns whether it was ours until then, as far as
/// can be known. Without an answer the heartbeat gives it back.
pub(super) async fn give_up(
    lock: &Lock,
    link: &Link,
    session: &Session,
    token: Option<Token>,
) -> Result<bool, AskError> {
    let store = &lock.context.fleet.store;
    let call = release_lock(store, &session.id, &session.id, &lock.name, token);
    match session.ask(link, Patience::ONCE, call.clone()).await {
        // If it is no longer ours, the unanswered copy may have given it up.
        Err(AskError::Failed(error)) if error.is_passing() => {
            match session.ask(link, Patience::SHORT, call).await {
                Ok(_) | Err(AskError::Gone) => Ok(true),
                Err(AskError::Over) => Ok(false),
                Err(error) => Err(error),
            }
        }
        Err(AskError::Over | AskError::Gone) => Ok(false),
        answer => answer,
    }
}

/// A lock that is held, until this is released or dropped, or until it is lost.
///
/// It has no renewal of its own: it is held for as long as this process's session lives. Dropping it
/// releases it in the background; [`release`](Self::release) returns when that is done.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let member = fleet.join().start().await?;
/// let guard = member.lock("nightly")?.acquire().await?;
/// tokio::select! {
///     () = guard.lost() => println!("stop: somebody else may hold it now"),
///     () = async { println!("work") } => {}
/// }
/// guard.release().await?;
/// # member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it releases the lock"]
pub struct LockGuard {
    lock: Lock,
    line: Arc<Line>,
    session: Arc<Session>,
    token: Token,
    lost: CancellationToken,
    place: Option<OwnedMutexGuard<()>>,
}

impl LockGuard {
    pub(super) fn new(
        lock: Lock,
        line: Arc<Line>,
        session: Arc<Session>,
        token: Token,
        place: Option<OwnedMutexGuard<()>>,
    ) -> LockGuard {
        let lost = session.over.child_token();
        session.tenures.locks.hold(&lock.name, token, &lost);
        LockGuard { lock, line, session, token, lost, place }
    }

    /// The fencing token: higher than that of every holder before, also after Redis lost its data
    /// (unless the clock of the new server is behind that of the old one). Give it to the resource that
    /// the lock protects, and let the resource refuse a token that is lower than one it has seen.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Until when the lock can be relied on without another answer from Redis: two thirds of a lease
    /// after the last answered call was sent. Usually it is extended long before. It is earlier, two
    /// thirds of the fleet's grace, while the connection that shows our presence is broken and Redis is
    /// not known to be down. After it, another member may soon have the lock.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.lock.context.time_left(&self.session)
    }

    /// Can the lock be relied on at this instant?
    pub fn is_held(&self) -> bool {
        !self.lost.is_cancelled() && !self.lock.context.time_left(&self.session).is_zero()
    }

    /// Waits until the lock can no longer be relied on: the session is over, Redis no longer names us
    /// as its holder, or the [`deadline`](Self::deadline) passed without an answer. Then stop the work
    /// that the lock protects. Usually this is before another member can be granted the lock. It is too
    /// late for a process that was frozen, or for a connection that has ended for Redis but not for us.
    /// Only the [`token`](Self::token), or [`run`](Self::run), protects against that.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only waits.
    pub async fn lost(&self) {
        tokio::select! {
            () = self.lost.cancelled() => {}
            () = self.lock.context.until_in_doubt(&self.session) => {}
        }
    }

    /// Runs a script in Redis, only if the lock is held at that moment: the check and the script are
    /// one step. The keys are used as they are; on a cluster they must carry the fleet's hash tag,
    /// `{name}`.
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let member = artel::Fleet::connect(url, "artel").await?.join().start().await?;
    /// let append = artel::GuardedScript::new("return redis.call('RPUSH', KEYS[1], ARGV[1])")?;
    /// let guard = member.lock("list")?.acquire().await?;
    /// let length = guard.run(&append, &["artel:{artel}:data:list"], &["one"]).await?;
    /// assert_eq!(length, 1);
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if it is not held: then nothing was written. The script is sent once: after
    /// [`Error::NoAnswer`] or [`Error::Unreachable`] it may have run, or may still run.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the script may have run or not.
    pub async fn run<K: AsRef<str>, A: AsRef<[u8]>>(
        &self,
        script: &GuardedScript,
        keys: &[K],
        args: &[A],
    ) -> Result<serde_json::Value, Error> {
        let fleet = &self.lock.context.fleet;
        let names = &fleet.store.keys;
        let mut all = vec![names.members(), names.lock(&self.lock.name)];
        all.extend(keys.iter().map(|key| key.as_ref().to_owned()));
        let mut call = script.script.call(&all).arg(self.session.id.as_str()).arg(self.token.get());
        for arg in args {
            call.push_arg(arg.as_ref());
        }
        match fleet.store.work.call(&call, self.session.trust.call_timeout()).await {
            Ok(reply) => Ok(reply.to_json()),
            Err(StoreError::Server { code, .. }) if code == "LOCKLOST" => {
                self.lost.cancel();
                Err(Error::NotHeld { what: "lock", name: self.lock.name.to_string() })
            }
            Err(error) => Err(fleet.store.explain(error)),
        }
    }

    /// Releases the lock, and returns when Redis has confirmed it. The next waiter is notified at once.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if it was lost before. Another error if Redis does not answer: then the lock
    /// is free as soon as a heartbeat gets through, or this session is judged dead.
    ///
    /// # Cancel safety
    ///
    /// Safe: if it is dropped before it returns, it goes on in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let store = &self.lock.context.fleet.store;
        let released = give_up(&self.lock, &store.work, &self.session, Some(self.token)).await;
        self.session.tenures.locks.forget(&self.lock.name);
        self.place.take();
        match released {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::NotHeld { what: "lock", name: self.lock.name.to_string() }),
            Err(error) => Err(store.explain(error.into_store())),
        }
    }
}

impl Drop for LockGuard {
    /// The next task of this process comes only after the release: an attempt that overtook it would
    /// find the lock held.
    fn drop(&mut self) {
        let Some(place) = self.place.take() else { return };
        let (lock, session, token) = (self.lock.clone(), self.session.clone(), self.token);
        let leaving = self.line.leave();
        self.lock.context.session_link.spawn(async move {
            let _ = give_up(&lock, &lock.context.session_link.link, &session, Some(token)).await;
            session.tenures.locks.forget(&lock.name);
            drop((place, leaving));
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
