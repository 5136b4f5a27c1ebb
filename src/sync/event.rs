//! [`DistributedEvent`]: a named flag on Redis.
//!
//! **Invariant:** every `set` begins a new generation, unless the event is set already. Generations
//! only grow, and survive a `clear`. A late copy of a `set` or a `clear` changes nothing: each names
//! the state it was meant for.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::{RETRY, check_name};
use crate::Error;
use crate::fleet::Fleet;
use crate::store::{Call, Reply, Script, Signal, StoreError, nonce};
use crate::watch::{EventWatch, Read, read_call};

static SET: Script =
    Script::new("event_set", include_str!("event_set.lua")).lasting(&["ok", "already", "moved"]);
static CLEAR: Script =
    Script::new("event_clear", include_str!("event_clear.lua")).lasting(&["ok", "moved"]);
static TAKE: Script = Script::new("event_take", include_str!("event_take.lua")).lasting(&["taken"]);

/// The longest time between two reads while waiting.
pub(super) const REREAD_EVERY: Duration = Duration::from_secs(5);
const REREAD_EVERY_MIN: Duration = Duration::from_millis(10);
const REREAD_EVERY_MAX: Duration = Duration::from_secs(3600);
/// How often a call is sent if it finds another state again and again.
const MEANT_MAX: u32 = 8;
/// The longest time to live: Redis counts milliseconds.
const TTL_MAX: Duration = Duration::from_secs(200 * 365 * 86_400);

/// The state of an event at one moment.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// use std::time::Duration;
///
/// let event = fleet.event("new-prices")?;
/// event.set_for(Duration::from_secs(60)).await?;
/// let state = event.state().await?;
/// assert!(state.is_set && state.clears_in.is_some());
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct EventState {
    /// Is it set?
    pub is_set: bool,
    /// Grows with every `set` of an event that was not set; 0 if it was never set.
    pub generation: u64,
    /// After how long it clears itself, if it does.
    pub clears_in: Option<Duration>,
}

/// A flag that any process can set, clear and wait for, by its name.
///
/// It works like an event between threads: [`wait`](Self::wait) returns when the flag is set, at once
/// if it is set already, and also if it is set and cleared again during the wait. Setting an event that
/// is set changes nothing. A wait begins when Redis first answers it. A waiter that must not miss an
/// earlier set goes on from a generation it knows, with [`wait_past`](Self::wait_past).
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let fleet = artel::Fleet::open(url, "shop")?;
/// let new_prices = fleet.event("new-prices")?;
/// assert!(!new_prices.is_set().await?);
///
/// // Anywhere: in another task, process, machine or language.
/// let setter = new_prices.clone();
/// tokio::spawn(async move { setter.set().await });
///
/// assert!(new_prices.wait().await?);
/// new_prices.clear().await?;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # In Redis, and from other languages
///
/// The event `new-prices` of the fleet `shop` is the hash `artel:{shop}:event:new-prices`. Its fields
/// are `flag` (`1`: set), `gen` (the generation, a number) and `until` (Redis time in milliseconds when
/// it counts as cleared, `0` for never). The sharded channel `artel:{shop}:@0:event:new-prices`, which
/// also names the database, carries a message for every `set`: the new generation. To set the event
/// from anywhere, in one transaction:
///
/// ```text
/// MULTI
/// HINCRBY  artel:{shop}:event:new-prices gen 1
/// HSET     artel:{shop}:event:new-prices flag 1 until 0
/// SPUBLISH artel:{shop}:@0:event:new-prices set
/// EXEC
/// ```
///
/// (If the event is set already, this begins a new generation, which does no harm.) To clear the
/// event: `HSET artel:{shop}:event:new-prices flag 0`. To wait for it: `SSUBSCRIBE`, wait for the
/// confirmation, and read `flag`, `gen` and `until`. Read them again after every message, every few
/// seconds and after every reconnect. The event was set if `gen` has grown, or if `flag` is `1` and
/// `until` is `0` or later than Redis's `TIME`.
#[derive(Clone)]
pub struct DistributedEvent {
    reread_every: Duration,
    /// Everything else, in one place: each of ten thousand waiters has a clone.
    shared: Arc<Shared>,
}

/// What all clones of one event share.
struct Shared {
    fleet: Fleet,
    signal: Signal,
    /// The last state seen. A `set` or `clear` that names the current state needs only one call.
    known: Mutex<Known>,
    watch: OnceLock<Arc<EventWatch>>,
}

impl DistributedEvent {
    pub(super) fn new(fleet: &Fleet, name: &str) -> Result<DistributedEvent, Error> {
        check_name("event", name)?;
        let shared = Shared {
            fleet: fleet.clone(),
            signal: fleet.store.keys.event(name),
            known: Mutex::default(),
            watch: OnceLock::new(),
        };
        Ok(DistributedEvent { reread_every: REREAD_EVERY, shared: Arc::new(shared) })
    }

