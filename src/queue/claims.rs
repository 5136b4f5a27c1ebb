//! The messages of one block, and the permissions to settle them.
//!
//! **Invariant:** a [`Claim`] is made by a fetch and by nothing else. It is not copied, and settling or giving back uses it
//! up, so settling twice does not compile. [`Claims`] are split, never copied, and each message is handed out once.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;

use crate::id::MessageId;
use crate::message::{Message, Tries};

use super::pack::{Pack, Place, Reader};

/// The permission to settle one message, once.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) block: u64,
    index: u32,
}

/// The messages that one fetch moved to this worker.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) n: u64,
    pub(crate) stamp: String,
    /// When we knew of it.
    came: Instant,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Pack(Pack),
    /// Those that can be read come first.
    Open(Vec<Entry>),
}

/// A message that came as an envelope.
#[derive(Debug)]
struct Entry {
    position: u32,
    id: MessageId,
    tries: Tries,
    /// Its outcome must be named, even if it is simply done.
    has_duties: bool,
    /// Until it is handed out.
    message: Mutex<Option<Message>>,
}

/// A block, as a fetch brings it.
#[derive(Debug)]
pub(crate) struct NewBlock {
    pub(crate) block: Arc<Block>,
    pub(crate) claims: Claims,
    /// Those whose envelope cannot be read.
    pub(crate) unreadable: Vec<Claim>,
}

impl NewBlock {
    /// A block that came as a pack.
    pub(super) fn packed(n: u64, stamp: String, pack: Pack) -> NewBlock {
        let count = pack.len() as u32;
        let (came, content) = (Instant::now(), Content::Pack(pack));
        let block = Arc::new(Block { n, stamp, came, content });
        let claims = Claims { block: block.clone(), indexes: 0..count, reader: None };
        NewBlock { block, claims, unreadable: Vec::new() }
    }

    /// A block that came as envelopes, each with its position.
    pub(super) fn open(n: u64, stamp: String, envelopes: Vec<(u32, Vec<u8>)>) -> NewBlock {
        let (mut entries, mut odd) = (Vec::with_capacity(envelopes.len()), Vec::new());
        for (position, envelope) in envelopes {
            let (message, to) = match Message::parse(envelope) {
                Ok(message) => (message, &mut entries),
                Err(envelope) => (Message::unreadable(envelope), &mut odd),
            };
            let (id, tries, has_duties) = (message.id.clone(), message.tries, message.has_duties());
            let message = Mutex::new(Some(message));
            to.push(Entry { position, id, tries, has_duties, message });
        }
        let (readable, all) = (entries.len() as u32, (entries.len() + odd.len()) as u32);
        entries.append(&mut odd);
        let (came, content) = (Instant::now(), Content::Open(entries));
        let block = Arc::new(Block { n, stamp, came, content });
        let claims = Claims { block: block.clone(), indexes: 0..readable, reader: None };
        let unreadable = (readable..all).map(|index| Claim { block: n, index }).collect();
        NewBlock { block, claims, unreadable }
    }
}

impl Block {
    /// How many messages it has, read or not.
    pub(crate) fn len(&self) -> usize {
        match &self.content {
            Content::Pack(pack) => pack.len(),
            Content::Open(entries) => entries.len(),
        }
    }

    /// What the clock of Redis shows, about: the time of the fetch, and what has passed since.
    pub(crate) fn now_ms(&self, now: Instant) -> u64 {
        let fetched_ms = self.stamp.parse::<u64>().map_or(0, |us| us / 1000);
        fetched_ms + now.saturating_duration_since(self.came).as_millis() as u64
    }

    /// The first id of its pack, if its messages came as one.
    pub(crate) fn pack(&self) -> Option<&MessageId> {
        match &self.content {
            Content::Pack(pack) => Some(pack.first()),
            Content::Open(_) => None,
        }
    }

    pub(crate) fn id(&self, claim: &Claim) -> MessageId {
        match &self.content {
            Content::Pack(pack) => pack.first().following(claim.index.into()),
            Content::Open(entries) => entries[claim.index as usize].id.clone(),
        }
    }

    pub(crate) fn tries(&self, claim: &Claim) -> Tries {
        self.tries_at(claim.index)
    }

    fn tries_at(&self, index: u32) -> Tries {
        match &self.content {
            Content::Pack(_) => Tries::FIRST,
            Content::Open(entries) => entries[index as usize].tries,
        }
    }

    /// Must the outcome of this message be named, even if it is simply done? Such a message never comes in a pack.
    pub(crate) fn has_duties(&self, claim: &Claim) -> bool {
        match &self.content {
            Content::Pack(_) => false,
            Content::Open(entries) => entries[claim.index as usize].has_duties,
        }
    }

    /// Where the message stands in its block in Redis.
    pub(crate) fn position(&self, claim: &Claim) -> u32 {
        self.position_at(claim.index)
    }

    fn position_at(&self, index: u32) -> u32 {
        match &self.content {
            Content::Pack(_) => index,
            Content::Open(entries) => entries[index as usize].position,
        }
    }

    /// Where the message stands in its pack, if it came in one.
    pub(crate) fn place(&self, claim: &Claim) -> Option<Place> {
        match &self.content {
            Content::Pack(pack) => Some(pack.place(claim.index as usize)),
            Content::Open(_) => None,
        }
    }
}

