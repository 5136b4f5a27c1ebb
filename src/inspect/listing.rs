//! [`Listed`]: the messages that wait in a lane, and those that workers have claimed, page by page.
//!
//! **Invariant:** it only reads, in pieces that are bounded by number and by bytes. Messages move on while somebody pages
//! through them, so one may be listed twice, or be missed; a message that does not move is listed.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use super::WaitingIn;
use crate::Error;
use crate::fleet::Fleet;
use crate::id::{MemberId, MessageId};
use crate::json_time::at_ms;
use crate::lane::Lane;
use crate::message::Message;
use crate::store::{Call, Reply, Script, StoreError};

static PEEK: Script = Script::new("peek", include_str!("peek.lua"));

/// How many bytes of an envelope a page shows.
const CUT: usize = 4096;
/// How many bytes of an envelope are shown of a single message.
const WHOLE: usize = 64 << 20;
/// The most that one call reads.
const PIECE_BYTES: usize = 4 << 20;
/// Messages of a page.
const COUNT_MAX: usize = 500;

/// A message in a list, and as much of it as the list shows.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{Lane, ListCursor, WaitingIn};
///
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let id = fleet.send("order 7").await?.id;
/// let mut cursor = ListCursor::default();
/// let page = fleet.waiting(&WaitingIn::Lane(Lane::Normal), &mut cursor, 20).await?;
/// assert_eq!((page[0].id.as_str(), &*page[0].payload), (id.as_str(), &b"order 7"[..]));
/// assert!(cursor.is_over());
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listed {
    /// Its id.
    pub id: MessageId,
    /// Its kind, if its maker set one.
    pub kind: Option<String>,
    /// The lane it was added to.
    pub lane: Lane,
    /// The number of its run: the one that is under way, or the next one.
    pub attempt: u32,
    /// How often it was retried.
    pub retry: u32,
    /// When it was added.
    pub generated_at: SystemTime,
    /// The beginning of its payload.
    pub payload: Vec<u8>,
    /// How many bytes its payload has.
    pub payload_bytes: usize,
    /// Who has claimed it, and when; `None` if it waits.
    pub claim: Option<(MemberId, SystemTime)>,
    /// Where it is, for [`Fleet::whole_payload`].
    pub at: ListCursor,
}

/// How far somebody has paged through a list. As text it can be handed to others.
///
/// ```
/// let cursor: artel::ListCursor = "12.40".parse()?;
/// assert_eq!(cursor.to_string(), "12.40");
/// assert!("12,40".parse::<artel::ListCursor>().is_err());
/// # Ok::<(), artel::Error>(())
/// ```
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ListCursor {
    /// Of claimed messages: the member and its block.
    block: Option<(MemberId, u64)>,
    /// Entries of the list that were read, and messages of the pack behind them.
    place: u64,
    inside: u64,
    over: bool,
}

impl ListCursor {
    /// Is there nothing more to read?
    pub fn is_over(&self) -> bool {
        self.over
    }
}

impl fmt::Display for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListCursor { block, place, inside, .. } = self;
        match block {
            Some((member, number)) => write!(f, "{member}:{number}:{place}.{inside}"),
            None => write!(f, "{place}.{inside}"),
        }
    }
}

impl FromStr for ListCursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<ListCursor, Error> {
        let read = || {
            let number = |text: &str| text.parse::<u64>().ok().filter(|n| *n < 1 << 40);
            let (block, rest) = match text.rsplit_once(':') {
                Some((block, rest)) => {
                    let (member, block) = block.split_once(':')?;
                    (Some((MemberId::from_redis(member)?, number(block)?)), rest)
                }
                None => (None, text),
            };
            let (place, inside) = rest.split_once('.')?;
            Some(ListCursor { block, place: number(place)?, inside: number(inside)?, over: false })
        };
        let problem = || "must be one that a list has returned, such as 12.40".to_owned();
        read().ok_or_else(|| Error::Config { field: "cursor", problem: problem() })
    }
}

