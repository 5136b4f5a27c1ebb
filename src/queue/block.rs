//! Fetching blocks of messages, and giving messages back.
//!
//! **Invariant:** block numbers rise by one per session, and a number is used for one block only. So
//! the number of open blocks and the highest number name one state, and Redis is asked for nothing
//! else.

use crate::id::{MemberId, MessageId};
use crate::lane::Lane;
use crate::membership::Session;
use crate::store::{Call, Reply, Script, Store, StoreError};

use super::claims::NewBlock;
use super::pack::Pack;

static FETCH: Script = Script::new("fetch", include_str!("fetch.lua"));
static GIVE_BACK: Script = Script::new("give_back", include_str!("give_back.lua"));
static UNREAD: Script = Script::new("unread", include_str!("unread.lua")).lasting(&["ok"]);

/// How many returned messages one fetch may bring, each in a block of its own.
pub(crate) const RETURNED_MAX: usize = 100;
/// If that many workers died over a message, it is handled alone, so it is fetched alone.
pub(crate) const ALONE_FROM: u32 = 2;
/// A message fails if this many workers could not read it in time, or if it was given back this often.
const UNREAD_MAX: u32 = 5;
const UNREAD_TRIES: u32 = 20;

/// What Redis answered to a fetch.
#[derive(Debug)]
pub(crate) enum Fetched {
    Blocks {
        blocks: Vec<NewBlock>,
        /// Returned messages that still wait.
        returned: usize,
    },
    Empty,
    Burnt,
    /// The number was used and its block is closed: go on with the next number.
    Closed,
    /// Redis lost data: numbers are missing, or a block that nobody holds is open.
    DataLoss,
}

/// The keys between which messages move to a worker and back, without the keys of its blocks.
fn between(store: &Store, me: &MemberId, lanes: [Lane; 4]) -> Vec<String> {
    let keys = &store.keys;
    let mut all =
        vec![keys.members(), keys.blocks(me), keys.counts(), keys.wake(), keys.returned()];
    all.extend(lanes.map(|lane| keys.lane(lane.name())));
    all
}

/// Where the keys of the lanes begin in [`between`].
const LANES_FROM: usize = 5;

/// What one fetch asks for.
#[derive(Clone, Debug)]
pub(crate) struct Fetch {
    /// The number of its first block.
    pub(crate) n: u64,
    /// The lanes, in the order to serve them.
    pub(crate) lanes: [Lane; 4],
    /// Those of them that are paused.
    pub(crate) paused: Vec<Lane>,
    /// How many messages at most; 0 only uses up the number.
    pub(crate) max: usize,
    pub(crate) bytes_max: usize,
    /// How many blocks it may open: one for each returned message, or for each pack.
    pub(crate) blocks: usize,
    /// How many blocks the worker holds, and their numbers if they are few.
    pub(crate) held: usize,
    pub(crate) known: String,
}

/// More blocks than this are counted, not named.
const NAMED_MAX: usize = 64;

/// Names the blocks that a worker holds, for a fetch.
pub(crate) fn named(held: impl ExactSizeIterator<Item = u64>) -> String {
    if held.len() > NAMED_MAX {
        return String::new();
    }
    held.fold(String::from(","), |known, n| known + &n.to_string() + ",")
}

impl Fetch {
    /// The keys of its blocks: the pack of the first one, all lists, and the packs of the others.
    fn block_keys(&self, store: &Store, me: &MemberId) -> impl Iterator<Item = String> {
        let numbers = (self.n..).take(self.blocks);
        let lists = numbers.map(|n| store.keys.block(me, n));
        let mut packs = self.pack_keys(store, me);
        packs.next().into_iter().chain(lists).chain(packs)
    }

    fn pack_keys(&self, store: &Store, me: &MemberId) -> impl Iterator<Item = String> {
        (self.n..).take(self.blocks).map(|n| store.keys.pack(me, n))
    }

    pub(crate) fn call(&self, store: &Store, session: &Session) -> Call<Fetched> {
        let (first, blocks_max) = (self.n, self.blocks);
        let mut keys = between(store, &session.id, self.lanes);
        for (key, lane) in keys[LANES_FROM..].iter_mut().zip(self.lanes) {
            if self.paused.contains(&lane) {
                *key = store.keys.no_lane();
            }
        }
        keys.extend(self.block_keys(store, &session.id));
        FETCH
            .call(&keys)
            .arg(session.id.as_str())
            .arg(self.n)
            .arg(self.max)
            .arg(session.trust.lease_ms())
            .arg(self.bytes_max)
            .arg(self.held)
            .arg(ALONE_FROM)
            .arg(&self.known)
            .arg(store.keys.chunks())
            .refreshing(&["ok", "empty", "burnt", "closed", "gap", "stray"])
            .then_get(self.pack_keys(store, &session.id).collect())
            .reading(move |reply| Fetched::read(reply, first, blocks_max))
    }

