//! Adding the generator's messages.
//!
//! **Invariant:** a push adds all of its numbered messages or none, once, however often it is
//! repeated, and only while its term leads.

use crate::election::Lease;
use crate::store::{Call, PROTOCOL, Reply, Script, Store, StoreError};

use super::message::{Lane, NewMessage};

static PUSH: Script = Script::new("push", include_str!("push.lua"));

/// What Redis answered to a push.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Pushed {
    /// They are in the queue, from this call or from an earlier copy of it.
    Accepted,
    /// A bound is reached, as this says; nothing was added and no number used.
    Full(String),
    /// Another term leads.
    Fenced,
    Gone,
    /// Redis lost data.
    Gap,
    /// The fleet runs with this other protocol.
    Protocol(String),
}

/// Numbers `messages` from `from` on, adds them, and keeps the generator's state, if there is one: its
/// number within the term, and itself.
pub(crate) fn push_call(
    store: &Store,
    lease: &Lease,
    from: u64,
    messages: &[NewMessage],
    state: Option<(u64, &[u8])>,
) -> Call {
    let keys = &store.keys;
    let mut call = PUSH
        .call(&[
            keys.members(),
            keys.lease(),
            keys.last(),
            keys.lane(Lane::Generated.name()),
            keys.counts(),
            keys.wake(),
            keys.config(),
            keys.errors(),
            keys.state(),
        ])
        .arg(lease.session.id.as_str())
        .arg(lease.term.get())
        .arg(from)
        .arg(lease.session.lease().as_millis() as u64)
        .arg(PROTOCOL)
        .arg(state.map_or(String::new(), |(number, _)| number.to_string()))
        .arg(state.map_or(&[][..], |(_, state)| state));
    let (ms, mut envelope) = (lease.redis_ms(), Vec::new());
    for (seq, message) in (from..).zip(messages) {
        let id = format_args!("{}-{seq}", lease.term);
        message.envelope(&mut envelope, Lane::Generated, id, ms);
        call.push_arg(&envelope[..]);
    }
    call
}

/// Reads the answer to a push.
pub(crate) fn pushed(value: redis::Value) -> Result<Pushed, StoreError> {
    let reply = Reply::parse(value)?;
    match reply.tag.as_str() {
        "ok" | "already" => Ok(Pushed::Accepted),
        "full" => Ok(Pushed::Full(full(&reply, Lane::Generated)?)),
        "fenced" => Ok(Pushed::Fenced),
        "gone" => Ok(Pushed::Gone),
        "gap" => Ok(Pushed::Gap),
        "protocol" => Ok(Pushed::Protocol(reply.text(0)?)),
        _ => Err(reply.unexpected()),
    }
}

/// Which bound is reached.
pub(super) fn full(reply: &Reply, lane: Lane) -> Result<String, StoreError> {
    let (which, max) = (reply.text(0)?, reply.text(1)?);
    Ok(match which.as_str() {
        "errors" => format!("{max} failed messages are stored already"),
        _ => format!("{max} messages wait in lane {lane} already"),
    })
}
