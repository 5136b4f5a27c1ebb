//! [`MemberId`] and [`MessageId`]: the ids of sessions and of messages.
//!
//! **Invariant:** an id is used in keys and shown on screens, so it consists of letters, digits and a
//! few signs. Any other text in Redis is not an id.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::term::Term;

/// The most bytes of an id.
const ID_BYTES_MAX: usize = 200;

/// Is this an id of a member or of a message? Ids are used in keys and shown on screens, so any other
/// text in Redis is refused.
fn is_id(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=ID_BYTES_MAX).contains(&text.len())
        && !text.starts_with(['.', '-'])
        && text.bytes().all(known)
}

/// The first letter of the ids of observers.
const OBSERVER: char = 'o';

/// The id of a session: random, and new for every session, so that an id is itself a claim token.
///
/// Ranks count by id, and the ids of observers begin with a letter that sorts behind all others.
/// However many observers there are, none of them delays an election, or watches while another member
/// can.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let member = fleet.join().start().await?;
/// let id = member.id().expect("it has joined");
/// // Without generator and handler it is an observer.
/// assert!(id.is_observer() && !id.as_str().is_empty());
/// # member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq, Hash, Ord, PartialOrd, serde::Serialize)]
pub struct MemberId(String);

impl<'de> serde::Deserialize<'de> for MemberId {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<MemberId, D::Error> {
        let text = String::deserialize(from)?;
        MemberId::from_redis(&text).ok_or_else(|| serde::de::Error::custom("not a member's id"))
    }
}

impl MemberId {
    pub(crate) fn new(observes: bool) -> MemberId {
        let random = rand::random::<u128>();
        match observes {
            true => MemberId(format!("{OBSERVER}{:023x}", random >> 36)),
            false => MemberId(format!("{:024x}", random >> 32)),
        }
    }

    #[cfg(test)]
    pub(crate) fn random() -> MemberId {
        MemberId::new(false)
    }

    /// Is it the id of a member that neither works nor leads?
    pub fn is_observer(&self) -> bool {
        self.0.starts_with(OBSERVER)
    }

    /// Reads an id from Redis; `None` if the text is not an id.
    pub(crate) fn from_redis(text: &str) -> Option<MemberId> {
        is_id(text).then(|| MemberId(text.to_owned()))
    }

    /// The id as it is stored in Redis.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The id of a message: `<term>-<seq>` if it was generated, with `seq` dense within a term;
/// `s<sender>-<seq>` if it was sent, `f…` if it follows an outcome, `c<entry>-<due>` if a periodic
/// entry sent it. It stays the same over all attempts, so it serves as an
/// idempotency key for effects outside Redis.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let id = fleet.send("order 7").await?.id;
/// // It was sent, so it has no term.
/// assert!(id.as_str().starts_with('s') && id.term().is_none());
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MessageId {
    name: Arc<str>,
    /// Behind the name. Ids of one batch share their name.
    number: Option<u64>,
    /// The whole id, once it was asked for.
    text: OnceLock<Box<str>>,
}

impl MessageId {
    fn new(name: Arc<str>, number: Option<u64>) -> MessageId {
        MessageId { name, number, text: OnceLock::new() }
    }

    /// The id as it is stored in Redis.
    pub fn as_str(&self) -> &str {
        match self.number {
            None => &self.name,
            Some(number) => self.text.get_or_init(|| format!("{}-{number}", self.name).into()),
        }
    }

    pub(crate) fn generated(term: Term, seq: u64) -> MessageId {
        MessageId::new(term.to_string().into(), Some(seq))
    }

    pub(crate) fn sent(sender: &str, seq: u64) -> MessageId {
        MessageId::new(format!("s{sender}").into(), Some(seq))
    }

    /// The id of a message that cannot be read.
    pub(crate) fn unreadable() -> MessageId {
        MessageId::new("unreadable".into(), None)
    }

    /// Reads an id from Redis; `None` if the text is not an id.
    pub(crate) fn from_redis(text: &str) -> Option<MessageId> {
        if !is_id(text) {
            return None;
        }
        let numbered = text.rsplit_once('-').and_then(|(name, digits)| {
            // Only a number that is written as we would: the text must come back as it was.
            let number: u64 = digits.parse().ok()?;
            (number.to_string() == digits).then_some((name, number))
        });
        Some(match numbered {
            Some((name, number)) => MessageId::new(name.into(), Some(number)),
            None => MessageId::new(text.into(), None),
        })
    }

    /// Does it have a number, and room for this many numbers behind it?
    pub(crate) fn has_following(&self, count: u64) -> bool {
        self.number.is_some_and(|number| number.checked_add(count).is_some())
    }

    /// The id of the message `count` places behind this one. An id without a number stays as it is.
    pub(crate) fn following(&self, count: u64) -> MessageId {
        let number = self.number.map(|number| number.saturating_add(count));
        MessageId::new(self.name.clone(), number)
    }

    /// The same id, which shares nothing with this one.
    pub(crate) fn apart(&self) -> MessageId {
        MessageId::new(Arc::from(&*self.name), self.number)
    }

    /// The term under which the message was generated, if it was.
    pub fn term(&self) -> Option<Term> {
        self.number.and_then(|_| Term::parse(&self.name))
    }

    fn parts(&self) -> (&str, Option<u64>) {
        (&self.name, self.number)
    }
}

impl std::str::FromStr for MessageId {
    type Err = String;

    fn from_str(text: &str) -> Result<MessageId, String> {
        let id = MessageId::from_redis(text).filter(|id| id.as_str().contains('-'));
        id.ok_or_else(|| "must be a message's id such as s5f0c2d9a1b3e4f60-1".to_owned())
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MessageId").field(&self.as_str()).finish()
    }
}

impl Clone for MessageId {
    fn clone(&self) -> MessageId {
        MessageId::new(self.name.clone(), self.number)
    }
}

impl PartialEq for MessageId {
    fn eq(&self, other: &MessageId) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for MessageId {}

impl std::hash::Hash for MessageId {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl Ord for MessageId {
    fn cmp(&self, other: &MessageId) -> std::cmp::Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl PartialOrd for MessageId {
    fn partial_cmp(&self, other: &MessageId) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl serde::Serialize for MessageId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
