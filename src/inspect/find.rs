//! Finding one message.
//!
//! **Invariant:** a message that does not move is found. A message that moves meanwhile may be missed
//! once, so the search runs twice before the message counts as gone.

use std::time::SystemTime;

use crate::Error;
use crate::fleet::Fleet;
use crate::id::{MemberId, MessageId};
use crate::json_time::at_ms;
use crate::lane::Lane;
use crate::membership::MemberInfo;
use crate::message::Message;
use crate::outcome::{ErrorRecord, drains, record_of};
use crate::store::{Call, Reply, Script, StoreError};
use crate::term::Term;

static FIND: Script = Script::new("find", include_str!("find.lua"));

/// The most messages that one call reads.
const PIECE_MAX: usize = 1000;
/// About how many bytes one call reads.
const PIECE_BYTES: usize = 1 << 20;

/// The queue in which a message waits.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// use artel::{Lane, MessageState, WaitingIn};
///
/// let id = fleet.sender().lane(Lane::High).send("order 7").await?.id;
/// let MessageState::Waiting { line, .. } = fleet.find(id.as_str()).await? else { panic!("it waits") };
/// assert_eq!(line, WaitingIn::Lane(Lane::High));
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum WaitingIn {
    /// The lane it was added to.
    Lane(Lane),
    /// The lane `returned` for the messages of dead workers, which is served first.
    Returned,
}

/// Where a message is, or how it ended.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// use artel::MessageState;
///
/// let id = fleet.send("order 7").await?.id;
/// match fleet.find(id.as_str()).await? {
///     MessageState::Waiting { ahead, attempt, .. } => assert_eq!((ahead, attempt), (0, 1)),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MessageState {
    /// No worker has it yet.
    Waiting {
        /// Where it waits.
        line: WaitingIn,
        /// How many messages are in front of it.
        ahead: u64,
        /// The attempt that comes next.
        attempt: u32,
        /// When it was added, Redis time.
        since: SystemTime,
    },
    /// It waits for a time: it was sent for later, or will be retried.
    Scheduled {
        /// When it is due, Redis time.
        due: SystemTime,
        /// The attempt that comes next.
        attempt: u32,
        /// How often it was retried already.
        retry: u32,
        /// How often a member that got it had no handler for its kind.
        waits: u32,
        /// When it was added, Redis time.
        since: SystemTime,
    },
    /// A worker has it.
    Claimed {
        /// That worker's session.
        member: MemberId,
        /// That worker's name for people.
        label: String,
        /// Where it runs, as `host:pid`.
        process: String,
        /// That worker is dead: another one will get the message soon.
        is_dead: bool,
        /// Which attempt it is.
        attempt: u32,
    },
    /// It is stored as failed.
    Failed {
        /// Its record.
        record: Box<ErrorRecord>,
        /// It is being taken at this moment.
        is_being_taken: bool,
    },
    /// It is done, according to the ledger.
    Done {
        /// The session that completed it, if the ledger knows.
        member: Option<MemberId>,
        /// By this attempt.
        attempt: u32,
        /// When, Redis time.
        at: SystemTime,
    },
    /// It failed, according to the ledger, and is no longer stored: it was taken, put back, dropped or cancelled, or
    /// its kind does not keep failures.
    FailedAndGone {
        /// When it failed, Redis time.
        at: SystemTime,
    },
    /// It was not added: a message was sent under its key before.
    Duplicate {
        /// The id of that message.
        of: MessageId,
    },
    /// Its number was used, but it is neither waiting, claimed nor stored as failed.
    Ended {
        /// It is certainly done: no failed message of this fleet was ever taken, put back, dropped, cancelled
        /// or not kept, and no sent message was a duplicate. Otherwise it may be one of those. Only a ledger
        /// would show that.
        is_done: bool,
    },
    /// Nothing is known about it.
    Unknown,
}