impl Entry {
    /// Its message, once. The error is the body of one that cannot be read.
    fn take(&self) -> Result<Message, Bytes> {
        let message = self.message.lock().unwrap_or_else(PoisonError::into_inner).take();
        message.ok_or_else(Bytes::new)
    }
}

/// Claims of one block that no handler has started, in their order.
#[derive(Debug)]
pub(crate) struct Claims {
    block: Arc<Block>,
    indexes: Range<u32>,
    /// From the first message on that is handed out, if there are more.
    reader: Option<Reader>,
}

impl Claims {
    /// The number of their block.
    pub(crate) fn block(&self) -> u64 {
        self.block.n
    }

    pub(crate) fn len(&self) -> usize {
        self.indexes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.indexes.is_empty()
    }

    /// How many workers died over one of them, at most.
    pub(crate) fn deaths_max(&self) -> u32 {
        match &self.block.content {
            Content::Pack(_) => 0,
            Content::Open(_) => {
                let deaths = self.indexes.clone().map(|index| self.block.tries_at(index).deaths());
                deaths.max().unwrap_or(0)
            }
        }
    }

    /// None of them: claims of the same block can be put in.
    pub(crate) fn of_block(&self) -> Claims {
        Claims { block: self.block.clone(), indexes: 0..0, reader: None }
    }

    /// Takes back one claim of this block that was handed out, and that nobody has started. It must be empty.
    pub(crate) fn with(mut self, claim: Claim, message: Message) -> Claims {
        debug_assert!(self.is_empty() && claim.block == self.block.n);
        if let Content::Open(entries) = &self.block.content {
            let slot = &entries[claim.index as usize].message;
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
        }
        self.indexes = claim.index..claim.index + 1;
        self
    }

    /// What the clock of Redis shows, about.
    pub(crate) fn now_ms(&self, now: Instant) -> u64 {
        self.block.now_ms(now)
    }

    /// Splits off the first ones, at most this many.
    pub(crate) fn split_first(&mut self, count: usize) -> Claims {
        let middle = self.indexes.start + count.min(self.len()) as u32;
        let indexes = self.indexes.start..middle;
        self.indexes.start = middle;
        Claims { block: self.block.clone(), indexes, reader: None }
    }

    /// Hands out the next message. The error is the body of one that cannot be read.
    pub(crate) fn hand_out(&mut self) -> Option<(Claim, Result<Message, Bytes>)> {
        let index = self.indexes.next()?;
        let message = match &self.block.content {
            Content::Pack(pack) if self.reader.is_some() || !self.indexes.is_empty() => {
                let reader = self.reader.get_or_insert_with(|| Reader::new(pack));
                reader.message(pack, index as usize)
            }
            Content::Pack(pack) => pack.message(index as usize),
            Content::Open(entries) => entries[index as usize].take(),
        };
        Some((Claim { block: self.block.n, index }, message))
    }

    /// Their positions in Redis.
    pub(crate) fn positions(&self) -> impl Iterator<Item = u32> {
        self.indexes.clone().map(|index| self.block.position_at(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(seq: u32, attempt: u32) -> Vec<u8> {
        format!("1g-|5-{seq}|{attempt}|9|{seq}").into_bytes()
    }

    #[test]
    fn claims_are_split_and_each_message_is_handed_out_once() {
        let envelopes = (0..10).map(|n| (n * 2, envelope(n, 1))).collect();
        let NewBlock { block, mut claims, unreadable } = NewBlock::open(3, "s".into(), envelopes);
        assert!(unreadable.is_empty() && block.len() == 10 && block.pack().is_none());
        let mut first = claims.split_first(4);
        assert_eq!((first.len(), claims.len()), (4, 6));
        assert_eq!(first.positions().collect::<Vec<_>>(), [0, 2, 4, 6]);
        let mut seen = Vec::new();
        for claims in [&mut first, &mut claims] {
            while let Some((claim, message)) = claims.hand_out() {
                assert_eq!(block.id(&claim), message.as_ref().expect("readable").id);
                assert_eq!(block.position(&claim), seen.len() as u32 * 2);
                seen.push(message.expect("readable").text().into_owned());
            }
        }
        assert_eq!(seen, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
        assert_eq!(claims.split_first(7).len(), 0);
    }

    #[test]
    fn a_claim_that_was_handed_out_can_be_taken_back_once() {
        let envelopes = (0..3).map(|n| (n, envelope(n, 1))).collect();
        let NewBlock { block, mut claims, .. } = NewBlock::open(3, "s".into(), envelopes);
        let (claim, message) = claims.hand_out().expect("one");
        let mut back = claims.of_block().with(claim, message.expect("readable"));
        assert_eq!((back.len(), back.positions().collect::<Vec<_>>()), (1, vec![0]));
        let (claim, message) = back.hand_out().expect("the same");
        assert_eq!(block.id(&claim), message.expect("readable").id);
        assert_eq!(claims.len(), 2);
    }

    #[test]
    fn unreadable_ones_are_claims_of_their_own() {
        let envelopes = vec![(0, envelope(1, 1)), (1, b"odd".to_vec()), (4, envelope(2, 3))];
        let NewBlock { block, claims, unreadable } = NewBlock::open(3, "s".into(), envelopes);
        assert_eq!((claims.len(), claims.deaths_max(), block.len()), (2, 2, 3));
        let positions: Vec<u32> = unreadable.iter().map(|claim| block.position(claim)).collect();
        assert_eq!(positions, [1]);
        assert_eq!(block.id(&unreadable[0]).as_str(), "unreadable");
    }
}
