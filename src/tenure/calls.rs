//! Acquiring and resigning a tenure. The same scripts serve the lease and every lock.
//!
//! **Invariant:** each call names the token it is meant for, so a late copy changes nothing.

use std::time::Duration;

use crate::id::MemberId;
use crate::store::{Call, Reply, Script, Store, StoreError};
use crate::term::{Term, Token};

static ACQUIRE: Script = Script::new("acquire", include_str!("acquire.lua")).lasting(&["won"]);
static RESIGN: Script = Script::new("resign", include_str!("resign.lua"));

/// A term that Redis granted, and what its holder must know.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) term: Term,
    /// Redis time.
    pub(crate) now_ms: u64,
    /// How many messages the fleet has generated, and when it last did so.
    pub(crate) generated: u64,
    pub(crate) pushed_ms: u64,
    /// The state that the previous generator kept.
    pub(crate) state: Vec<u8>,
    /// For how long nobody led before; `None` if nobody ever did, or if it is not known since when.
    pub(crate) gap: Option<Duration>,
}

/// The answer to a request for the lease.
#[derive(Debug)]
pub(crate) enum Granted {
    Won(Grant),
    /// Another member holds it. Its session ends after this time unless it is refreshed.
    Held(Duration),
    /// No further term can be granted. Members report this once a minute.
    Spent,
}

/// Asks for the lease.
pub(crate) fn acquire_lease(store: &Store, me: &MemberId, lease_ms: u64) -> Call<Granted> {
    let (keys, floor) = (&store.keys, store.floor.clone());
    ACQUIRE
        .call(&[
            keys.members(),
            keys.lease(),
            keys.term(),
            keys.last(),
            keys.ctl(),
            keys.counts(),
            keys.state(),
            keys.watch(),
            keys.notices(),
        ])
        .arg(me.as_str())
        .arg(lease_ms)
        .arg("")
        .arg(floor.term())
        .refreshing(&["won"])
        .reading(move |reply| {
            let granted = granted(reply)?;
            if let Granted::Won(grant) = &granted {
                floor.saw_term(grant.term.get());
            }
            Ok(granted)
        })
}

fn granted(reply: Reply) -> Result<Granted, StoreError> {
    match reply.tag() {
        "won" => Ok(Granted::Won(Grant {
            term: Term::parse(&reply.text(0)?)
                .ok_or_else(|| StoreError::odd("a term that is not a number"))?,
            now_ms: reply.number(1)? as u64,
            generated: reply.number(2)? as u64,
            pushed_ms: reply.number(3)? as u64,
            state: reply.bytes(4)?,
            gap: reply.text(5)?.parse().ok().map(Duration::from_millis),
        })),
        "held" => Ok(Granted::Held(milliseconds(reply.number(1)?))),
        "spent" => Ok(Granted::Spent),
        _ => Err(reply.unexpected()),
    }
}

/// The answer to a request for a lock.
#[derive(Debug)]
pub(crate) enum LockAnswer {
    Won(Token),
    /// Another member holds it. Its session ends after this time unless it is refreshed. The text is
    /// our place in the queue.
    Held(Duration, String),
    /// A newer attempt of ours holds it: this was a late copy.
    Late,
    /// The key holds something else.
    Strange,
    /// No further token can be granted.
    Spent,
}

/// Asks for a lock. With a ticket, which is empty at first, it also takes a place in the queue.
pub(crate) fn acquire_lock(
    store: &Store,
    me: &MemberId,
    lease_ms: u64,
    name: &str,
    attempt: u64,
    ticket: Option<&str>,
) -> Call<LockAnswer> {
    let (keys, floor) = (&store.keys, store.floor.clone());
    ACQUIRE
        .call(&[keys.members(), keys.lock(name), keys.token(), keys.locks(me), keys.waiters(name)])
        .arg(me.as_str())
        .arg(lease_ms)
        .arg(name)
        .arg(attempt)
        .arg(ticket.unwrap_or("-"))
        .arg(floor.token())
        .reading(move |reply| {
            let answer = lock_answer(reply)?;
            if let LockAnswer::Won(token) = &answer {
                floor.saw_token(token.get());
            }
            Ok(answer)
        })
}

fn lock_answer(reply: Reply) -> Result<LockAnswer, StoreError> {
    match reply.tag() {
        "won" => {
            let token = Token::parse(&reply.text(0)?);
            token.map(LockAnswer::Won).ok_or_else(|| reply.unexpected())
        }
        "held" => Ok(LockAnswer::Held(milliseconds(reply.number(1)?), reply.text(2)?)),
        "late" => Ok(LockAnswer::Late),
        "strange" => Ok(LockAnswer::Strange),
        "spent" => Ok(LockAnswer::Spent),
        _ => Err(reply.unexpected()),
    }
}

fn milliseconds(number: i64) -> Duration {
    Duration::from_millis(number.max(0) as u64)
}

/// Gives up exactly this term. The session thread or the generator sends it. Returns whether it was
/// held.
pub(crate) fn resign(store: &Store, me: &MemberId, term: Term) -> Call<bool> {
    let keys = &store.keys;
    RESIGN
        .call(&[keys.members(), keys.lease(), keys.ctl(), keys.watch(), keys.notices()])
        .arg(me.as_str())
        .arg(term.get())
        .reading(was_held)
}

/// Gives up a lock that we or a dead member hold under this token. Without a token it only gives up the
/// place in the queue. Returns whether the lock was held.
pub(crate) fn release_lock(
    store: &Store,
    me: &MemberId,
    whose: &MemberId,
    name: &str,
    token: Option<Token>,
) -> Call<bool> {
    let keys = &store.keys;
    RESIGN
        .call(&[
            keys.members(),
            keys.lock(name),
            keys.alive(),
            keys.locks(whose),
            keys.waiters(name),
        ])
        .arg(me.as_str())
        .arg(token.map_or(0, Token::get))
        .arg(name)
        .arg(whose.as_str())
        .reading(was_held)
}

fn was_held(reply: Reply) -> Result<bool, StoreError> {
    match reply.tag() {
        "ok" => Ok(true),
        "fenced" | "alive" => Ok(false),
        _ => Err(reply.unexpected()),
    }
}

/// Reads a member's locks as Redis lists them: name, `token:attempt` …
pub(crate) fn held_locks(reply: Reply) -> Result<Vec<(String, Option<Token>)>, StoreError> {
    let one = |(name, held): (String, Reply)| {
        let held = held.into_text()?;
        Ok((name, held.split(':').next().and_then(Token::parse)))
    };
    reply.into_pairs()?.into_iter().map(one).collect()
}

/// Lists the locks of a member.
pub(crate) fn locks_of(store: &Store, id: &MemberId) -> Call<Vec<(String, Option<Token>)>> {
    Call::plain("HGETALL").arg(store.keys.locks(id)).reading(held_locks)
}
