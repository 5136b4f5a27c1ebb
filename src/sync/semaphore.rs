//! [`Semaphore`]: at most a fixed number of holders at a time.
//!
//! **Invariant:** living sessions never hold more permits than its number. A permit ends with its
//! holder's session. A permit that was given up is not held by anybody, however late a copy arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::context::decided_within;
use super::holds::{Open, What};
use super::{RETRY, SyncContext, check_count, check_name};
use crate::Error;
use crate::membership::{AskError, Patience, Session};
use crate::store::{Link, Script, Signal, StoreError};
use crate::watch::{EventWatch, jittered};

static TAKE: Script = Script::new("permit_take", include_str!("permit_take.lua")).lasting(&["ok"]);
static BACK: Script = Script::new("permit_back", include_str!("permit_back.lua"));

/// A waiter asks at least this often: a dead holder notifies nobody.
const POLL: Duration = Duration::from_millis(500);

/// A semaphore of a fleet, by its name. Made by [`Member::semaphore`](crate::Member::semaphore).
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let member = artel::Fleet::connect(url, "shop").await?.join().start().await?;
/// let exports = member.semaphore("exports", 2)?;
/// let (one, two) = (exports.acquire().await?, exports.acquire().await?);
/// assert!(exports.try_acquire().await?.is_none());
/// one.release().await?;
/// let three = exports.acquire().await?;
/// # drop((two, three));
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Semaphore {
    context: Arc<SyncContext>,
    watch: Arc<EventWatch>,
    signal: Arc<Signal>,
    permits: u32,
}

impl Semaphore {
    pub(crate) fn new(
        context: &Arc<SyncContext>,
        name: &str,
        permits: u32,
    ) -> Result<Semaphore, Error> {
        check_name("semaphore", name)?;
        check_count("permits", permits)?;
        let signal = context.fleet.store.keys.semaphore(name);
        let watch = context.fleet.watch(&signal)?;
        Ok(Semaphore { context: context.clone(), watch, signal: signal.into(), permits })
    }

    /// Waits for a permit. While Redis is down, it keeps waiting.
    ///
    /// # Errors
    ///
    /// If this member stops, Redis refuses, or others hold permits of a semaphore of this name with
    /// another number of them.
    ///
    /// # Cancel safety
    ///
    /// Safe: a permit that was taken meanwhile is given back.
    pub async fn acquire(&self) -> Result<Permit, Error> {
        self.contend(&AtomicBool::new(false)).await
    }

    /// As [`acquire`](Self::acquire), and notes whether a holder was overdue at the last answer.
    async fn contend(&self, a_holder_is_overdue: &AtomicBool) -> Result<Permit, Error> {
        loop {
            let mut attempt = self.attempt(self.context.session().await?);
            match attempt.take().await? {
                Taken::Ours => return Ok(attempt.won()),
                Taken::Full { generation, overdue } => {
                    a_holder_is_overdue.store(overdue, Ordering::Release);
                    let poll = jittered(POLL);
                    tokio::select! {
                        waited = self.watch.wait_past(generation, POLL) => {
                            waited.map_err(|error| self.context.fleet.explain(&self.signal.key, error))?;
                        }
                        () = tokio::time::sleep(poll) => {}
                    }
                }
                Taken::Elsewhere | Taken::Again(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    /// Takes a permit if one is free at this moment. If a holder is overdue and may be dead, this waits
    /// until that is decided: a lease and a little.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and if Redis does not answer.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Permit>, Error> {
        let session = self.context.session_now()?;
        self.context.line(&self.signal.key).all_left().await;
        let began = Instant::now();
        loop {
            let mut attempt = self.attempt(session.clone());
            match attempt.take().await? {
                Taken::Ours => return Ok(Some(attempt.won())),
                // A holder is overdue: it is dead, unless it refreshes its session. The decision takes
                // a lease.
                Taken::Full { overdue: true, .. } if began.elapsed() < decided_within(&session) => {
                    tokio::time::sleep(RETRY).await;
                }
                Taken::Elsewhere => {}
                Taken::Full { .. } => return Ok(None),
                Taken::Again(error) => {
                    return Err(self.context.fleet.explain(&self.signal.key, error));
                }
            }
        }
    }

    /// Waits for a permit, but not longer than this. Then it returns `None`.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Option<Permit>, Error> {
        if timeout.is_zero() {
            return self.try_acquire().await;
        }
        let overdue = AtomicBool::new(false);
        match tokio::time::timeout(timeout, self.contend(&overdue)).await {
            Ok(permit) => permit.map(Some),
            Err(_) if overdue.into_inner() => self.try_acquire().await,
            Err(_) => Ok(None),
        }
    }

    fn attempt(&self, session: Arc<Session>) -> Hold {
        let open = self.context.holds.open(What::Permit, &self.signal);
        Hold { semaphore: self.clone(), session, n: open.n, open: Some(open) }
    }
}

impl std::fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Semaphore").field(&self.signal.key).field(&self.permits).finish()
    }
}

enum Taken {
    Ours,
    /// No permit is free: wait for a later generation. `overdue`: one of the holders is overdue.
    Full {
        generation: u64,
        overdue: bool,
    },
    /// Another server took over meanwhile, which may not know of it.
    Elsewhere,
    /// Not answered, or the answer to a late copy: under another number it may work.
    Again(StoreError),
}