    /// Gives back the messages of this fetch, which could not be read, and uses up its numbers.
    pub(crate) fn unread_call(&self, store: &Store, session: &Session) -> Call<Unread> {
        let fixed = &store.keys;
        let mut keys = fixed.jobs();
        keys.extend([
            fixed.blocks(&session.id),
            fixed.unread(),
            fixed.errors(),
            fixed.ledger(),
            fixed.config(),
        ]);
        keys.extend(self.block_keys(store, &session.id));
        UNREAD
            .call(&keys)
            .arg(session.id.as_str())
            .arg(self.n)
            .arg(session.trust.lease_ms())
            .arg(UNREAD_MAX)
            .arg(UNREAD_TRIES)
            .refreshing(&["ok"])
            .reading(Unread::read)
    }
}

/// The result of giving back blocks that could not be read.
#[derive(Debug)]
pub(crate) struct Unread {
    /// The last number of this fetch. All numbers up to it are used up.
    pub(crate) last: u64,
    /// Messages that came alone and that this worker reports for the first time, and whether they
    /// failed.
    pub(crate) messages: Vec<(MessageId, bool)>,
    pub(crate) given_back: u64,
    /// It was a single message, and it was too large.
    pub(crate) alone: bool,
}

impl Unread {
    fn read(reply: Reply) -> Result<Unread, StoreError> {
        if reply.tag() != "ok" {
            return Err(reply.unexpected());
        }
        let (last, messages) = (reply.number(0)? as u64, Vec::new());
        let mut unread = Unread { last, messages, given_back: 0, alone: false };
        for at in (1..reply.len()).step_by(2) {
            let (id, what) = (MessageId::from_redis(&reply.text(at)?), reply.text(at + 1)?);
            unread.given_back += u64::from(what != "failed");
            unread.alone = what != "many";
            if what == "back" || what == "failed" {
                unread.messages.extend(id.map(|id| (id, what == "failed")));
            }
        }
        Ok(unread)
    }
}

impl Fetched {
    /// Reads the answer to the fetch of this many blocks at most, whose first one is `n`.
    fn read(reply: Reply, n: u64, blocks_max: usize) -> Result<Fetched, StoreError> {
        match reply.tag() {
            "ok" => {}
            "empty" => return Ok(Fetched::Empty),
            "burnt" => return Ok(Fetched::Burnt),
            "closed" => return Ok(Fetched::Closed),
            "gap" | "stray" => return Ok(Fetched::DataLoss),
            _ => return Err(reply.unexpected()),
        }
        let (stamp, count) = (reply.text(0)?, reply.number(1)? as usize);
        let (returned, packed) = (reply.number(2)? as usize, reply.number(3)? as usize);
        let mut parts = reply.into_parts();
        let packs = parts.split_off(parts.len().saturating_sub(blocks_max));
        let mut envelopes = parts.into_iter().skip(3);
        let mut blocks = Vec::with_capacity(count);
        if packed > 0 {
            for ((n, packed), pack) in (n..).zip(envelopes).zip(packs) {
                let packed = packed.into_number()? as usize;
                blocks.push(packed_block(n, stamp.clone(), packed, pack)?);
            }
            return Ok(Fetched::Blocks { blocks, returned });
        }
        envelopes.next();
        if count == 1 {
            blocks.push(open_block(n, stamp, envelopes)?);
        } else {
            for (n, envelope) in (n..).zip(envelopes) {
                blocks.push(open_block(n, stamp.clone(), std::iter::once(envelope))?);
            }
        }
        Ok(Fetched::Blocks { blocks, returned })
    }
}

/// A block that came as envelopes. What was settled or given back before a repeat is blank.
fn open_block(
    n: u64,
    stamp: String,
    envelopes: impl Iterator<Item = Reply>,
) -> Result<NewBlock, StoreError> {
    let mut all = Vec::new();
    for (position, envelope) in (0..).zip(envelopes) {
        let envelope = envelope.into_bytes()?;
        if !envelope.is_empty() && envelope != b"-" {
            all.push((position, envelope));
        }
    }
    Ok(NewBlock::open(n, stamp, all))
}

/// A block that came as a pack. If the pack is missing, or holds another number of messages, somebody else has the
/// block: we were judged dead between the two commands.
fn packed_block(n: u64, stamp: String, count: usize, pack: Reply) -> Result<NewBlock, StoreError> {
    let text = if pack.is_nil() { Vec::new() } else { pack.into_bytes()? };
    let pack = Pack::read(text, count).ok_or(StoreError::Gone)?;
    Ok(NewBlock::packed(n, stamp, pack))
}

/// Returns messages that were not started to the head of their lane. This is not an attempt.
pub(crate) fn give_back(
    store: &Store,
    session: &Session,
    n: u64,
    stamp: &str,
    positions: &[u32],
) -> Call<()> {
    let mut keys = between(store, &session.id, Lane::ALL);
    keys.extend([store.keys.block(&session.id, n), store.keys.pack(&session.id, n)]);
    let mut call = GIVE_BACK
        .call(&keys)
        .arg(session.id.as_str())
        .arg(n)
        .arg(stamp)
        .arg(session.trust.lease_ms())
        .arg(String::from_iter(Lane::ALL.map(Lane::letter)));
    for position in positions {
        call.push_arg(position);
    }
    call.refreshing(&["ok", "already", "gap"]).reading(|reply| match reply.tag() {
        "ok" | "already" => Ok(()),
        _ => Err(reply.unexpected()),
    })
}
