//! [`Fleet`]: a client of a fleet, and the one door to everything else.
//!
//! **Invariant:** everything that is made from one `Fleet`, or from a clone of it, shares one set of connections. A
//! client writes nothing to a fleet that speaks another protocol.
//!
//! The methods of a client are in the modules that do the work: sending in `queue`, events in `sync`,
//! the error store and the status in `outcome`, joining with [`Member`](crate::Member).

mod budget;
mod line;
mod sender_names;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::Error;
use crate::config::{Config, Durability, check_fleet_name};
use crate::error::Unfit;
use crate::process;
use crate::store::{Address, Hints, Opened, Signal, Store, StoreError};
use crate::watch::EventWatch;

pub(crate) use budget::Budget;
pub(crate) use line::{Joined, Line, Undelivered, WAIT_MAX, Waited, Waiting};
pub(crate) use sender_names::{CALLS_MAX, Kept, Names, Numbers};

/// A client of a fleet. It sends messages, reads errors and puts them back to work, sets events and
/// waits for them, and reads the status. It needs no membership; [`join`](Self::join) makes this
/// process a member.
///
/// Make one per process and clone it. Use it from one tokio runtime: its calls run on the runtime that
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
    /// The events that this process watches, by key. All waiters share one watch.
    watches: Arc<Mutex<HashMap<String, Weak<EventWatch>>>>,
    /// The protocol was compared: by joining, or at the first use.
    compared: Arc<AtomicBool>,
    /// The names under which this process numbers the messages it sends.
    pub(crate) names: Arc<Names>,
    pub(crate) payload_bytes_max: usize,
    /// Who asks, for the common log, if that is not simply this process.
    who: Option<Arc<str>>,
}

/// What a client can read about a fleet without joining it.
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
    /// At least one member has joined it at some time. If not, its name may be wrong: messages wait
    /// until a member joins.
    pub was_joined: bool,
    /// How many messages may wait in a lane. A larger batch never fits.
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

    /// Reads the address and the name. It connects with the first call that needs it, and checks less
    /// than [`connect`](Self::connect). Use it if the Redis user may only wait for events, or if the
    /// program must start while Redis is down.
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
        let payload_bytes_max = Config::default().payload_bytes_max;
        Ok(Fleet {
            store,
            watches: Arc::default(),
            compared: Arc::default(),
            names: Arc::new(Names::new()),
            payload_bytes_max,
            who: None,
        })
    }

    /// The same client. What its calls tell counts as done only when it lasts as this says: messages that are sent, events,
    /// errors that are put back, and a lock before it is held. Members that join through it do the same.
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use artel::{Durability, Error, Fleet};
    ///
    /// let fleet = Fleet::connect(url, "orders").await?;
    /// // This server has no replicas.
    /// match fleet.durable(Durability::All).await {
    ///     Err(Error::TooFewReplicas { replicas, wanted, .. }) => assert_eq!((replicas, wanted), (0, 1)),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::TooFewReplicas`] if fewer are in sync now, or if Redis cannot be reached.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn durable(&self, durability: Durability) -> Result<Fleet, Error> {
        durability.check()?;
        let store = self.store.lasting(durability);
        store.check_replicas().await?;
        // What others send with less is not sent with this.
        Ok(Fleet { store, names: Arc::new(Names::new()), ..self.clone() })
    }

    /// The same client, which acts for somebody: the common log says so with every order, and with everything that is
    /// put back to work, dropped, cancelled or moved. Without it the log names this process.
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # let fleet = artel::Fleet::connect(url, "orders").await?;
    /// fleet.acting_as("anna").pause(artel::Lane::Low).await?;
    /// let entry = fleet.history().page().await?.pop().expect("an entry");
    /// assert_eq!(entry.text(), "order `pause lane low`, by anna");
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acting_as(&self, who: &str) -> Fleet {
        let who: String = who.chars().filter(|c| !c.is_control()).take(100).collect();
        Fleet { who: Some(who.into()), ..self.clone() }
    }

    /// Who asks, for the common log.
    pub(crate) fn who(&self) -> String {
        self.who.as_deref().map_or_else(process::who, str::to_owned)
    }

    /// The client of a member with these settings. It uses these connections, or new ones if another
    /// member uses them.
    pub(crate) fn of_member(&self, config: &Config) -> Result<(Fleet, Hints), Error> {
        let mut fleet = self.clone();
        let hints = match self.store.session_link()?.claim() {
            Some(hints) => hints,
            None => {
                fleet = Fleet { store: self.store.anew(), watches: Arc::default(), ..fleet };
                fleet.store.session_link()?.claim().ok_or(Error::Stopping)?
            }
        };
        // The member has its own limits for messages, so it numbers them separately.
        fleet.names = Arc::new(Names::new());
        fleet.payload_bytes_max = config.payload_bytes_max;
        // What the client waits for, its member waits for, too.
        fleet.store = fleet.store.lasting(config.durability.max(fleet.store.durability()));
        Ok((fleet, hints))
    }

    /// Notes that the protocol was compared by joining.
    pub(crate) fn is_compared(&self) {
        self.compared.store(true, Ordering::Release);
    }

    /// The name of the fleet.
    pub fn name(&self) -> &str {
        self.store.fleet()
    }

    /// Reads whether a member ever joined the fleet, and how many messages may wait in a lane.
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

    /// Compares the protocol of the fleet with ours, once. If Redis does not answer, this is not an
    /// error: the next call finds that out by itself.
    pub(crate) async fn compare(&self) -> Result<(), Error> {
        if self.compared.load(Ordering::Acquire) {
            return Ok(());
        }
        // In a box: it happens once, and otherwise each of ten thousand waiters would keep room for it.
        match Box::pin(self.store.try_open_fleet()).await {
            Ok(Ok(_)) => {
                self.compared.store(true, Ordering::Release);
                Ok(())
            }
            Ok(Err(theirs)) => Err(self.store.other_protocol(&theirs)),
            Err(_) => Ok(()),
        }
    }

    /// The watch of the event under this key. All callers share it.
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

    /// The error of a call whose key has a name chosen by a user.
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
