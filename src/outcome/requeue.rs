//! [`Requeuer`]: puts failed messages back to work.
//!
//! **Invariant:** a record is removed by the same script that adds the new message, so a message is never lost and never put
//! back twice.

use super::error_store::{CHUNK_BYTES_MAX, ErrorStore, PAGE};
use super::record::ErrorRecord;
use crate::Error;
use crate::fleet::Fleet;
use crate::lane::Lane;
use crate::store::{Call, PROTOCOL, Reply, Script, StoreError, nonce};

static REQUEUE: Script =
    Script::new("requeue", include_str!("requeue.lua")).lasting(&["ok", "already"]);

/// The result of putting records back to work.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// # let handler = |_: artel::Message, _: artel::Context| async { artel::Outcome::failed("no such customer") };
/// # let member = fleet.join().handle(handler).start().await?;
/// # fleet.send("order 7").await?;
/// # while fleet.errors().count().await? == 0 {
/// #     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
/// # }
/// # member.shutdown().await;
///
/// use artel::Cursor;
///
/// let page = fleet.errors().page(&mut Cursor::default(), 10).await?;
/// let requeued = fleet.errors().requeue(None).put_back(&page).await?;
/// assert_eq!((requeued.messages, requeued.unreadable), (1, 0));
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Requeued {
    /// New messages, one for each record that was removed.
    pub messages: u64,
    /// Records that stay: this version cannot read them, or another message of their periodic entry is not over.
    pub unreadable: u64,
}

impl ErrorStore {
    /// Begins to put records back to work: into this lane, or each into its own (`normal` for generated
    /// messages).
    pub fn requeue(&self, lane: Option<Lane>) -> Requeuer {
        let (fleet, done) = (self.fleet.clone(), Requeued::default());
        Requeuer { fleet, lane, name: nonce(), next: 1, in_doubt: false, done }
    }
}

/// Puts failed messages back to work: each as a new message, with the old id as its `origin`.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// # let handler = |_: artel::Message, _: artel::Context| async { artel::Outcome::failed("no such customer") };
/// # let member = fleet.join().handle(handler).start().await?;
/// # fleet.send("order 7").await?;
/// # while fleet.errors().count().await? == 0 {
/// #     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
/// # }
/// # member.shutdown().await;
///
/// use artel::{Cursor, Lane};
///
/// let (errors, mut cursor) = (fleet.errors(), Cursor::default());
/// let mut requeuer = errors.requeue(Some(Lane::Low));
/// loop {
///     let page = errors.page(&mut cursor, 100).await?;
///     if page.is_empty() {
///         break;
///     }
///     requeuer.put_back(&page).await?;
/// }
/// assert_eq!(requeuer.done().messages, 1);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Requeuer {
    fleet: Fleet,
    lane: Option<Lane>,
    name: String,
    next: u64,
    /// A call was sent under `next` and its answer was never received.
    in_doubt: bool,
    done: Requeued,
}

impl Requeuer {
    /// What was put back so far, by the calls that were answered.
    pub fn done(&self) -> Requeued {
        self.done
    }

    /// Puts these records back to work. Records that are no longer stored are left out. Returns what
    /// this call did.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if there is no room: then [`done`](Self::done) says what was put back before,
    /// and the rest is still stored.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the records may have been put back or not, but never twice.
    pub async fn put_back(&mut self, records: &[ErrorRecord]) -> Result<Requeued, Error> {
        self.lane.map_or(Ok(()), Lane::check_open)?;
        self.fleet.compare().await?;
        self.fleet.store.count_steps();
        let (mut total, mut rest) = (Requeued::default(), records);
        while !rest.is_empty() {
            let (moved, looked) = self.chunk(&rest[..rest.len().min(PAGE)]).await?;
            for sum in [&mut total, &mut self.done] {
                sum.messages += moved.messages;
                sum.unreadable += moved.unreadable;
            }
            rest = &rest[looked.clamp(1, rest.len())..];
        }
        Ok(total)
    }

    /// Puts back the first of these records, as many as one script moves. Also returns how many it has
    /// read.
    async fn chunk(&mut self, records: &[ErrorRecord]) -> Result<(Requeued, usize), Error> {
        loop {
            if std::mem::replace(&mut self.in_doubt, true) {
                // Removing a record is what must happen once. Under a new name only its count is lost.
                self.name = nonce();
                self.next = 1;
            }
            let call = self.call(records);
            let reply = match self.fleet.store.repeat(&call).await {
                Err(Error::Refused { reason }) if reason.starts_with("OOM") => {
                    return Err(Error::Full { reason: "Redis is out of memory".to_owned() });
                }
                reply => reply?,
            };
            match reply {
                Answer::Moved { messages, unreadable, looked } => {
                    self.next += messages;
                    self.in_doubt = false;
                    return Ok((Requeued { messages, unreadable }, looked));
                }
                Answer::Full(max) => {
                    return Err(Error::Full { reason: format!("{max} messages wait already") });
                }
                Answer::Protocol(theirs) => return Err(self.fleet.store.other_protocol(&theirs)),
                Answer::Forgotten => {} // again, under another name
            }
        }
    }

    fn call(&self, records: &[ErrorRecord]) -> Call<Answer> {
        let keys = &self.fleet.store.keys;
        let mut all = keys.jobs();
        all.extend([keys.errors(), keys.sent(&self.name), keys.config(), keys.notices()]);
        let mut call = REQUEUE
            .call(&all)
            .arg(&self.name)
            .arg(self.next)
            .arg(self.lane.map_or(String::new(), |lane| lane.letter().to_string()))
            .arg(PROTOCOL)
            .arg(CHUNK_BYTES_MAX)
            .arg(self.fleet.who());
        for record in records {
            call.push_arg(&record.position);
        }
        call.reading(Answer::read)
    }
}

/// What Redis answered to a call that puts records back to work.
enum Answer {
    Moved {
        messages: u64,
        unreadable: u64,
        /// How many records were read. The others are for another call.
        looked: usize,
    },
    /// This many messages wait already.
    Full(String),
    Protocol(String),
    /// The numbers were forgotten.
    Forgotten,
}

impl Answer {
    fn read(reply: Reply) -> Result<Answer, StoreError> {
        match reply.tag() {
            "ok" | "already" => Ok(Answer::Moved {
                messages: reply.number(0)? as u64,
                unreadable: reply.number(1)? as u64,
                looked: reply.number(2)? as usize,
            }),
            "full" => Ok(Answer::Full(reply.text(0)?)),
            "protocol" => Ok(Answer::Protocol(reply.text(0)?)),
            "gap" => Ok(Answer::Forgotten),
            _ => Err(reply.unexpected()),
        }
    }
}

impl std::fmt::Debug for Requeuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requeuer").field("done", &self.done).finish_non_exhaustive()
    }
}
