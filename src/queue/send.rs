//! Adding the messages of senders.
//!
//! **Invariant:** a batch is added whole or not at all, once, however often it is repeated: its numbers
//! are bound to it until Redis has answered. A number whose answer never came is never used for
//! anything else: its sender goes on under a new name. Redis accepts numbers only under a name it
//! knows. A sender enrolls first, once per name, so a forgotten name is refused and never starts again.

use std::time::Duration;

use crate::Error;
use crate::clock::Moment;
use crate::error::Unreached;
use crate::fleet::{CALLS_MAX, Fleet, Numbers};
use crate::id::MessageId;
use crate::mutant::{Rule, disabled};
use crate::store::{Call, PROTOCOL, Reply, Script, StoreError, nonce};

use super::message::{Lane, NewMessage};
use super::pack::Numbered;
use super::push::full;

static SEND: Script = Script::new("send", include_str!("send.lua"));
static ENROLL: Script = Script::new("enroll", include_str!("enroll.lua"));

/// How long one try waits for its answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an unanswered batch is repeated, with the same bytes, unless the sender sets another time.
const TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);
/// Pause before an unanswered batch is repeated.
const RETRY: Duration = Duration::from_millis(50);
/// How long a key is remembered, unless the sender sets another time.
const DEDUP: Duration = Duration::from_secs(86_400);
const DEDUP_MAX: Duration = Duration::from_secs(30 * 86_400);
const DEDUP_KEY_BYTES_MAX: usize = 200;

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
/// Calls of one sender, and of its clones, run side by side: none waits for another. Each ends within
/// the time-out (default 5 s).
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
    fleet: Fleet,
    lane: Lane,
    remember: Duration,
    timeout: Duration,
}

