//! [`Schedule`]: the messages that wait for a time, and what an operator can do with them.
//!
//! **Invariant:** a change names the time that its caller knows. So a late copy of "run now" never runs the next retry of the
//! same message.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::Error;
use crate::fleet::Fleet;
use crate::id::MessageId;
use crate::json_time::{at_ms, since_1970_ms};
use crate::lane::Lane;
use crate::message::{AHEAD_MAX, Message};
use crate::store::{Call, ONCE_TIMEOUT, Reply, Script, StoreError};

static AGENDA: Script = Script::new("agenda", include_str!("agenda.lua"));
static ALTER: Script = Script::new("alter", include_str!("alter.lua")).lasting(&["ok"]);

/// The most bytes of messages in one page.
const PAGE_BYTES: usize = 1 << 20;
/// How often a change is tried if the time of its message changes meanwhile.
const TRIES: usize = 5;

/// A message that waits for a time. Made by [`Schedule`].
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use std::time::Duration;
/// use artel::{Fleet, NewMessage};
///
/// let fleet = Fleet::connect(url, "orders").await?;
/// let reminder = NewMessage::from("remind ann").with_kind("mail").after(Duration::from_secs(3600));
/// let id = fleet.send(reminder).await?.id;
/// let waits = fleet.schedule().get(&id).await?.expect("it waits");
/// assert_eq!((waits.kind.as_deref(), waits.retry), (Some("mail"), 0));
/// assert!(waits.left > Some(Duration::from_secs(3000)));
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Scheduled {
    /// Its id.
    pub id: MessageId,
    /// When it is due, by Redis's clock.
    pub due: SystemTime,
    /// How long until then, by Redis's clock; `None` if it is overdue.
    pub left: Option<Duration>,
    /// Its kind, if its maker set one.
    pub kind: Option<String>,
    /// The lane it will wait in.
    pub lane: Lane,
    /// The attempt that will be made.
    pub attempt: u32,
    /// How often it was retried already.
    pub retry: u32,
    /// How often a member that got it had no handler for its kind.
    pub waits: u32,
    /// When it was added.
    pub generated_at: SystemTime,
    /// Its payload.
    pub payload: Vec<u8>,
    /// Its time, as scripts compare it.
    score: String,
}

/// How far a list was read.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{Fleet, ScheduleCursor};
///
/// let fleet = Fleet::connect(url, "orders").await?;
/// let mut cursor = ScheduleCursor::default();
/// loop {
///     let page = fleet.schedule().page(&mut cursor, 100).await?;
///     if page.is_empty() {
///         break;
///     }
///     page.iter().for_each(|one| println!("{} {:?}", one.id, one.due));
/// }
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ScheduleCursor {
    last: Option<(String, String)>,
}

/// As text it can be handed to others, and read again.
impl fmt::Display for ScheduleCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.last {
            Some((score, id)) => write!(f, "{score}:{id}"),
            None => Ok(()),
        }
    }
}

impl FromStr for ScheduleCursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<ScheduleCursor, Error> {
        if text.is_empty() {
            return Ok(ScheduleCursor::default());
        }
        let parts = text.split_once(':').filter(|(score, id)| {
            let is_time = score.len() <= 30 && score.parse::<f64>().is_ok_and(f64::is_finite);
            is_time && MessageId::from_redis(id).is_some()
        });
        let problem = || "must be one that a page has returned".to_owned();
        let (score, id) =
            parts.ok_or_else(|| Error::Config { field: "cursor", problem: problem() })?;
        Ok(ScheduleCursor { last: Some((score.to_owned(), id.to_owned())) })
    }
}

/// The messages that wait for a time: delayed ones, and those that will be retried. Made by [`Fleet::schedule`].
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use std::time::Duration;
/// use artel::{Fleet, NewMessage, ScheduleCursor};
///
/// let fleet = Fleet::connect(url, "orders").await?;
/// let id = fleet.send(NewMessage::from("remind ann").after(Duration::from_secs(3600))).await?.id;
/// let page = fleet.schedule().page(&mut ScheduleCursor::default(), 100).await?;
/// assert_eq!(page[0].id, id);
/// assert!(fleet.schedule().cancel(&id).await?);
/// assert!(!fleet.schedule().run_now(&id).await?, "it no longer waits");
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    fleet: Fleet,
}

impl Fleet {
    /// The messages that wait for a time.
    pub fn schedule(&self) -> Schedule {
        Schedule { fleet: self.clone() }
    }
}

/// What Redis answered to a change.
enum Altered {
    Done,
    /// It is due at another time than the caller knew.
    Moved,
    Absent,
    Refused(String),
}