    /// Sets how often a wait reads the event again (default 5 s). This bounds how late a wait
    /// returns if it may not subscribe, or if its message was lost together with its connection.
    ///
    /// # Errors
    ///
    /// If it is not between 10 ms and an hour.
    pub fn reread_every(mut self, timeout: Duration) -> Result<DistributedEvent, Error> {
        if !(REREAD_EVERY_MIN..=REREAD_EVERY_MAX).contains(&timeout) {
            let problem = format!(
                "must be between {REREAD_EVERY_MIN:?} and {REREAD_EVERY_MAX:?}, not {timeout:?}"
            );
            return Err(Error::Config { field: "reread_every", problem });
        }
        self.reread_every = timeout;
        Ok(self)
    }

    /// Is it set at this moment?
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses, or the key holds something else.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn is_set(&self) -> Result<bool, Error> {
        Ok(self.state().await?.is_set)
    }

    /// Reads its state.
    ///
    /// # Errors
    ///
    /// As [`is_set`](Self::is_set).
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn state(&self) -> Result<EventState, Error> {
        self.shared.fleet.compare().await?;
        let key = &self.shared.signal.key;
        let read = self.shared.fleet.store.try_repeat(&read_call(key)).await;
        let read = read.map_err(|error| self.shared.fleet.explain(key, error))?;
        let known = Known { is_set: read.set, generation: read.generation };
        *self.shared.known.lock().expect("never poisoned") = known;
        Ok(DistributedEvent::state_of(&read))
    }

    pub(super) fn state_of(read: &Read) -> EventState {
        EventState { is_set: read.set, generation: read.generation, clears_in: read.left }
    }

    /// Sets it until it is cleared, and wakes all waiters. Setting it twice has the same effect as
    /// setting it once.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses, or the key holds something else. After
    /// [`Error::NoAnswer`] it may be set, now or later.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the event may have been set or not.
    pub async fn set(&self) -> Result<(), Error> {
        self.set_to(0).await
    }

    /// Sets it for some time. Then it counts as cleared, unless another call sets it for longer.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set), and if the time is shorter than 1 ms or longer than 200 years.
    ///
    /// # Cancel safety
    ///
    /// As [`set`](Self::set).
    pub async fn set_for(&self, ttl: Duration) -> Result<(), Error> {
        if ttl < Duration::from_millis(1) || ttl > TTL_MAX {
            let problem = format!("must be between 1ms and 200 years, not {ttl:?}");
            return Err(Error::Config { field: "ttl", problem });
        }
        self.set_to(ttl.as_millis() as u64).await
    }

    /// Clears it, if it is set. If it is set again meanwhile, it stays set.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the event may have been cleared or not.
    pub async fn clear(&self) -> Result<(), Error> {
        self.shared.fleet.compare().await?;
        clear(&self.shared.fleet, &self.shared.signal.key, &self.shared.known).await
    }

    /// Waits until it is set, and returns true. While Redis is down, it keeps waiting.
    ///
    /// # Errors
    ///
    /// If Redis refuses, or the key holds something else.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn wait(&self) -> Result<bool, Error> {
        self.shared.fleet.compare().await?;
        let waited = self.watch()?.wait(self.reread_every).await;
        waited.map(|()| true).map_err(|error| self.explain(error))
    }

    /// Waits until it is set, but not longer than this. Then it returns false, also if Redis was down
    /// all the time. With a time of 0 it reads once.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn wait_timeout(&self, timeout: Duration) -> Result<bool, Error> {
        if timeout.is_zero() {
            return self.is_set().await;
        }
        tokio::time::timeout(timeout, self.wait()).await.unwrap_or(Ok(false))
    }

    /// Waits until it is set, and clears it. Of all takers that wait, one goes on for each time it is
    /// set. While Redis is down, it keeps waiting.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    ///
    /// # Cancel safety
    ///
    /// Not safe: if it is dropped before it returns, the event may have been cleared for nobody.
    pub async fn take(&self) -> Result<(), Error> {
        self.shared.fleet.compare().await?;
        let by = nonce();
        loop {
            match self.state().await {
                Ok(state)
                    if state.is_set && self.take_generation(state.generation, &by).await? =>
                {
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) if error.is_unreachable() => tokio::time::sleep(RETRY).await,
                Err(error) => return Err(error),
            }
            self.wait().await?;
        }
    }

    /// Takes this generation. Returns false if another taker has it. It is repeated until it is
    /// answered: an unanswered copy may have taken it for us.
    async fn take_generation(&self, generation: u64, by: &str) -> Result<bool, Error> {
        let call = TAKE.call(std::slice::from_ref(&self.shared.signal.key)).arg(generation).arg(by);
        loop {
            match self.shared.fleet.store.try_repeat(&call).await {
                Ok(reply) => return Ok(reply.tag() == "taken"),
                Err(error) if error.is_passing() => {
                    tracing::debug!(%error, "taking an event was not answered");
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => return Err(self.explain(error)),
            }
        }
    }

    /// Waits for a generation after this one, and returns it. A waiter that goes on from the last
    /// generation it saw misses nothing between two waits. Several sets in a row may be seen as the
    /// last of them. Setting an event that is set does not begin a new generation: to signal again,
    /// clear it first.
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let fleet = artel::Fleet::open(url, "shop")?;
    /// let reload = fleet.event("reload")?;
    /// let seen = reload.state().await?.generation;
    /// reload.set().await?;
    /// reload.clear().await?; // nobody was waiting, and yet:
    /// assert!(reload.wait_past(seen).await? > seen);
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn wait_past(&self, generation: u64) -> Result<u64, Error> {
        self.shared.fleet.compare().await?;
        let waited = self.watch()?.wait_past(generation, self.reread_every).await;
        waited.map_err(|error| self.explain(error))
    }

    fn explain(&self, error: StoreError) -> Error {
        self.shared.fleet.explain(&self.shared.signal.key, error)
    }

    fn watch(&self) -> Result<&Arc<EventWatch>, Error> {
        if self.shared.watch.get().is_none() {
            let _ = self.shared.watch.set(self.shared.fleet.watch(&self.shared.signal)?);
        }
        self.shared.watch.get().ok_or(Error::Stopping)
    }

    async fn set_to(&self, ttl_ms: u64) -> Result<(), Error> {
        self.shared.fleet.compare().await?;
        set(&self.shared.fleet, &self.shared.signal, ttl_ms, &self.shared.known).await.map(|_| ())
    }
}