impl Fleet {
    /// A sender: it sends to other lanes, many messages at once, or once per key. All senders of one
    /// `Fleet` share their names.
    pub fn sender(&self) -> Sender {
        Sender { fleet: self.clone(), lane: Lane::Normal, remember: DEDUP, timeout: TIMEOUT }
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

/// How long a call may take.
#[derive(Clone, Copy)]
struct Budget {
    began: Moment,
    timeout: Duration,
}

impl Budget {
    fn left(self) -> Duration {
        (self.began + self.timeout).since(Moment::now())
    }

    fn is_over(self) -> bool {
        self.left().is_zero()
    }

    /// How long one try may wait for its answer.
    fn one_try(self) -> Duration {
        self.left().min(CALL_TIMEOUT)
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
        let (first, _) = self.deliver(&[message.into()], None).await?;
        Ok(first)
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
            () if key.is_empty() || key.len() > DEDUP_KEY_BYTES_MAX => {
                format!("must have 1 to {DEDUP_KEY_BYTES_MAX} bytes, and has {}", key.len())
            }
            () if self.remember.as_millis() == 0 || self.remember > DEDUP_MAX => {
                format!("is remembered for 1ms to {DEDUP_MAX:?}, not {:?}", self.remember)
            }
            () => {
                let (first, _) = self.deliver(&[message.into()], Some(key)).await?;
                return Ok(first);
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
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the messages may have been added or not, but never twice.
    pub async fn send_all(&self, messages: &[NewMessage]) -> Result<Vec<MessageId>, Error> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let (first, seq) = self.deliver(messages, None).await?;
        let name = first.id.as_str()[1..].split('-').next().unwrap_or_default();
        Ok((seq..).take(messages.len()).map(|seq| MessageId::sent(name, seq)).collect())
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

    /// Sends one batch until it is answered. Returns the first message and its number.
    async fn deliver(
        &self,
        messages: &[NewMessage],
        key: Option<&str>,
    ) -> Result<(Sent, u64), Error> {
        self.check(messages)?;
        self.fleet.compare().await?;
        let budget = Budget { began: Moment::now(), timeout: self.timeout };
        let turn = tokio::time::timeout(budget.left(), self.fleet.names.calls.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            let redis = self.fleet.store.address().to_owned();
            let reason = format!("{CALLS_MAX} calls of this sender wait for an answer already");
            return Err(Error::Unreachable { redis, reason, why: Unreached::Network });
        };
        let free = self.fleet.names.free().pop();
        let mut numbers = match free {
            Some(numbers) => numbers,
            None => self.enroll(budget).await?,
        };
        let mut call = self.call(&numbers, messages, key);
        // A copy of this batch was sent and not answered. It may have been added, or may still be
        // added, so the refusal of a later copy does not prove that it was not.
        let mut unheard = false;
        loop {
            match self.try_once(&call, &numbers, budget).await {
                Try::Sent(sent) => {
                    let seq = numbers.next;
                    numbers.next += messages.len() as u64;
                    self.fleet.names.free().push(numbers);
                    return Ok((sent, seq));
                }
                Try::Refused { error, keeps_name } if !unheard => {
                    if keeps_name {
                        self.fleet.names.free().push(numbers);
                    }
                    return Err(error);
                }
                Try::Forgotten if !unheard || disabled(Rule::ForgottenIsDoubt) => {
                    numbers = self.enroll(budget).await?;
                    call = self.call(&numbers, messages, key);
                }
                // It can no longer be known whether an unanswered copy was added.
                Try::Forgotten => return Err(in_doubt(&numbers, messages, key, budget)),
                Try::Unheard => unheard = true,
                Try::Refused { .. } | Try::Again => {}
            }
            if budget.is_over() {
                return Err(in_doubt(&numbers, messages, key, budget));
            }
            tokio::time::sleep(RETRY.min(budget.left())).await;
        }
    }

    /// Sends a batch once.
    async fn try_once(&self, call: &Call<Answer>, numbers: &Numbers, budget: Budget) -> Try {
        let refused = |error, keeps_name| Try::Refused { error, keeps_name };
        let epoch = self.fleet.store.work.epoch();
        match self.fleet.store.work.call(call, budget.one_try()).await {
            // Too few replicas have it: repeat the same batch. It is not added again, and is on the
            // replicas then.
            Ok(Answer::Added | Answer::Duplicate(_)) if !self.replicated(budget, epoch).await => {
                Try::Unheard
            }
            Ok(Answer::Added) => {
                let id = MessageId::sent(&numbers.name, numbers.next);
                Try::Sent(Sent { id, is_new: true })
            }
            Ok(Answer::Duplicate(id)) => Try::Sent(Sent { id, is_new: false }),
            Ok(Answer::Full(reason)) => refused(Error::Full { reason }, true),
            Ok(Answer::Protocol(theirs)) => refused(self.fleet.store.other_protocol(&theirs), true),
            Ok(Answer::Forgotten) => Try::Forgotten,
            // It is not known how far such a call got, so its name is not used again.
            Err(error @ StoreError::Odd(_)) => refused(self.fleet.store.explain(error), false),
            Err(error) if error.is_unheard() => {
                tracing::debug!(%error, "send was not answered: it will be repeated");
                Try::Unheard
            }
            Err(error) if error.is_passing() && !budget.is_over() => Try::Again,
            Err(error) if error.is_oom() => {
                refused(Error::Full { reason: "Redis is out of memory".to_owned() }, true)
            }
            Err(error) => {
                let keeps_name = error.is_passing();
                refused(self.fleet.store.explain(error), keeps_name)
            }
        }
    }

    /// Do enough replicas have it? Also without them the batch itself was added.
    async fn replicated(&self, budget: Budget, epoch: u64) -> bool {
        let wanted = self.fleet.durability.replicas();
        let have = self.fleet.store.replicas(wanted, budget.one_try(), epoch).await;
        have.is_ok_and(|have| have >= wanted)
    }

    fn call(&self, numbers: &Numbers, messages: &[NewMessage], key: Option<&str>) -> Call<Answer> {
        let Numbers { name, next, asked, now_ms } = numbers;
        let made_ms = now_ms + Moment::now().since(*asked).as_millis() as u64;
        let keys = &self.fleet.store.keys;
        let lane = keys.lane(self.lane.name());
        let stage = keys.stage(name);
        let mut all = vec![
            keys.sent(name),
            lane,
            keys.counts(),
            keys.wake(),
            keys.config(),
            keys.errors(),
            stage.clone(),
            format!("{}s{name}-{next}", keys.chunks()),
        ];
        all.extend(key.map(|key| keys.dedup(key)));
        let call = SEND
            .call(&all)
            .arg(&**name)
            .arg(*next)
            .arg(PROTOCOL)
            .arg(self.remember.as_millis() as u64);
        let (lane, ids) = (self.lane, format!("s{name}"));
        let batch = Numbered { messages, lane, name: &ids, first: *next, ms: made_ms };
        // A message under a key travels as an envelope.
        let call = batch.add_to(call, key.is_none().then_some(stage));
        call.reading(move |reply| Answer::read(&reply, lane))
    }

    /// Enrolls a new name in Redis, once per name: a late copy must not enroll a forgotten name again.
    /// Nothing was sent yet.
    async fn enroll(&self, budget: Budget) -> Result<Numbers, Error> {
        loop {
            let (name, asked) = (nonce(), Moment::now());
            let call = ENROLL.call(&[self.fleet.store.keys.sent(&name)]);
            let answer = self.fleet.store.work.call(&call, budget.one_try()).await;
            match answer.and_then(|reply| reply.number(0)) {
                Ok(now_ms) => {
                    return Ok(Numbers {
                        name: name.into(),
                        next: 1,
                        asked,
                        now_ms: now_ms as u64,
                    });
                }
                Err(error) if error.is_passing() && !budget.is_over() => {
                    tokio::time::sleep(RETRY.min(budget.left())).await;
                }
                Err(error) if error.is_oom() => {
                    return Err(Error::Full { reason: "Redis is out of memory".to_owned() });
                }
                // A name without an answer does no harm: nothing was sent under it.
                Err(error) if error.is_unheard() => {
                    tracing::debug!(%error, "enroll was not answered");
                    let redis = self.fleet.store.address().to_owned();
                    let reason = match self.fleet.store.work.is_refused() {
                        true => format!("connection refused, tried for {:?}", budget.timeout),
                        false => format!("no answer within {:?}", budget.timeout),
                    };
                    return Err(Error::Unreachable { redis, reason, why: Unreached::Network });
                }
                Err(error) => return Err(self.fleet.store.explain(error)),
            }
        }
    }
}

/// The error if it is not known whether these messages were added.
fn in_doubt(
    numbers: &Numbers,
    messages: &[NewMessage],
    key: Option<&str>,
    budget: Budget,
) -> Error {
    Error::InDoubt {
        id: MessageId::sent(&numbers.name, numbers.next),
        messages: messages.len(),
        after: Moment::now().since(budget.began),
        under_key: key.is_some(),
    }
}

/// The result of one try.
enum Try {
    Sent(Sent),
    /// This copy added nothing.
    Refused {
        error: Error,
        /// The name can be used for another batch.
        keeps_name: bool,
    },
    /// It may have been added.
    Unheard,
    /// It was not added. The next try may succeed.
    Again,
    /// Redis has forgotten the name: after an hour without a batch, or because it lost data.
    Forgotten,
}

/// What Redis answered to a batch.
enum Answer {
    Added,
    /// A message with this id was sent under the same key before.
    Duplicate(MessageId),
    /// A bound is reached; the text says which.
    Full(String),
    Protocol(String),
    Forgotten,
}

impl Answer {
    fn read(reply: &Reply, lane: Lane) -> Result<Answer, StoreError> {
        match reply.tag() {
            "ok" | "already" => Ok(Answer::Added),
            "duplicate" => {
                let id = MessageId::from_redis(&reply.text(0)?);
                let id =
                    id.ok_or_else(|| StoreError::odd("the key does not hold the id of a message"))?;
                Ok(Answer::Duplicate(id))
            }
            "full" => Ok(Answer::Full(full(reply, lane)?)),
            "protocol" => Ok(Answer::Protocol(reply.text(0)?)),
            "gap" => Ok(Answer::Forgotten),
            _ => Err(reply.unexpected()),
        }
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("lane", &self.lane).finish_non_exhaustive()
    }
}
