//! [`Barrier`]: a number of parties go on together.
//!
//! **Invariant:** nobody goes through before that number of living sessions have arrived. A party that
//! dies or leaves while it waits does not count. Each arrival counts once.

use std::sync::Arc;
use std::time::Duration;

use super::holds::{Open, What};
use super::{RETRY, SyncContext, check_count, check_name};
use crate::Error;
use crate::membership::{AskError, Patience, Session};
use crate::store::{Reply, Script, Signal};
use crate::watch::EventWatch;

static ARRIVE: Script =
    Script::new("arrive", include_str!("arrive.lua")).lasting(&["through", "waiting"]);
static WITHDRAW: Script = Script::new("withdraw", include_str!("withdraw.lua"));

/// How often to re-check the barrier.
const REREAD_EVERY: Duration = Duration::from_secs(1);

/// A barrier of a fleet, by its name. Made by [`Member::barrier`](crate::Member::barrier).
///
/// It can be used again: when all parties have gone through, it waits for the next ones.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let member = artel::Fleet::connect(url, "shop").await?.join().start().await?;
/// let start = member.barrier("start", 2)?;
/// let (one, two) = tokio::join!(start.wait(), start.wait());
/// one?;
/// two?;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Barrier {
    context: Arc<SyncContext>,
    watch: Arc<EventWatch>,
    signal: Arc<Signal>,
    parties: u32,
}

impl Barrier {
    pub(crate) fn new(
        context: &Arc<SyncContext>,
        name: &str,
        parties: u32,
    ) -> Result<Barrier, Error> {
        check_name("barrier", name)?;
        check_count("parties", parties)?;
        let signal = context.fleet.store.keys.barrier(name);
        let watch = context.fleet.watch(&signal)?;
        Ok(Barrier { context: context.clone(), watch, signal: signal.into(), parties })
    }

    /// Arrives, and waits until all parties have arrived.
    ///
    /// # Errors
    ///
    /// If this member stops, Redis refuses, or others wait at a barrier of this name with another
    /// number of parties.
    ///
    /// # Cancel safety
    ///
    /// Safe: if it is dropped before it returns, the arrival is withdrawn and does not count.
    pub async fn wait(&self) -> Result<(), Error> {
        loop {
            let session = self.context.session().await?;
            let mut arrival = Arrival { barrier: self, session, n: 0, open: None };
            if arrival.go_through().await? {
                return Ok(());
            }
            // The session is over: arrive again under the next one.
            tokio::time::sleep(RETRY).await;
        }
    }
}

impl std::fmt::Debug for Barrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Barrier").field(&self.signal.key).field(&self.parties).finish()
    }
}

/// One arrival. It is withdrawn when this is dropped.
struct Arrival<'a> {
    barrier: &'a Barrier,
    session: Arc<Session>,
    n: u64,
    open: Option<Open>,
}

impl Arrival<'_> {
    /// Arrives and waits. Returns false if the session ended before it went through.
    async fn go_through(&mut self) -> Result<bool, Error> {
        let (barrier, fleet) = (self.barrier, &self.barrier.context.fleet);
        let explain = |error| fleet.explain(&barrier.signal.key, error);
        // One after the other: a number that arrives after a higher one would count as late. And an
        // arrival that is withdrawn must be gone before the next one arrives.
        let line = barrier.context.line(&barrier.signal.key);
        line.all_left().await;
        let turn = line.turn.clone().lock_owned().await;
        let open = barrier.context.holds.open(What::Arrival, &barrier.signal);
        (self.n, self.open) = (open.n, Some(open));
        let mut reply = self.arrive().await?;
        drop(turn);
        loop {
            let since = match reply {
                None => return Ok(false),
                Some(reply) if reply.tag() == "waiting" => reply.number(0).map_err(explain)? as u64,
                // The barrier opened, for us, too, because we were not judged dead before.
                Some(_) => {
                    self.open = None;
                    return Ok(true);
                }
            };
            tokio::select! {
                opened = barrier.watch.wait_past(since, REREAD_EVERY) => drop(opened.map_err(explain)?),
                // A member that was overdue may have refreshed its session.
                () = tokio::time::sleep(REREAD_EVERY) => {}
                () = self.session.over.cancelled() => return Ok(false),
            }
            reply = self.arrive().await?;
        }
    }

    /// Sends the arrival, again and again until it is answered: `waiting`, `through`, or `late`, which
    /// means that it went through earlier. `None` if the session is over.
    async fn arrive(&self) -> Result<Option<Reply>, Error> {
        let (barrier, fleet) = (self.barrier, &self.barrier.context.fleet);
        let explain = |error| fleet.explain(&barrier.signal.key, error);
        let call = ARRIVE
            .call(&[
                fleet.store.keys.members(),
                barrier.signal.key.clone(),
                barrier.signal.channel.clone(),
            ])
            .arg(self.session.id.as_str())
            .arg(self.n)
            .arg(barrier.parties);
        let asked = self.session.ask(&fleet.store.work, Patience::UNTIL_ANSWERED, call).await;
        let reply = match asked {
            Ok(reply) => reply,
            Err(AskError::Failed(error)) => return Err(explain(error)),
            Err(AskError::Over | AskError::Gone) => return Ok(None),
        };
        match reply.tag() {
            "through" | "waiting" | "late" => Ok(Some(reply)),
            "spent" => Err(Error::Exhausted { key: barrier.signal.key.clone() }),
            "parties" => Err(Error::Conflict {
                fleet: fleet.store.fleet().to_owned(),
                field: format!("parties of {}", barrier.signal.key),
                theirs: reply.text(0).map_err(explain)?,
                yours: barrier.parties.to_string(),
            }),
            _ => Err(explain(reply.unexpected())),
        }
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        if self.open.take().is_none() || self.session.over.is_cancelled() {
            return;
        }
        let (context, session) = (&self.barrier.context, self.session.clone());
        let keys = [context.fleet.store.keys.members(), self.barrier.signal.key.clone()];
        let call = WITHDRAW.call(&keys).arg(session.id.as_str()).arg(self.n);
        let leaving = context.line(&self.barrier.signal.key).leave();
        let link = context.session_link.link.clone();
        context.session_link.spawn(async move {
            let _ = session.ask(&link, Patience::UNTIL_OVER, call).await;
            drop(leaving);
        });
    }
}
