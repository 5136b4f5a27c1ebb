//! Synchronization for users: events, locks, and what is built from them.
//!
//! **Invariant:** no wake-up is lost. A waiter has a confirmed subscription before it reads what it
//! waits for. It reads again after every break, after every message it does not understand, and every
//! [`reread_every`](DistributedEvent::reread_every). A lock or a permit is valid exactly as long as its
//! holder's session. Redis checks a lock inside the write it protects.

mod barrier;
mod context;
mod event;
mod guarded_script;
mod holds;
mod inspect;
mod latch;
mod lock;
mod lock_guard;
mod semaphore;

use std::time::Duration;

pub use barrier::Barrier;
pub(crate) use context::SyncContext;
pub use event::{DistributedEvent, EventState};
pub(crate) use event::{clear_flag, set_flag};
pub use guarded_script::GuardedScript;
pub use inspect::{EventStatus, LockStatus};
pub use latch::CountDownLatch;
pub use lock::Lock;
pub use lock_guard::LockGuard;
pub use semaphore::{Permit, Semaphore};

use crate::Error;
use crate::fleet::Fleet;

/// The most bytes of the name of an event, a lock and so on.
const NAME_BYTES_MAX: usize = 200;

/// The most permits of a semaphore, parties of a barrier, counts of a latch.
const COUNT_MAX: u32 = 10_000;

/// Pause after Redis did not answer.
const RETRY: Duration = Duration::from_millis(50);

/// Checks the size of a semaphore, a barrier or a latch: one call reads everything they hold.
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

impl Fleet {
    /// An event of this fleet. Nothing is sent to Redis yet.
    ///
    /// # Errors
    ///
    /// If the name is empty, longer than 200 bytes, or has braces or control characters.
    pub fn event(&self, name: &str) -> Result<DistributedEvent, Error> {
        DistributedEvent::new(self, name)
    }

    /// A latch of this fleet that opens when it is counted down `count` times. Nothing is sent to Redis
    /// yet.
    ///
    /// # Errors
    ///
    /// As [`event`](Self::event), and if `count` is not between 1 and 10,000.
    pub fn latch(&self, name: &str, count: u32) -> Result<CountDownLatch, Error> {
        CountDownLatch::new(self, name, count)
    }
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