/// An attempt, or the permit it got. It is given back when this is dropped.
struct Hold {
    semaphore: Semaphore,
    session: Arc<Session>,
    n: u64,
    /// A permit may be held under this number.
    open: Option<Open>,
}

impl Hold {
    async fn take(&mut self) -> Result<Taken, Error> {
        let (fleet, key) = (&self.semaphore.context.fleet, &self.semaphore.signal.key);
        let explain = |error| fleet.explain(key, error);
        let call = TAKE
            .call(&[fleet.store.keys.members(), key.to_string()])
            .arg(self.session.id.as_str())
            .arg(self.n)
            .arg(self.semaphore.permits);
        let reply = match self.session.ask(&fleet.store.work, Patience::ONCE, call).await {
            Ok(reply) => reply,
            Err(AskError::Failed(error)) if !error.is_passing() => return Err(explain(error)),
            Err(error) => return Ok(Taken::Again(error.into_store())),
        };
        if reply.tag() == "ok" {
            return Ok(match self.is_missing() {
                false => Taken::Ours,
                true => Taken::Elsewhere,
            });
        }
        self.open = None;
        match reply.tag() {
            "full" => Ok(Taken::Full {
                generation: reply.number(0).map_err(explain)? as u64,
                overdue: reply.number(1).map_err(explain)? > 0,
            }),
            "late" => Ok(Taken::Again(StoreError::odd("a late copy was answered"))),
            "permits" => Err(Error::Conflict {
                fleet: fleet.store.fleet().to_owned(),
                field: format!("permits of {key}"),
                theirs: reply.text(0).map_err(explain)?,
                yours: self.semaphore.permits.to_string(),
            }),
            _ => Err(explain(reply.unexpected())),
        }
    }

    /// Does another server not have it?
    fn is_missing(&self) -> bool {
        self.open.as_ref().is_none_or(|open| open.missing.is_cancelled())
    }

    fn won(self) -> Permit {
        Permit { hold: self }
    }

    /// Gives the permit back. Returns whether it was ours until then, as far as can be known.
    async fn give_back(&self, link: &Link, patience: Patience) -> Result<bool, AskError> {
        let [key, channel] = self.semaphore.signal.pair();
        let keys = [self.semaphore.context.fleet.store.keys.members(), key, channel];
        let call = BACK.call(&keys).arg(self.session.id.as_str()).arg(self.n);
        let mut was_asked = false;
        loop {
            let patience = if was_asked { patience } else { Patience::ONCE };
            match self.session.ask(link, patience, call.clone()).await {
                // `already` means that it is no longer ours. An unanswered copy may have given it back.
                Ok(reply) => {
                    return Ok(reply.tag() == "ok" || (was_asked && reply.tag() == "already"));
                }
                Err(AskError::Failed(error)) if error.is_passing() && !was_asked => {
                    was_asked = true;
                }
                Err(AskError::Over | AskError::Gone) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.open.take().is_none() || self.session.over.is_cancelled() {
            return;
        }
        let (semaphore, session, n) = (self.semaphore.clone(), self.session.clone(), self.n);
        let link = self.semaphore.context.session_link.link.clone();
        let leaving = self.semaphore.context.line(&self.semaphore.signal.key).leave();
        self.semaphore.context.session_link.spawn(async move {
            let hold = Hold { semaphore, session, n, open: None };
            // Repeated until it is answered or the session is over: nothing else would ever give it
            // back.
            let _ = hold.give_back(&link, Patience::UNTIL_OVER).await;
            drop(leaving);
        });
    }
}

/// A permit that is held, until this is released or dropped, or the session ends.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let member = fleet.join().start().await?;
/// let downloads = member.semaphore("downloads", 3)?;
/// let permit = downloads.acquire().await?;
/// assert!(permit.is_held());
/// permit.release().await?;
/// # member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it gives the permit back"]
pub struct Permit {
    hold: Hold,
}

impl Permit {
    /// Can the permit be relied on at this instant?
    pub fn is_held(&self) -> bool {
        let Hold { semaphore, session, .. } = &self.hold;
        !self.hold.is_missing() && !semaphore.context.time_left(session).is_zero()
    }

    /// Waits until the permit can no longer be relied on, as
    /// [`LockGuard::lost`](crate::LockGuard::lost) does.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only waits.
    pub async fn lost(&self) {
        let Hold { semaphore, session, open, .. } = &self.hold;
        let Some(open) = open else { return };
        tokio::select! {
            () = semaphore.context.until_in_doubt(session) => {}
            () = open.missing.cancelled() => {}
        }
    }

    /// Gives the permit back, and returns when Redis has confirmed it.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if it was lost before. Another error if Redis does not answer: then it is
    /// given back in the background, as soon as Redis answers.
    ///
    /// # Cancel safety
    ///
    /// Safe: if it is dropped before it returns, it goes on in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let fleet = self.hold.semaphore.context.fleet.clone();
        let released = self.hold.give_back(&fleet.store.work, Patience::SHORT).await;
        if released.is_ok() {
            self.hold.open = None;
        }
        match released {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(Error::NotHeld { what: "permit", name: self.hold.semaphore.signal.key.clone() })
            }
            Err(error) => Err(fleet.store.explain(error.into_store())),
        }
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Permit").field("of", &self.hold.semaphore.signal.key).finish()
    }
}
