//! [`Fleet`]: a client of a fleet, and the one door to everything else.
//!
//! **Invariant:** everything that is made from one `Fleet`, or from a clone of it, shares one set of connections. A
//! client writes nothing to a fleet that speaks another protocol.
//!
//! What a client can do stands with the room that does it: sending with the queue, events with `sync`, the error store
//! and the status with `outcome`, joining with [`Member`](crate::Member).

mod sender_names;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::Error;
use crate::config::{Config, Durability, check_fleet_name};
use crate::error::Unfit;
use crate::store::{Address, Hints, Opened, Signal, Store, StoreError};
use crate::watch::EventWatch;

pub(crate) use sender_names::{CALLS_MAX, Names, Numbers};

/// A fleet, as a client sees it: send messages, read and put back errors, set and wait for events, look. It needs no
/// membership; [`join`](Self::join) takes part.
///
/// Make one per process and clone it. Use it from one tokio runtime: what it sends is sent by the runtime that
/// connected.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let fleet = artel::Fleet::connect(url, "orders").await?;
/// fleet.send("order 7").await?;
/// assert_eq!(fleet.status().await?.messages.waiting, 1);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Fleet {
    pub(crate) store: Store,
    /// What this process listens to, by key: one for all who wait.
    watches: Arc<Mutex<HashMap<String, Weak<EventWatch>>>>,
    /// The protocol was compared: by joining, or when it was first used.
    compared: Arc<AtomicBool>,
    /// The names under which this process numbers what it sends.
    pub(crate) names: Arc<Names>,
    pub(crate) payload_bytes_max: usize,
    pub(crate) durability: Durability,
}

/// What a client learns of a fleet that it did not join.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let info = fleet.info().await?;
/// assert!(!info.was_joined);
/// assert_eq!(info.backlog_max, 1_000_000);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct FleetInfo {
    /// A member joined it, now or ever. If not, its name may be wrong: what is sent waits until somebody joins.
    pub was_joined: bool,
    /// How many messages may wait in a lane: a larger batch never finds room.
    pub backlog_max: usize,
}

impl Fleet {
    /// Connects, and checks that this Redis can keep the promise and that the fleet speaks this protocol.
    ///
    /// # Errors
    ///
    /// If the address or the name is invalid, Redis cannot be reached, denies access or is unfit, or the fleet runs
    /// with another protocol.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn connect(address: impl Into<Address>, name: &str) -> Result<Fleet, Error> {
        let fleet = Fleet::open(address, name)?;
        fleet.store.check().await?;
        fleet.info().await?;
        fleet.compared.store(true, Ordering::Release);
        Ok(fleet)
    }

    /// Reads address and name; connects with the first call that needs it, and checks less: for programs whose user may
    /// only wait for events, or that must start while Redis is away.
    ///
    /// ```
    /// let fleet = artel::Fleet::open("redis://127.0.0.1", "orders")?;
    /// let event = fleet.event("new-prices")?;
    /// # Ok::<(), artel::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the address or the fleet's name is invalid.
    pub fn open(address: impl Into<Address>, name: &str) -> Result<Fleet, Error> {
        check_fleet_name(name)?;
        let store = Store::open(&address.into(), name)?;
        let Config { payload_bytes_max, durability, .. } = Config::default();
        Ok(Fleet {
            store,
            watches: Arc::default(),
            compared: Arc::default(),
            names: Arc::new(Names::new()),
            payload_bytes_max,
            durability,
        })
    }

    /// For a member with these settings: on these connections, or on others if another member has them.
    pub(crate) fn of_member(&self, config: &Config) -> Result<(Fleet, Hints), Error> {
        let mut fleet = self.clone();
        let hints = match self.store.session_link()?.claim() {
            Some(hints) => hints,
            None => {
                fleet = Fleet { store: self.store.anew(), watches: Arc::default(), ..fleet };
                fleet.store.session_link()?.claim().ok_or(Error::Stopping)?
            }
        };
        // What is sent is bounded as the member says, so it is numbered apart.
        fleet.names = Arc::new(Names::new());
        fleet.payload_bytes_max = config.payload_bytes_max;
        fleet.durability = config.durability;
        Ok((fleet, hints))
    }

    /// The protocol was compared by joining.
    pub(crate) fn is_compared(&self) {
        self.compared.store(true, Ordering::Release);
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.store.fleet()
    }

    /// Was it ever joined, and how much may wait?
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached, refuses or does not answer, or the fleet runs with another protocol.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn info(&self) -> Result<FleetInfo, Error> {
        let Opened { backlog_max, was_joined } = self.store.open_fleet().await?;
        Ok(FleetInfo { was_joined, backlog_max })
    }

    /// Compares the protocol of the fleet with ours, once. While Redis does not answer nothing is known,
    /// and what follows finds that out by itself.
    pub(crate) async fn compare(&self) -> Result<(), Error> {
        if self.compared.load(Ordering::Acquire) {
            return Ok(());
        }
        // Apart: it happens once, and ten thousand who wait would each keep room for it.
        match Box::pin(self.store.try_open_fleet()).await {
            Ok(Ok(_)) => {
                self.compared.store(true, Ordering::Release);
                Ok(())
            }
            Ok(Err(theirs)) => Err(self.store.other_protocol(&theirs)),
            Err(_) => Ok(()),
        }
    }

    /// What this process knows of the event under this key: one for all who ask.
    pub(crate) fn watch(&self, signal: &Signal) -> Result<Arc<EventWatch>, Error> {
        let key = &signal.key;
        let session = self.store.session_link()?;
        let mut watches = self.watches.lock().expect("never poisoned");
        if let Some(watch) = watches.get(key).and_then(Weak::upgrade) {
            return Ok(watch);
        }
        if watches.len().is_power_of_two() {
            watches.retain(|_, watch| watch.strong_count() > 0);
        }
        let watch = EventWatch::new(signal.clone(), &session);
        watches.insert(key.to_owned(), Arc::downgrade(&watch));
        Ok(watch)
    }

    /// What went wrong with a key that is somebody's by name.
    pub(crate) fn explain(&self, key: &str, error: StoreError) -> Error {
        match error {
            StoreError::Server { code, .. } if code == "WRONGTYPE" => Error::Unfit {
                redis: self.store.address().to_owned(),
                why: Unfit::Occupied { key: key.to_owned() },
            },
            error => self.store.explain(error),
        }
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet")
            .field("address", &self.store.address())
            .field("name", &self.store.fleet())
            .finish()
    }
}
