//! What the lease and every lock share: a tenure is granted to a session, under a token, and ends with
//! the session.
//!
//! **Invariant:** a tenure is granted to a living session, while nobody valid holds it, under a token
//! higher than every one before. A tenure in our name that nobody here uses is given back. A tenure
//! that is no longer in our name is no longer used.

mod calls;
mod lease_use;
mod locks;

pub(crate) use calls::{
    Grant, Granted, LockAnswer, acquire_lease, acquire_lock, held_locks, locks_of, release_lock,
    resign,
};
pub(crate) use lease_use::{Difference, LeaseUse};
pub(crate) use locks::{Known, Locks};

use crate::clock::Moment;
use lease_use::LeaseTracker;

/// The tenures of a session: perhaps the lease, and locks.
#[derive(Debug)]
pub(crate) struct Tenures {
    /// What it does with the lease.
    pub(crate) lease: LeaseTracker,
    /// The locks it holds and asks for.
    pub(crate) locks: Locks,
}

impl Tenures {
    pub(crate) fn new(began: Moment) -> Tenures {
        Tenures { lease: LeaseTracker::new(began), locks: Locks::default() }
    }
}
