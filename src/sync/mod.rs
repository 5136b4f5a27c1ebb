//! The machinery of the fleet, offered to users: events, locks, and what is built from them.
//!
//! **Invariant:** no wake-up is lost. Whoever waits has a confirmed subscription before it reads
//! what it waits for, and reads again after every break, every message it does not understand and
//! every [`consumer_timeout`](DistributedEvent::with_consumer_timeout). A right that somebody holds,
//! a lock or a permit, is valid exactly as long as its holder's session; Redis checks it inside the
//! write it protects.

mod barrier;
mod context;
mod event;
mod event_watch;
mod guarded_script;
mod inspect;
mod latch;
mod lock;
mod lock_guard;
mod semaphore;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

pub use barrier::Barrier;
pub(crate) use context::SyncContext;
pub use event::{DistributedEvent, EventState};
pub(crate) use event::{clear_flag, set_flag};
pub(crate) use event_watch::EventWatch;
pub use guarded_script::GuardedScript;
pub use inspect::{EventStatus, LockStatus};
pub use latch::CountDownLatch;
pub use lock::Lock;
pub use lock_guard::LockGuard;
pub use semaphore::{Permit, Semaphore};

use crate::Error;
use crate::config::check_fleet_name;
use crate::store::{Address, Signal, Store, StoreError};

/// Bytes of the name of an event, a lock or whatever else is shared by name.
const NAME_BYTES_MAX: usize = 200;

/// Permits of a semaphore, parties of a barrier, counts of a latch.
const COUNT_MAX: u32 = 10_000;

/// A fleet's place in one Redis, for programs that share its events without being a member.
///
/// Make one per process and clone it: everything that is made from it listens on one connection,
/// which is opened when something is first waited for. A member uses its own,
/// [`Fleet::redis`](crate::Fleet::redis). Use it from one tokio runtime: what it sends is sent by the
/// runtime that connected.
///
/// ```
/// let redis = artel::Redis::open("redis://127.0.0.1", "orders")?;
/// let event = artel::DistributedEvent::new(&redis, "new-prices")?;
/// # Ok::<(), artel::Error>(())
/// ```
#[derive(Clone)]
pub struct Redis {
    pub(crate) store: Store,
    watches: Arc<Mutex<HashMap<String, Weak<EventWatch>>>>,
    /// The protocol was compared: by joining, or when it was first used.
    compared: Arc<AtomicBool>,
}

impl Redis {
    /// Reads address and name; connects to nothing yet.
    ///
    /// # Errors
    ///
    /// If the address or the fleet's name is not one.
    pub fn open(redis: impl Into<Address>, fleet: &str) -> Result<Redis, Error> {
        check_fleet_name(fleet)?;
        let store = Store::open(&redis.into(), fleet)?;
        Ok(Redis { store, watches: Arc::default(), compared: Arc::default() })
    }

    pub(crate) fn of_member(store: Store) -> Redis {
        let compared = Arc::new(AtomicBool::new(true));
        Redis { store, watches: Arc::default(), compared }
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

    /// What this process knows of the flag under this key: one for all who ask.
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
                reason: format!("key {key} holds something else"),
            },
            error => self.store.explain(error),
        }
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis")
            .field("address", &self.store.address())
            .field("fleet", &self.store.fleet())
            .finish()
    }
}

/// Pause after Redis did not answer.
const RETRY: Duration = Duration::from_millis(50);

/// Never longer than this, and not all processes at once.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.8 + 0.2 * rand::random::<f64>())
}

/// Checks the size of a semaphore, a barrier or a latch: what they hold is looked through in one call.
fn check_count(field: &'static str, count: u32) -> Result<(), Error> {
    match count {
        1..=COUNT_MAX => Ok(()),
        _ => {
            let problem = format!("must be between 1 and {COUNT_MAX}, not {count}");
            Err(Error::Config { field, problem })
        }
    }
}

/// Checks the name of an event, a lock and so on: it becomes part of a key and of a channel.
fn check_name(field: &'static str, name: &str) -> Result<(), Error> {
    let problem = match name {
        "" => "must not be empty".to_owned(),
        _ if name.len() > NAME_BYTES_MAX => {
            format!("must have at most {NAME_BYTES_MAX} bytes, and has {}", name.len())
        }
        _ => match name.chars().find(|c| ['{', '}'].contains(c) || c.is_control()) {
            Some(odd) => format!("must have no braces and no control characters, and has {odd:?}"),
            None => return Ok(()),
        },
    };
    Err(Error::Config { field, problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_part_of_a_key_are_refused() {
        for good in ["a", "prices/new", "ü 1|2", &"x".repeat(200)] {
            assert!(check_name("event", good).is_ok(), "{good:?}");
        }
        for bad in ["", "{a}", "a}", "a\nb", &"x".repeat(201)] {
            assert!(check_name("event", bad).is_err(), "{bad:?}");
        }
    }
}
