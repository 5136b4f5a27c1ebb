//! What the lease and every lock share: a tenure is granted to a session, under a token, and ends with it.
//!
//! **Invariant:** a tenure is granted to a living session, while nobody valid holds it, under a token
//! higher than every one before. One in our name that nobody here uses is given back, and one that is no longer in our
//! name is not used any longer.

mod calls;
mod lease_use;
mod locks;

pub(crate) use calls::{
    Granted, LockAnswer, acquire_lease, acquire_lock, held_locks, locks_of, release_lock, resign,
};
pub(crate) use lease_use::{Difference, LeaseUse};
pub(crate) use locks::{Known, Locks};

use crate::clock::Moment;
use lease_use::LeaseTracker;

/// What a session holds: the lease, perhaps, and locks.
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
