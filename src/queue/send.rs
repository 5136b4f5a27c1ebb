//! Adding messages that anybody sends.
//!
//! **Invariant:** a batch is added whole or not at all, once, however often it is repeated: its
//! numbers are bound to it until Redis has answered. A number whose answer never came is never used
//! for anything else; its sender goes on under a new name. Redis takes numbers only from a name it knows:
//! a sender enrols first, once per name, so a name that was forgotten is refused and never begins anew.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

use crate::Error;
use crate::clock::Moment;
use crate::config::{Config, Durability, check_fleet_name};
use crate::mutant::{Rule, off};
use crate::store::{Address, Call, PROTOCOL, Reply, Script, Store, StoreError, nonce};

use super::message::{Lane, MessageId, NewMessage};

static SEND: Script = Script::new("send", include_str!("send.lua"));
static ENROLL: Script = Script::new("enroll", include_str!("enroll.lua"));

/// How long one try waits for its answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an unanswered batch is sent again, the same bytes.
const RESEND: Duration = Duration::from_secs(60);
/// Pause before an unanswered batch is sent again.
const RETRY: Duration = Duration::from_millis(50);
/// How long a key is remembered unless the sender says otherwise.
const DEDUP: Duration = Duration::from_secs(86_400);
const DEDUP_MAX: Duration = Duration::from_secs(30 * 86_400);
const DEDUP_KEY_BYTES_MAX: usize = 200;

/// A message that was sent.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Sent {
    /// Its name; of the earlier one if it is a duplicate.
    pub id: MessageId,
    /// False if a message was sent under the same key before, so this one was not added.
    pub is_new: bool,
}

/// Puts messages into a lane. Needs no session: anybody may send, without being a member.
///
/// Clones share one numbering, so batches of clones go one after the other.
///
/// ```
/// # let server = artel_testkit::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{Lane, Sender};
///
/// let urgent = Sender::open(url, "orders").await?.lane(Lane::High);
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
    store: Store,
    numbers: Arc<Mutex<Numbers>>,
    lane: Lane,
    remember: Duration,
    backlog_max: usize,
    payload_bytes_max: usize,
    durability: Durability,
}

/// Which number comes next, and under which name.
struct Numbers {
    next: u64,
    /// A batch was sent under `next` and its answer was never heard.
    in_doubt: bool,
    /// Without one, it must enrol first.
    name: Option<Name>,
}

/// A name that Redis knows.
#[derive(Clone)]
struct Name {
    text: Arc<str>,
    /// When it was asked for, on our clock and, a little later, on Redis's. For display only.
    asked: Moment,
    now_ms: u64,
}

impl Numbers {
    fn new() -> Numbers {
        Numbers { next: 1, in_doubt: false, name: None }
    }
}

impl Sender {
    /// Messages in one batch.
    pub const BATCH_MAX: usize = 1000;
    /// Bytes of the payloads of one batch, unless it is a single message.
    pub const BATCH_BYTES_MAX: usize = 1 << 20;

