//! Adding the messages of senders.
//!
//! **Invariant:** a batch is added whole or not at all, once, however often it is repeated: its numbers
//! are bound to it until Redis has answered. A number whose answer never came is never used for
//! anything else: its sender goes on under a new name. Redis accepts numbers only under a name it
//! knows. A sender enrolls first, once per name, so a forgotten name is refused and never starts again.

use std::borrow::Cow;
use std::time::Duration;

use tracing::Instrument;

use crate::Error;
use crate::fleet::{Budget, Fleet};
use crate::id::MessageId;
use crate::lane::Lane;
use crate::message::NewMessage;
use crate::trace;

use super::pack::is_packed;

/// How long an unanswered batch is repeated, with the same bytes, unless the sender sets another time.
const TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);
/// How long a key is remembered, unless the sender sets another time.
const DEDUP: Duration = Duration::from_secs(86_400);
const DEDUP_MAX: Duration = Duration::from_secs(30 * 86_400);
pub(super) const KEY_BYTES_MAX: usize = 200;

/// A message that was sent.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let sender = fleet.sender();
/// let first = sender.send_once("order-7", "order 7").await?;
/// let again = sender.send_once("order-7", "order 7").await?;
/// assert!(first.is_new && !again.is_new);
/// assert_eq!(first.id, again.id);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Sent {
    /// Its id. For a duplicate it is the id of the earlier message.
    pub id: MessageId,
    /// False if a message was sent under the same key before, so this one was not added.
    pub is_new: bool,
}

/// Adds messages to a lane. It needs no session: a sender is not a member.
///
/// Calls of one sender, and of its clones, may run side by side. Small batches that are sent at the same time travel to
/// Redis together: each is added whole or not at all, and has its own ids. A call ends within the time-out (default 5 s).
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let fleet = artel::Fleet::connect(url, "orders").await?;
/// let urgent = fleet.sender().lane(artel::Lane::High);
/// urgent.send_all(&["one".into(), "two".into()]).await?;
/// // The second one under the same key is not added.
/// let first = urgent.send_once("order 7", "pay").await?;
/// let second = urgent.send_once("order 7", "pay").await?;
/// assert!(first.is_new && !second.is_new && first.id == second.id);
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Sender {
    pub(super) fleet: Fleet,
    pub(super) lane: Lane,
    pub(super) remember: Duration,
    pub(super) timeout: Duration,
    /// How many of the last messages are kept.
    pub(super) keep: usize,
}

impl Fleet {
    /// A sender: it sends to other lanes, many messages at once, or once per key. All senders of one
    /// `Fleet` share their names.
    pub fn sender(&self) -> Sender {
        Sender {
            fleet: self.clone(),
            lane: Lane::Normal,
            remember: DEDUP,
            timeout: TIMEOUT,
            keep: 0,
        }
    }