impl std::fmt::Debug for DistributedEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DistributedEvent").field(&self.shared.signal.key).finish()
    }
}

/// Sets the flag under this key for some time. Returns its generation.
pub(crate) async fn set_flag(fleet: &Fleet, signal: &Signal, ttl: Duration) -> Result<u64, Error> {
    set(fleet, signal, ttl.as_millis() as u64, &Mutex::default())
        .await
        .map(|state| state.generation)
}

/// Clears this generation of the flag under this key, if it is still the current one.
pub(crate) async fn clear_flag(fleet: &Fleet, key: &str, generation: u64) -> Result<(), Error> {
    let value = fleet.store.try_repeat(&CLEAR.call(&[key.to_owned()]).arg(generation)).await;
    value.map(|_| ()).map_err(|error| fleet.explain(key, error))
}

async fn clear(fleet: &Fleet, key: &str, known: &Mutex<Known>) -> Result<(), Error> {
    let keys = [key.to_owned()];
    meant(fleet, key, known, |state| CLEAR.call(&keys).arg(state.generation)).await.map(|_| ())
}

/// Sets the flag under this key. Returns its state.
async fn set(
    fleet: &Fleet,
    signal: &Signal,
    ttl_ms: u64,
    known: &Mutex<Known>,
) -> Result<Known, Error> {
    let (keys, by) = (signal.pair(), nonce());
    let call = |state: Known| SET.call(&keys).arg(state.text()).arg(&by).arg(ttl_ms);
    meant(fleet, &signal.key, known, call).await
}

/// What a handle knows about its event, for the calls that name the state they are meant for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Known {
    is_set: bool,
    generation: u64,
}

impl Known {
    fn text(self) -> String {
        format!("{}{}", if self.is_set { 's' } else { 'c' }, self.generation)
    }

    fn parse(text: &str) -> Option<Known> {
        let is_set = text.starts_with('s');
        let generation = text.get(1..)?.parse().ok()?;
        Some(Known { is_set, generation })
    }
}

/// Sends a call that is meant for one state. If the state we know is old, the call is sent again for
/// the current state. If the event was set and cleared since we learned that state, another caller did
/// so after we began, and our call counts as made before that.
async fn meant(
    fleet: &Fleet,
    key: &str,
    known: &Mutex<Known>,
    call: impl Fn(Known) -> Call,
) -> Result<Known, Error> {
    let mut state = *known.lock().expect("never poisoned");
    for attempt in 0..MEANT_MAX {
        let call = call(state).reading(|reply: Reply| {
            let present = Known::parse(&reply.text(0)?);
            let present = present.ok_or_else(|| StoreError::odd("an unreadable state"))?;
            Ok((reply.tag().to_owned(), present))
        });
        let reply = fleet.store.try_repeat(&call).await;
        let (tag, present) = reply.map_err(|error| fleet.explain(key, error))?;
        let passed = attempt > 0 && present.generation > state.generation;
        state = present;
        *known.lock().expect("never poisoned") = state;
        if tag == "spent" {
            return Err(Error::Exhausted { key: key.to_owned() });
        }
        if tag != "moved" || passed {
            return Ok(state);
        }
    }
    let reason = format!(
        "the state of {key} changed in each of {MEANT_MAX} tries, so nothing was done: try again"
    );
    Err(Error::Refused { reason })
}