impl Schedule {
    /// The next messages, the first due first, at most this many. Empty at the end.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached, refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn page(
        &self,
        cursor: &mut ScheduleCursor,
        count: usize,
    ) -> Result<Vec<Scheduled>, Error> {
        loop {
            let (score, id) = cursor.last.clone().unwrap_or_default();
            let mut page = self.read(&score, &id, count.clamp(1, 1000)).await?;
            let Some(last) = page.last() else { return Ok(page) };
            let last = (last.score.clone(), last.id.as_str().to_owned());
            // If the last one that was read is gone, others of its time come again: those before it are known.
            page.retain(|one| one.score != score || one.id.as_str() > id.as_str());
            if !page.is_empty() {
                cursor.last = Some(last);
                return Ok(page);
            }
            // All of them are known: go on behind them.
            cursor.last = Some(last);
        }
    }

    /// One message, if it waits for a time.
    ///
    /// # Errors
    ///
    /// As [`page`](Self::page).
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn get(&self, id: &MessageId) -> Result<Option<Scheduled>, Error> {
        Ok(self.read("", id.as_str(), 0).await?.pop())
    }

    /// As [`get`](Self::get), for a caller that explains the error itself.
    pub(crate) async fn find(&self, id: &MessageId) -> Result<Option<Scheduled>, StoreError> {
        Ok(self.fleet.store.try_repeat(&self.read_call("", id.as_str(), 0)).await?.pop())
    }

    async fn read(&self, score: &str, id: &str, count: usize) -> Result<Vec<Scheduled>, Error> {
        self.fleet.store.once(&self.read_call(score, id, count)).await
    }

    fn read_call(&self, score: &str, id: &str, count: usize) -> Call<Vec<Scheduled>> {
        let store = &self.fleet.store;
        AGENDA
            .call(&[store.keys.scheduled(), store.keys.later()])
            .arg(score)
            .arg(id)
            .arg(count)
            .arg(PAGE_BYTES)
            .answering(PAGE_BYTES)
            .reading(Scheduled::read_all)
    }

    /// Ends a message before it starts. It counts as failed, and is not kept. False if it does not wait for a time.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or refuses; [`Error::NoAnswer`] if it did not answer: then it may have been done.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the message may be cancelled or not.
    pub async fn cancel(&self, id: &MessageId) -> Result<bool, Error> {
        self.alter(id, "cancel").await
    }

    /// Lets a message start now. False if it does not wait for a time.
    ///
    /// # Errors
    ///
    /// As [`cancel`](Self::cancel).
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the message may start or not, but never twice.
    pub async fn run_now(&self, id: &MessageId) -> Result<bool, Error> {
        self.alter(id, "now").await
    }

    /// Has a message wait for this long from now on. False if it does not wait for a time.
    ///
    /// # Errors
    ///
    /// As [`cancel`](Self::cancel), and if it is more than 366 days.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the time may be changed or not.
    pub async fn move_by(&self, id: &MessageId, time: Duration) -> Result<bool, Error> {
        if time > AHEAD_MAX {
            let problem = "must be at most 366 days ahead".to_owned();
            return Err(Error::Config { field: "due", problem });
        }
        self.alter(id, &format!("+{}", time.as_millis())).await
    }

    /// Has a message wait until this time. False if it does not wait for a time.
    ///
    /// # Errors
    ///
    /// As [`move_by`](Self::move_by).
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it returns, the time may be changed or not.
    pub async fn move_to(&self, id: &MessageId, time: SystemTime) -> Result<bool, Error> {
        self.alter(id, &since_1970_ms(time).to_string()).await
    }

    async fn alter(&self, id: &MessageId, what: &str) -> Result<bool, Error> {
        self.fleet.compare().await?;
        let store = &self.fleet.store;
        store.count_steps(); // what is cancelled has failed
        for _ in 0..TRIES {
            let Some(known) = self.get(id).await? else { return Ok(false) };
            let call = self.alter_call(id, &known.score, what);
            // A copy that was not answered may have changed it, and then the next one finds it changed.
            let mut unheard: Option<StoreError> = None;
            let altered = loop {
                match store.work.call(&call, ONCE_TIMEOUT).await {
                    Ok(Altered::Done) => return Ok(true),
                    Ok(altered) => break altered,
                    Err(error) if error.is_unheard() && unheard.is_none() => unheard = Some(error),
                    Err(error) => return Err(store.explain(error)),
                }
            };
            match (altered, unheard) {
                (Altered::Refused(problem), _) => {
                    return Err(Error::Config { field: "due", problem });
                }
                (_, Some(unheard)) => return Err(store.explain(unheard)),
                (Altered::Absent, None) => return Ok(false),
                (Altered::Moved | Altered::Done, None) => {}
            }
        }
        Ok(false)
    }

    fn alter_call(&self, id: &MessageId, known: &str, what: &str) -> Call<Altered> {
        let keys = &self.fleet.store.keys;
        let mut all = keys.jobs();
        all.extend([keys.ledger(), keys.config(), keys.notices()]);
        let call = ALTER.call(&all).arg(id.as_str()).arg(known).arg(what).arg(self.fleet.who());
        call.reading(Altered::read)
    }
}

impl Altered {
    fn read(reply: Reply) -> Result<Altered, StoreError> {
        match reply.tag() {
            "ok" => Ok(Altered::Done),
            "moved" => Ok(Altered::Moved),
            "absent" => Ok(Altered::Absent),
            "refused" => Ok(Altered::Refused(reply.text(0)?)),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Scheduled {
    fn read_all(reply: Reply) -> Result<Vec<Scheduled>, StoreError> {
        let mut parts = reply.into_list()?.into_iter();
        let mut next = || parts.next();
        let now_ms = match next() {
            Some(now) => now.into_number()? as u64,
            None => return Err(StoreError::odd("a list without its time")),
        };
        let mut all = Vec::new();
        while let (Some(id), Some(score), Some(envelope)) = (next(), next(), next()) {
            let (id, score) = (id.into_text()?, score.into_text()?);
            let message =
                Message::parse(envelope.into_bytes()?).unwrap_or_else(Message::unreadable);
            let Some(id) = MessageId::from_redis(&id) else { continue };
            // A parent that waits for its children has no time.
            let due_ms = score.parse::<f64>().ok().filter(|ms| ms.is_finite() && *ms >= 0.0);
            let Some(due_ms) = due_ms.map(|ms| ms as u64) else { continue };
            all.push(Scheduled {
                id,
                due: at_ms(due_ms),
                left: due_ms.checked_sub(now_ms).map(Duration::from_millis),
                kind: message.kind().map(str::to_owned),
                lane: message.lane(),
                attempt: message.attempt(),
                retry: message.retry(),
                waits: message.waits(),
                generated_at: message.generated_at(),
                payload: message.into_payload(),
                score,
            });
        }
        Ok(all)
    }
}