    /// Adds a message to the lane `normal`, for any worker of the fleet.
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let fleet = artel::Fleet::connect(url, "orders").await?;
    /// let sent = fleet.send("hello").await?;
    /// assert!(sent.is_new && sent.id.as_str().starts_with('s'));
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Sender::send_all`].
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the message may have been added or not, but never twice.
    pub async fn send(&self, message: impl Into<NewMessage>) -> Result<Sent, Error> {
        self.sender().send(message).await
    }
}

impl Sender {
    /// The most messages in one batch.
    pub const BATCH_MAX: usize = 1000;
    /// The most bytes of payload in one batch, unless it is a single message.
    pub const BATCH_BYTES_MAX: usize = 1 << 20;

    /// Sends to this lane from now on (default `normal`).
    pub fn lane(mut self, lane: Lane) -> Sender {
        self.lane = lane;
        self
    }

    /// Remembers the keys of [`send_once`](Self::send_once) for this long (default one day).
    pub fn remember(mut self, time: Duration) -> Sender {
        self.remember = time;
        self
    }

    /// How long a call may take, also while Redis is down (default 5 s).
    pub fn timeout(mut self, time: Duration) -> Sender {
        self.timeout = time;
        self
    }

    /// Keeps the last `n` messages that were sent. If Redis forgets some of them, because another server became the primary
    /// that did not have them yet, they are sent again, under other ids. Without it a call that finds this out ends with
    /// [`Error::Forgotten`]. Senders of one `Fleet` keep together.
    pub fn keep(mut self, n: usize) -> Sender {
        self.keep = n;
        self
    }

    /// Adds one message.
    ///
    /// # Errors
    ///
    /// As [`send_all`](Self::send_all).
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the message may have been added or not, but never twice.
    pub async fn send(&self, message: impl Into<NewMessage>) -> Result<Sent, Error> {
        let id = self.send_batch(vec![message.into()].into()).await?;
        Ok(Sent { id, is_new: true })
    }

    /// Adds one message, unless one was sent under the same key before.
    ///
    /// # Errors
    ///
    /// As [`send_all`](Self::send_all).
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the message may have been added or not, but never twice.
    pub async fn send_once(
        &self,
        key: &str,
        message: impl Into<NewMessage>,
    ) -> Result<Sent, Error> {
        let problem = match () {
            () if key.is_empty() || key.len() > KEY_BYTES_MAX => {
                format!("must have 1 to {KEY_BYTES_MAX} bytes, and has {}", key.len())
            }
            () if self.remember.as_millis() == 0 || self.remember > DEDUP_MAX => {
                format!("is remembered for 1ms to {DEDUP_MAX:?}, not {:?}", self.remember)
            }
            () => {
                let mut messages = Cow::from(vec![message.into()]);
                let budget = self.begin(&messages).await?;
                let span = trace::send(self.lane.name(), 1);
                trace::carry(&span, &mut messages);
                let sent = self.send_alone(&messages, Some(key), budget).instrument(span.clone());
                let sent = sent.await;
                trace::sent(&span, sent.as_ref().ok().map(|sent| &sent.id));
                return sent.map_err(|error| error.into_error(1, true, budget));
            }
        };
        Err(Error::Config { field: "dedup", problem })
    }

    /// Adds all of these messages or none. A batch has at most 1,000 messages, and at most 1 MiB of
    /// payload unless it is a single message.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if there is no room, [`Error::Unreachable`] if Redis could not be reached in time,
    /// [`Error::PayloadTooLarge`] and [`Error::BatchTooLarge`]: then none was added. [`Error::InDoubt`] if
    /// they were sent and Redis did not answer in time: then it is not known whether they were added.
    /// [`Error::Forgotten`] if Redis has lost messages of earlier calls; then none of these was added, and the call may be
    /// repeated.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the messages may have been added or not, but never twice.
    pub async fn send_all(&self, messages: &[NewMessage]) -> Result<Vec<MessageId>, Error> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let first = self.send_batch(messages.into()).await?;
        Ok((0..messages.len() as u64).map(|count| first.following(count)).collect())
    }

    /// Adds these messages without a key. Returns the id of the first.
    async fn send_batch(&self, mut messages: Cow<'_, [NewMessage]>) -> Result<MessageId, Error> {
        let budget = self.begin(&messages).await?;
        let span = trace::send(self.lane.name(), messages.len());
        trace::carry(&span, &mut messages);
        let count = messages.len();
        let bytes = messages.iter().map(|message| message.payload().len()).sum();
        // What makes a pack by itself gains nothing by travelling with others. What waits for a time may be refused by
        // itself, and then the others must not be.
        // And one that is kept is kept by this sender alone.
        let alone =
            is_packed(count, bytes) || self.keep > 0 || messages.iter().any(NewMessage::is_posted);
        let sent = match alone {
            true => {
                let sent = self.send_alone(&messages, None, budget).instrument(span.clone());
                sent.await.map(|sent| sent.id)
            }
            false => self.send_in_line(messages, budget).instrument(span.clone()).await,
        };
        trace::sent(&span, sent.as_ref().ok());
        sent.map_err(|error| error.into_error(count, false, budget))
    }

    /// Refuses messages that cannot be sent. The time of the call begins.
    pub(super) async fn begin(&self, messages: &[NewMessage]) -> Result<Budget, Error> {
        self.check(messages)?;
        self.fleet.compare().await?;
        self.tell_forgotten()?;
        Ok(Budget::new(self.timeout))
    }

    fn check(&self, messages: &[NewMessage]) -> Result<(), Error> {
        self.lane.check_open()?;
        if self.timeout.is_zero() || self.timeout > TIMEOUT_MAX {
            let problem = format!("must be more than 0 and at most {TIMEOUT_MAX:?}");
            return Err(Error::Config { field: "timeout", problem });
        }
        for message in messages {
            message.check(self.fleet.payload_bytes_max)?;
        }
        let bytes: usize = messages.iter().map(|message| message.payload().len()).sum();
        let (count, most) = (messages.len(), (Sender::BATCH_MAX, Sender::BATCH_BYTES_MAX));
        if count > most.0 || (count > 1 && bytes > most.1) {
            let messages = messages.len();
            let max = "at most 1,000 messages and 1 MiB at once";
            return Err(Error::BatchTooLarge { messages, bytes, max });
        }
        Ok(())
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("lane", &self.lane).finish_non_exhaustive()
    }
}