/// A piece of one list.
struct Piece {
    over: bool,
    place: u64,
    inside: u64,
    messages: Vec<Listed>,
}

impl Fleet {
    /// Messages that wait in this lane, the next one to be handed out first.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads. The cursor moves when a page is returned.
    pub async fn waiting(
        &self,
        line: &WaitingIn,
        cursor: &mut ListCursor,
        count: usize,
    ) -> Result<Vec<Listed>, Error> {
        let keys = &self.store.keys;
        let key = match line {
            WaitingIn::Lane(lane) => keys.lane(lane.name()),
            WaitingIn::Returned => keys.returned(),
        };
        let count = count.clamp(1, COUNT_MAX);
        let call = self.peek(&key, cursor, count, CUT);
        let piece = self.store.try_repeat(&call).await;
        let piece = piece.map_err(|error| self.store.explain(error))?;
        (cursor.place, cursor.inside, cursor.over) = (piece.place, piece.inside, piece.over);
        Ok(piece.messages)
    }

    /// Messages that workers have claimed and not settled, by worker. Whether a handler runs already, only its process
    /// knows.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads. The cursor moves when a page is returned.
    pub async fn claimed(
        &self,
        cursor: &mut ListCursor,
        count: usize,
    ) -> Result<Vec<Listed>, Error> {
        let (page, ahead) = self
            .read_claimed(cursor, count.clamp(1, COUNT_MAX))
            .await
            .map_err(|error| self.store.explain(error))?;
        *cursor = ahead;
        Ok(page)
    }

    async fn read_claimed(
        &self,
        from: &ListCursor,
        count: usize,
    ) -> Result<(Vec<Listed>, ListCursor), StoreError> {
        let keys = &self.store.keys;
        let call = Call::plain("ZRANGE").arg(keys.members()).arg(0).arg(-1);
        let members = self.store.try_repeat(&call.reading(Reply::into_texts)).await?;
        let call = Call::plain("SMEMBERS").arg(keys.orphans());
        let orphans = self.store.try_repeat(&call.reading(Reply::into_texts)).await?;
        let mut members: Vec<MemberId> =
            members.iter().chain(&orphans).filter_map(|id| MemberId::from_redis(id)).collect();
        members.sort();
        let begun = from.block.as_ref();
        members.retain(|id| begun.is_none_or(|(first, _)| id >= first));
        let (mut page, mut at) = (Vec::new(), from.clone());
        for member in members {
            for (number, since) in self.blocks_of(&member).await? {
                let here = Some((member.clone(), number));
                match &at.block {
                    Some((first, block)) if *first == member && number < *block => continue,
                    block if *block == here => {}
                    _ => at = ListCursor { block: here, ..ListCursor::default() },
                }
                while !at.over {
                    if page.len() == count {
                        return Ok((page, at));
                    }
                    let piece = self.read_block(&at, count - page.len(), CUT).await?;
                    (at.place, at.inside, at.over) = (piece.place, piece.inside, piece.over);
                    page.extend(piece.messages.into_iter().map(|mut one| {
                        (one.at.block, one.claim) =
                            (at.block.clone(), Some((member.clone(), since)));
                        one
                    }));
                }
            }
        }
        at.over = true;
        Ok((page, at))
    }

    /// The open blocks of a member, by number, and when they were fetched.
    async fn blocks_of(&self, member: &MemberId) -> Result<Vec<(u64, SystemTime)>, StoreError> {
        let call = Call::plain("HGETALL").arg(self.store.keys.blocks(member));
        let fields = self.store.try_repeat(&call.reading(Reply::into_pairs)).await?;
        let mut blocks = Vec::new();
        for (number, block) in fields {
            let Ok(number) = number.parse::<u64>() else { continue }; // `hi`
            let text = block.into_text()?;
            let stamp_us = text.split(':').nth(1).and_then(|stamp| stamp.parse::<u64>().ok());
            blocks.push((number, at_ms(stamp_us.unwrap_or(0) / 1000)));
        }
        blocks.sort_by_key(|(number, _)| *number);
        Ok(blocks)
    }

