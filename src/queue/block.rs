//! Blocks and claims: what one fetch moved to one worker.
//!
//! **Invariant:** block numbers rise by one per session and a number is used for one block only. A
//! [`Claim`] is made by a fetch and by nothing else, is not copied, and is used up by settling or
//! giving back, so settling twice does not compile.

use crate::membership::{MemberId, Session};
use crate::store::{Call, Reply, Script, Store, StoreError, text};

use super::message::{Lane, Message, MessageId};

static FETCH: Script = Script::new("fetch", include_str!("fetch.lua"));
static GIVE_BACK: Script = Script::new("give_back", include_str!("give_back.lua"));

/// The right to settle one message, once.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) block: u64,
    pub(crate) position: u32,
    pub(crate) id: MessageId,
    pub(crate) attempt: u32,
}

/// The messages one fetch moved to this worker.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) n: u64,
    pub(crate) stamp: String,
    pub(crate) messages: Vec<(Claim, Message, bool)>,
}

/// What Redis answered to a fetch.
#[derive(Debug)]
pub(crate) enum Fetched {
    Block(Block),
    Empty,
    Burnt,
    /// The number was used and its block is closed: go on with the next.
    Closed,
    Gone,
    /// Redis lost data: numbers are missing, or a block is open that nobody holds.
    DataLoss,
}

/// The keys between which messages move to a worker and back: its block, and the lanes.
fn between(store: &Store, me: &MemberId, n: u64, lanes: [Lane; 4]) -> Vec<String> {
    let keys = &store.keys;
    let mut all = vec![
        keys.members(),
        keys.blocks(me),
        keys.block(me, n),
        keys.counts(),
        keys.wake(),
        keys.returned(),
    ];
    all.extend(lanes.map(|lane| keys.lane(lane.name())));
    all
}

/// Asks for up to `max` messages as block `n`, from the lanes in this order; 0 uses the number up.
pub(crate) fn fetch_call(
    store: &Store,
    session: &Session,
    n: u64,
    lanes: [Lane; 4],
    max: usize,
    bytes_max: usize,
    held: &[u64],
) -> Call {
    let mut known = String::from(",");
    for n in held {
        known.push_str(&format!("{n},"));
    }
    FETCH
        .call(&between(store, &session.id, n, lanes))
        .arg(session.id.as_str())
        .arg(n)
        .arg(max)
        .arg(session.lease.as_millis() as u64)
        .arg(bytes_max)
        .arg(known)
}

/// Reads the answer to the fetch of block `n`.
pub(crate) fn fetched(value: redis::Value, n: u64) -> Result<Fetched, StoreError> {
    let redis::Value::Array(items) = value else {
        return match text(&value)?.as_str() {
            "empty" => Ok(Fetched::Empty),
            "burnt" => Ok(Fetched::Burnt),
            "closed" => Ok(Fetched::Closed),
            "gone" => Ok(Fetched::Gone),
            "gap" | "stray" => Ok(Fetched::DataLoss),
            other => Err(StoreError::odd(format!("unexpected answer {other:?} to a fetch"))),
        };
    };
    let mut items = items.into_iter();
    let _ok = items.next();
    let stamp = text(&items.next().unwrap_or(redis::Value::Nil))?;
    let mut messages = Vec::with_capacity(items.len());
    for (position, item) in items.enumerate() {
        let redis::Value::BulkString(envelope) = item else {
            return Err(StoreError::odd("an envelope that is no string"));
        };
        if envelope.is_empty() || envelope == b"-" {
            continue; // settled or given back before the repeat
        }
        let (message, readable) = match Message::parse(envelope) {
            Ok(message) => (message, true),
            Err(envelope) => (Message::unreadable(envelope), false),
        };
        let claim = Claim {
            block: n,
            position: position as u32,
            id: message.id.clone(),
            attempt: message.attempt,
        };
        messages.push((claim, message, readable));
    }
    Ok(Fetched::Block(Block { n, stamp, messages }))
}

/// Reads the answer to a give-back: is the session still there?
pub(crate) fn given_back(value: redis::Value) -> Result<bool, StoreError> {
    let reply = Reply::parse(value)?;
    match reply.tag.as_str() {
        "ok" | "already" => Ok(true),
        "gone" => Ok(false),
        _ => Err(reply.unexpected()),
    }
}

/// Returns unstarted messages to the head of their lane, uncounted.
pub(crate) fn give_back_call(
    store: &Store,
    session: &Session,
    n: u64,
    stamp: &str,
    positions: &[u32],
) -> Call {
    let mut call = GIVE_BACK
        .call(&between(store, &session.id, n, Lane::ALL))
        .arg(session.id.as_str())
        .arg(n)
        .arg(stamp)
        .arg(session.lease.as_millis() as u64)
        .arg(String::from_iter(Lane::ALL.map(Lane::letter)));
    for position in positions {
        call.push_arg(position);
    }
    call
}
