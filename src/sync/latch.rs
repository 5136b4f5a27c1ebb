//! [`CountDownLatch`]: opens when it was counted down to zero.
//!
//! **Invariant:** each call counts once in the round it was made for, however often it is repeated and
//! however late a copy arrives. The latch opens exactly when the count reaches zero.

use std::sync::Arc;
use std::time::Duration;

use super::event::REREAD_EVERY;
use super::{check_count, check_name};
use crate::Error;
use crate::fleet::Fleet;
use crate::store::{Reply, Script, Signal, nonce};
use crate::watch::EventWatch;

static SET: Script = Script::new("latch_set", include_str!("latch_set.lua")).lasting(&["ok"]);
static DOWN: Script = Script::new("latch_down", include_str!("latch_down.lua")).lasting(&["ok"]);

/// A latch of a fleet, by its name: some wait, others count it down.
///
/// It is closed until its first round is counted down to zero. Then it stays open until the next
/// [`start`](Self::start) closes it.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let fleet = artel::Fleet::connect(url, "shop").await?;
/// let imported = fleet.latch("imported", 2)?;
/// imported.start().await?;
/// for _ in 0..2 {
///     let part = imported.clone();
///     tokio::spawn(async move { part.count_down().await });
/// }
/// imported.wait().await?;
/// assert_eq!(imported.count().await?, 0);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CountDownLatch {
    fleet: Fleet,
    /// How many times it must be counted down in a round.
    count: u32,
    signal: Arc<Signal>,
    watch: Arc<EventWatch>,
}

impl CountDownLatch {
    pub(super) fn new(fleet: &Fleet, name: &str, count: u32) -> Result<CountDownLatch, Error> {
        check_name("latch", name)?;
        check_count("count", count)?;
        let signal = fleet.store.keys.latch(name);
        let watch = fleet.watch(&signal)?;
        Ok(CountDownLatch { fleet: fleet.clone(), count, signal: signal.into(), watch })
    }

    /// Begins a round: the latch opens when it is counted down to zero. If a round is under way,
    /// nothing changes and the result is false, so any number of processes may call it.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses, or the key holds something else.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the round may have begun or not.
    pub async fn start(&self) -> Result<bool, Error> {
        let count = self.count;
        self.fleet.compare().await?;
        let by = nonce();
        let (mut round, keys) = (String::new(), [self.signal.key.clone()]);
        loop {
            let call = SET.call(&keys).arg(count).arg(&by).arg(&round);
            let call = call.reading(|reply: Reply| Ok((reply.text(0)?, reply.tag().to_owned())));
            let reply = self.fleet.store.try_repeat(&call).await;
            let (present, tag) =
                reply.map_err(|error| self.fleet.explain(&self.signal.key, error))?;
            self.check_spent(&tag)?;
            // The first call only asks for the round. If the round changes after that, another caller
            // began one.
            if tag != "moved" || !round.is_empty() {
                return Ok(tag == "ok");
            }
            round = present;
        }
    }

    /// Counts down by one, and returns what is left. At zero, or without a round, nothing happens.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses, or the key holds something else.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, it may have counted or not, but never twice.
    pub async fn count_down(&self) -> Result<u32, Error> {
        self.ask(Some(&nonce())).await
    }

    /// How many counts are left.
    ///
    /// # Errors
    ///
    /// As [`count_down`](Self::count_down).
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn count(&self) -> Result<u32, Error> {
        self.ask(None).await
    }

    /// The error for the answer `spent`: no larger number can be granted.
    fn check_spent(&self, tag: &str) -> Result<(), Error> {
        match tag {
            "spent" => Err(Error::Exhausted { key: self.signal.key.clone() }),
            _ => Ok(()),
        }
    }

    /// Asks for the round, and counts down in it if there is an id for the call.
    async fn ask(&self, id: Option<&str>) -> Result<u32, Error> {
        self.fleet.compare().await?;
        let mut round = String::new();
        loop {
            let call = DOWN.call(&self.signal.pair()).arg(&round).arg(id.unwrap_or(""));
            let call = call.reading(|reply: Reply| {
                Ok((reply.tag().to_owned(), reply.number(0)? as u32, reply.text(1)?))
            });
            let reply = self.fleet.store.try_repeat(&call).await;
            let (tag, count, present) =
                reply.map_err(|error| self.fleet.explain(&self.signal.key, error))?;
            self.check_spent(&tag)?;
            // The first call only asks for the round: no round has an empty name.
            if tag != "moved" || id.is_none() || !round.is_empty() {
                return Ok(count);
            }
            round = present;
        }
    }

    /// Waits until it is open. It returns at once if it was counted down to zero and no new round has
    /// begun.
    ///
    /// # Errors
    ///
    /// If Redis refuses, or the key holds something else.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn wait(&self) -> Result<(), Error> {
        self.fleet.compare().await?;
        let waited = self.watch.wait(REREAD_EVERY).await;
        waited.map_err(|error| self.fleet.explain(&self.signal.key, error))
    }

    /// Waits until it is open, but not longer than this. Then it returns false.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn wait_timeout(&self, timeout: Duration) -> Result<bool, Error> {
        match tokio::time::timeout(timeout, self.wait()).await {
            Ok(waited) => waited.map(|()| true),
            Err(_) => Ok(false),
        }
    }
}

impl std::fmt::Debug for CountDownLatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CountDownLatch").field(&self.signal.key).finish()
    }
}