    /// Connects to a fleet without joining it.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached, denies access or is unfit.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn open(redis: impl Into<Address>, fleet: &str) -> Result<Sender, Error> {
        check_fleet_name(fleet)?;
        let store = Store::open(&redis.into(), fleet)?;
        store.check().await?;
        let backlog_max = store.open_fleet().await?;
        Ok(Sender::on(store, &Config::default(), backlog_max))
    }

    pub(crate) fn on(store: Store, config: &Config, backlog_max: usize) -> Sender {
        Sender {
            store,
            numbers: Arc::new(Mutex::new(Numbers::new())),
            lane: Lane::Normal,
            remember: DEDUP,
            backlog_max,
            payload_bytes_max: config.payload_bytes_max,
            durability: config.durability,
        }
    }

    /// Sends into this lane from now on (default `normal`).
    pub fn lane(mut self, lane: Lane) -> Sender {
        self.lane = lane;
        self
    }

    /// Remembers the keys of [`send_once`](Self::send_once) for this long (default one day).
    pub fn remember(mut self, time: Duration) -> Sender {
        self.remember = time;
        self
    }

    /// How many messages may wait in a lane of this fleet: a larger batch never finds room.
    pub fn backlog_max(&self) -> usize {
        self.backlog_max
    }

    /// Adds one message.
    ///
    /// # Errors
    ///
    /// As [`send_all`](Self::send_all).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, the message may have been added or not; never twice.
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
    /// Dropped before it returns, the message may have been added or not; never twice.
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

    /// Adds all of these messages or none: at most 1,000, and 1 MiB of payload unless it is one.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if there is no room, [`Error::PayloadTooLarge`] and [`Error::BatchTooLarge`]:
    /// then none was added. [`Error::NoAnswer`] if Redis did not answer for a minute: then it is not
    /// known whether they were added.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, the messages may have been added or not; never twice.
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
        for message in messages {
            message.check(self.payload_bytes_max)?;
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

    /// Sends one batch until it is answered; the first message and its number.
    async fn deliver(
        &self,
        messages: &[NewMessage],
        key: Option<&str>,
    ) -> Result<(Sent, u64), Error> {
        self.check(messages)?;
        let mut numbers = self.numbers.lock().await;
        if numbers.in_doubt {
            *numbers = Numbers::new();
        }
        // Taken back only by an answer: whoever drops this future leaves the number in doubt.
        numbers.in_doubt = true;
        let began = Moment::now();
        let overdue = || Moment::now().since(began) > RESEND;
        let mut call = self.call(&mut numbers, messages, key).await?;
        // A copy of this batch went out and was not answered: it may have been added, or be added
        // still, so no refusal of a later copy says that it was not.
        let mut unheard = false;
        loop {
            let epoch = self.store.work.epoch();
            let answer = self.store.work.call(&call, CALL_TIMEOUT).await;
            let refused = match answer.and_then(Reply::parse) {
                Ok(reply) => match self.taken_in(&mut numbers, &reply, messages.len() as u64)? {
                    Answer::Sent(sent, seq) => {
                        if self.replicated(epoch).await {
                            return Ok((sent, seq));
                        }
                        // The same batch again: already there, and then on the replicas.
                        numbers.next = seq;
                        numbers.in_doubt = true;
                        unheard = true;
                        None
                    }
                    Answer::Refused(error) => Some(error),
                    // The numbers were forgotten: after an hour of silence, or by data loss. Whether a
                    // copy that nobody answered was added is not known any more.
                    Answer::Gap if unheard && !off(Rule::ForgottenIsDoubt) => {
                        return Err(Error::NoAnswer { after: Moment::now().since(began) });
                    }
                    Answer::Gap => {
                        *numbers = Numbers { in_doubt: true, ..Numbers::new() };
                        call = self.call(&mut numbers, messages, key).await?;
                        None
                    }
                },
                Err(error) if error.is_unheard() => {
                    tracing::debug!(%error, "send unanswered, will be repeated");
                    unheard = true;
                    None
                }
                Err(error) if error.is_passing() && !overdue() => None,
                Err(error) if error.is_oom() => {
                    Some(Error::Full { reason: "Redis is out of memory".to_owned() })
                }
                Err(error) => Some(self.store.explain(error)),
            };
            if let Some(error) = refused
                && !unheard
            {
                numbers.in_doubt = false;
                return Err(error);
            }
            if overdue() {
                return Err(Error::NoAnswer { after: RESEND });
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// What an answer says; an accepted batch uses up its numbers.
    fn taken_in(&self, numbers: &mut Numbers, reply: &Reply, count: u64) -> Result<Answer, Error> {
        let seq = numbers.next;
        let name = numbers.name.as_ref().map_or("", |name| &name.text);
        let text = || reply.text(0).map_err(|error| self.store.explain(error));
        let sent = match reply.tag.as_str() {
            "ok" | "already" => Sent { id: MessageId::sent(name, seq), is_new: true },
            "duplicate" => match MessageId::from_redis(&text()?) {
                Some(id) => Sent { id, is_new: false },
                None => {
                    let odd = StoreError::odd("what stands under this key is no message's id");
                    return Err(self.store.explain(odd));
                }
            },
            "full" => {
                let reason = format!("{} messages wait in lane {} already", text()?, self.lane);
                return Ok(Answer::Refused(Error::Full { reason }));
            }
            "protocol" => return Ok(Answer::Refused(self.store.other_protocol(&text()?))),
            "gap" => return Ok(Answer::Gap),
            other => {
                let error = StoreError::odd(format!("unexpected answer {other:?}"));
                return Err(self.store.explain(error));
            }
        };
        numbers.next += count;
        numbers.in_doubt = false;
        Ok(Answer::Sent(sent, seq))
    }

    /// Do as many replicas have it as must? Whatever goes wrong with asking, the batch itself is in.
    async fn replicated(&self, epoch: u64) -> bool {
        let wanted = self.durability.replicas();
        let have = self.store.replicas(wanted, CALL_TIMEOUT, epoch).await;
        have.is_ok_and(|have| have >= wanted)
    }

    async fn call(
        &self,
        numbers: &mut MutexGuard<'_, Numbers>,
        messages: &[NewMessage],
        key: Option<&str>,
    ) -> Result<Call, Error> {
        let Name { text: name, asked, now_ms } = match &numbers.name {
            Some(name) => name.clone(),
            None => numbers.name.insert(self.enroll().await?).clone(),
        };
        let made_ms = now_ms + Moment::now().since(asked).as_millis() as u64;
        let keys = &self.store.keys;
        let lane = keys.lane(self.lane.name());
        let mut all = vec![keys.sent(&name), lane, keys.counts(), keys.wake(), keys.config()];
        all.extend(key.map(|key| keys.dedup(key)));
        let mut call = SEND
            .call(&all)
            .arg(&*name)
            .arg(numbers.next)
            .arg(PROTOCOL)
            .arg(self.remember.as_millis() as u64);
        let mut envelope = Vec::new();
        for (seq, message) in (numbers.next..).zip(messages) {
            let id = format_args!("s{name}-{seq}");
            message.envelope(&mut envelope, self.lane, id, made_ms);
            call.push_arg(&envelope[..]);
        }
        Ok(call)
    }

    /// Makes a new name known to Redis. Once per name: a late copy must not make a name known again
    /// that was forgotten. Nothing was sent yet, so it is tried for as long as a batch would be.
    async fn enroll(&self) -> Result<Name, Error> {
        let began = Moment::now();
        loop {
            let (text, asked) = (nonce(), Moment::now());
            let call = ENROLL.call(&[self.store.keys.sent(&text)]);
            let answer = self.store.work.call(&call, CALL_TIMEOUT).await.and_then(Reply::parse);
            match answer.and_then(|reply| reply.number(0)) {
                Ok(now_ms) => return Ok(Name { text: text.into(), asked, now_ms: now_ms as u64 }),
                Err(error) if error.is_passing() && asked.since(began) < RESEND => {
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) if error.is_oom() => {
                    return Err(Error::Full { reason: "Redis is out of memory".to_owned() });
                }
                Err(error) => return Err(self.store.explain(error)),
            }
        }
    }
}

/// What Redis answered to a batch.
enum Answer {
    Sent(Sent, u64),
    /// Nothing was added by this copy.
    Refused(Error),
    Gap,
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("lane", &self.lane).finish_non_exhaustive()
    }
}