    async fn read_block(
        &self,
        at: &ListCursor,
        count: usize,
        cut: usize,
    ) -> Result<Piece, StoreError> {
        let Some((member, number)) = &at.block else {
            return Err(StoreError::odd("a cursor without a block"));
        };
        let keys = &self.store.keys;
        // A block is a list or a pack, never both.
        let pack = self.peek(&keys.pack(member, *number), at, count, cut);
        let piece = self.store.try_repeat(&pack).await?;
        if !(piece.over && piece.messages.is_empty()) {
            return Ok(piece);
        }
        self.store.try_repeat(&self.peek(&keys.block(member, *number), at, count, cut)).await
    }

    /// The whole payload of a message that was listed here; `None` if another one is there now.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn whole_payload(
        &self,
        line: &WaitingIn,
        id: &str,
        at: &ListCursor,
    ) -> Result<Option<Vec<u8>>, Error> {
        let keys = &self.store.keys;
        let read = async {
            match (&at.block, line) {
                (Some(_), _) => self.read_block(at, 1, WHOLE).await,
                (None, WaitingIn::Lane(lane)) => {
                    self.store.try_repeat(&self.peek(&keys.lane(lane.name()), at, 1, WHOLE)).await
                }
                (None, WaitingIn::Returned) => {
                    self.store.try_repeat(&self.peek(&keys.returned(), at, 1, WHOLE)).await
                }
            }
        };
        let piece = read.await.map_err(|error| self.store.explain(error))?;
        let found = piece.messages.into_iter().find(|one| one.id.as_str() == id);
        Ok(found.map(|one| one.payload))
    }

    fn peek(&self, key: &str, at: &ListCursor, count: usize, cut: usize) -> Call<Piece> {
        PEEK.call(&[key.to_owned()])
            .arg(at.place)
            .arg(at.inside)
            .arg(count)
            .arg(cut)
            .arg(self.store.keys.chunks())
            .answering(PIECE_BYTES.max(cut))
            .reading(Piece::read)
    }
}

impl Piece {
    fn read(reply: Reply) -> Result<Piece, StoreError> {
        let over = match reply.tag() {
            "end" => true,
            "ok" => false,
            _ => return Err(reply.unexpected()),
        };
        let (place, inside) = (reply.number(0)? as u64, reply.number(1)? as u64);
        let mut parts = reply.into_parts().into_iter().skip(2);
        let mut messages = Vec::new();
        while let (Some(place), Some(inside), Some(envelope), Some(bytes)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        {
            let (place, inside) = (place.into_number()? as u64, inside.into_number()? as u64);
            let at = ListCursor { place, inside, ..ListCursor::default() };
            messages.push(Listed::read(envelope.into_bytes()?, bytes.into_number()? as usize, at));
        }
        Ok(Piece { over, place, inside, messages })
    }
}

impl Listed {
    fn read(envelope: Vec<u8>, bytes: usize, at: ListCursor) -> Listed {
        let shown = envelope.len();
        let message = Message::parse(envelope).unwrap_or_else(Message::unreadable);
        let head = shown - message.payload().len().min(shown);
        Listed {
            id: message.id().clone(),
            kind: message.kind().map(str::to_owned),
            lane: message.lane(),
            attempt: message.attempt(),
            retry: message.retry(),
            generated_at: message.generated_at(),
            payload_bytes: bytes.saturating_sub(head),
            payload: message.into_payload(),
            claim: None,
            at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        for text in ["0.0", "12.40", "7f001122:3:0.999"] {
            assert_eq!(text.parse::<ListCursor>().expect("a cursor").to_string(), text);
        }
        for wrong in ["", "1", "x.y", "1.2.3", "-1.0", "a:b:1.2", "../x:1:1.2", "99999999999999.0"]
        {
            assert!(wrong.parse::<ListCursor>().is_err(), "{wrong}");
        }
    }
}
