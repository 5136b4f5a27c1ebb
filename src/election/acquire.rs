//! Asking for a right: the lease and every lock are taken by the same script.
//!
//! **Invariant:** a right is granted to a living session, while nobody valid holds it, under a token
//! higher than every one before.

use crate::membership::Session;
use crate::store::{Call, Script, Store};

static ACQUIRE: Script = Script::new("acquire", include_str!("acquire.lua"));

/// Asks for the lease.
pub(super) fn lease_call(store: &Store, session: &Session) -> Call {
    let keys = &store.keys;
    ACQUIRE
        .call(&[
            keys.members(),
            keys.lease(),
            keys.term(),
            keys.last(),
            keys.ctl(),
            keys.counts(),
            keys.state(),
        ])
        .arg(session.id.as_str())
        .arg(session.lease().as_millis() as u64)
}

/// Asks for a lock. With a ticket, an empty one at first, it also takes a place in the queue.
pub(crate) fn lock_call(
    store: &Store,
    session: &Session,
    name: &str,
    attempt: u64,
    ticket: Option<&str>,
) -> Call {
    let keys = &store.keys;
    ACQUIRE
        .call(&[
            keys.members(),
            keys.lock(name),
            keys.token(),
            keys.locks(&session.id),
            keys.waiters(name),
        ])
        .arg(session.id.as_str())
        .arg(session.lease().as_millis() as u64)
        .arg(name)
        .arg(attempt)
        .arg(ticket.unwrap_or("-"))
}