impl Fleet {
    /// Searches for a message by its id. It reads all messages that wait, are claimed or are stored, in
    /// small pieces: with millions of messages that takes seconds.
    ///
    /// # Errors
    ///
    /// If it is not an id, or Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn find(&self, id: &str) -> Result<MessageState, Error> {
        let id: MessageId = id.parse().map_err(|problem| Error::Config { field: "id", problem })?;
        self.compare().await?;
        let found = async {
            for _ in 0..2 {
                if let Some(waits) = self.schedule().find(&id).await? {
                    return Ok(MessageState::Scheduled {
                        due: waits.due,
                        attempt: waits.attempt,
                        retry: waits.retry,
                        waits: waits.waits,
                        since: waits.generated_at,
                    });
                }
                if let Some(state) = self.look_for(&id).await? {
                    return Ok(state);
                }
            }
            match self.was_used(&id).await? {
                Used::Yes => Ok(MessageState::Ended { is_done: self.all_are_done().await? }),
                Used::ByDuplicate(of) => Ok(MessageState::Duplicate { of }),
                Used::No => Ok(MessageState::Unknown),
            }
        };
        found.await.map_err(|error| self.store.explain(error))
    }

    /// Redis time, to compute how long ago something was.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn now(&self) -> Result<SystemTime, Error> {
        self.store.time_ms().await.map(at_ms).map_err(|error| self.store.explain(error))
    }

    async fn look_for(&self, id: &MessageId) -> Result<Option<MessageState>, StoreError> {
        let keys = &self.store.keys;
        let mut lines = vec![(WaitingIn::Returned, keys.returned())];
        lines.extend(Lane::ALL.map(|lane| (WaitingIn::Lane(lane), keys.lane(lane.name()))));
        for (line, key) in lines {
            if let Some(found) = self.look_in(&key, id).await? {
                let (attempt, since) = head(&found.reply)?;
                let ahead = self.ahead(&key, &found).await?;
                return Ok(Some(MessageState::Waiting { line, ahead, attempt, since }));
            }
        }
        for (set, is_dead) in [(keys.members(), false), (keys.orphans(), true)] {
            for member in self.ids(&set, is_dead).await? {
                if let Some(state) = self.look_at_blocks(&member, is_dead, id).await? {
                    return Ok(Some(state));
                }
            }
        }
        let mut stored = vec![(keys.errors(), false)];
        let tokens = drains(&self.store).await.unwrap_or_default();
        stored.extend(tokens.iter().map(|token| (keys.drain(token), true)));
        for (stream, is_being_taken) in stored {
            if let Some(found) = self.look_in(&stream, id).await? {
                let (position, fields) = entry(found.reply)?;
                let record = Box::new(record_of(position, fields)?);
                return Ok(Some(MessageState::Failed { record, is_being_taken }));
            }
        }
        let Some(found) = self.look_in(&keys.ledger(), id).await? else { return Ok(None) };
        let (position, fields) = entry(found.reply)?;
        let at = at_ms(position.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(0));
        let field = |wanted: &str| {
            let value = fields.iter().find(|(name, _)| name == wanted);
            value.and_then(|(_, value)| value.clone().into_text().ok()).unwrap_or_default()
        };
        Ok(Some(match field("outcome").as_str() {
            "failed" => MessageState::FailedAndGone { at },
            _ => {
                let member = MemberId::from_redis(&field("member"));
                let attempt = field("attempt").parse().unwrap_or(1);
                MessageState::Done { member, attempt, at }
            }
        }))
    }

    /// The ids in `members` or in `orphans`.
    async fn ids(&self, key: &str, is_set: bool) -> Result<Vec<MemberId>, StoreError> {
        let call = match is_set {
            true => Call::plain("SMEMBERS").arg(key),
            false => Call::plain("ZRANGE").arg(key).arg(0).arg(-1),
        };
        let ids = self.store.try_repeat(&call.reading(Reply::into_texts)).await?;
        Ok(ids.iter().filter_map(|id| MemberId::from_redis(id)).collect())
    }

    async fn look_at_blocks(
        &self,
        member: &MemberId,
        is_dead: bool,
        id: &MessageId,
    ) -> Result<Option<MessageState>, StoreError> {
        let keys = &self.store.keys;
        let call = Call::plain("HGETALL").arg(keys.blocks(member)).reading(Reply::into_pairs);
        for (number, block) in self.store.try_repeat(&call).await? {
            let Ok(number) = number.parse::<u64>() else { continue }; // `hi`
            let block = block.into_text()?;
            let left = block.split(':').next().unwrap_or("0");
            let packed = FIND.call(&[keys.pack(member, number)]).arg(id.as_str()).arg("").arg(left);
            let packed = self.store.try_repeat(&packed).await?;
            let found = match packed.tag() {
                "found" => Some(Found { reply: packed, extra: 0 }),
                _ => self.look_in(&keys.block(member, number), id).await?,
            };
            if let Some(found) = found {
                let (attempt, _) = head(&found.reply)?;
                let timeout = crate::store::ONCE_TIMEOUT;
                let info = MemberInfo::read(&self.store.work, keys, member, timeout).await?;
                let process = format!("{}:{}", info.host, info.pid);
                let (member, label) = (member.clone(), info.label);
                return Ok(Some(MessageState::Claimed {
                    member,
                    label,
                    process,
                    is_dead,
                    attempt,
                }));
            }
        }
        Ok(None)
    }

    /// Searches one list or stream, piece by piece.
    async fn look_in(&self, key: &str, id: &MessageId) -> Result<Option<Found>, StoreError> {
        let (mut from, mut count, mut extra) = (String::new(), 1, 0);
        loop {
            let call = FIND.call(&[key.to_owned()]).arg(id.as_str()).arg(&from).arg(count);
            let reply = self.store.try_repeat(&call.answering(PIECE_BYTES)).await?;
            match reply.tag() {
                "end" => return Ok(None),
                "found" => {
                    extra += reply.number(2).unwrap_or(0);
                    return Ok(Some(Found { reply, extra }));
                }
                "more" => {
                    extra += reply.number(2).unwrap_or(0);
                    from = reply.text(0)?;
                    let mean = (reply.number(1)? as usize / count).max(1);
                    count = (PIECE_BYTES / mean).clamp(1, (count * 4).min(PIECE_MAX));
                }
                _ => return Err(reply.unexpected()),
            }
        }
    }

    /// How many messages are in front of one that was found in a lane. Chunks count for all their messages.
    async fn ahead(&self, lane: &str, found: &Found) -> Result<u64, StoreError> {
        let name = lane.rsplit(':').next().unwrap_or_default();
        let call = Call::plain("HGET").arg(self.store.keys.counts()).arg(format!("extra:{name}"));
        let extra = self.store.try_repeat(&call).await?.into_number().unwrap_or(0);
        Ok((found.reply.number(1)? + extra - found.extra).max(0) as u64)
    }

    /// Are all messages that were added and are no longer stored done?
    async fn all_are_done(&self) -> Result<bool, StoreError> {
        let call = Call::plain("HMGET").arg(self.store.keys.counts());
        let call =
            call.arg("taken").arg("requeued").arg("dropped").arg("duplicates").arg("forgotten");
        let counts = self.store.try_repeat(&call.reading(Reply::into_list)).await?;
        Ok(!counts.into_iter().any(|count| count.into_text().is_ok_and(|count| count != "0")))
    }

    /// Was this number ever used, as far as Redis remembers?
    async fn was_used(&self, id: &MessageId) -> Result<Used, StoreError> {
        let keys = &self.store.keys;
        let (maker, seq) = id.as_str().rsplit_once('-').unwrap_or_default();
        let Ok(seq) = seq.parse::<i64>() else { return Ok(Used::No) };
        let last = match Term::parse(maker) {
            Some(_) => {
                let last = self.store.try_repeat(&Call::plain("GET").arg(keys.last())).await?;
                let last = last.into_text().unwrap_or_default();
                let of_term = last.strip_prefix(maker).and_then(|rest| rest.strip_prefix('-'));
                of_term.and_then(|seq| seq.parse().ok())
            }
            // Of a periodic entry: `c<entry>-<time>`.
            None if maker.starts_with('c') => {
                let call = Call::plain("HGET").arg(keys.fired()).arg(&maker[1..]);
                self.store.try_repeat(&call).await?.into_number().ok()
            }
            None => {
                let key = keys.sent(maker.trim_start_matches('s'));
                let last = self.store.try_repeat(&Call::plain("GET").arg(key)).await?;
                let last = last.into_text().unwrap_or_default();
                let (last, of) = last.split_once('|').unwrap_or((&last, ""));
                let last = last.parse().ok();
                if let (true, Some(of)) = (last == Some(seq), MessageId::from_redis(of)) {
                    return Ok(Used::ByDuplicate(of));
                }
                last
            }
        };
        let used = last.is_some_and(|last: i64| (1..=last).contains(&seq));
        Ok(if used { Used::Yes } else { Used::No })
    }
}

/// An entry of a list or a stream.
struct Found {
    reply: Reply,
    /// How many messages of chunks, beyond one per reference, are behind it.
    extra: i64,
}

/// Whether a number was used.
enum Used {
    Yes,
    ByDuplicate(MessageId),
    No,
}

/// The attempt and the time of an envelope that was found.
fn head(found: &Reply) -> Result<(u32, SystemTime), StoreError> {
    let message = Message::parse(found.bytes(0)?);
    let message = message.map_err(|_| StoreError::odd("a message of another version"))?;
    Ok((message.attempt(), message.generated_at()))
}

/// The position of an entry of a stream, and its fields.
fn entry(found: Reply) -> Result<(String, Vec<(String, Reply)>), StoreError> {
    let mut parts = found.into_parts().into_iter();
    let position = parts.next().ok_or_else(|| StoreError::odd("an entry that is too short"))?;
    let mut fields = Vec::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        fields.push((name.into_text()?, value));
    }
    Ok((position.into_text()?, fields))
}
