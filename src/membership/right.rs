//! The rights that hang on a session, the lease and locks: giving them up, and finding out that what
//! Redis knows of them and what this process knows differ.
//!
//! **Invariant:** a lock in our name that nobody here holds or asks for is given back, and a lock
//! that is no longer in our name is not held any longer.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::Value;
use tokio_util::sync::CancellationToken;

use super::MemberId;
use crate::store::{Call, Script, Store, StoreError, text};
use crate::term::{Term, Token};

static RESIGN: Script = Script::new("resign", include_str!("resign.lua"));

/// Gives up exactly this term, whoever sends it: the session thread or the generator itself.
pub(crate) fn resign_call(store: &Store, me: &MemberId, term: Term) -> Call {
    let keys = &store.keys;
    RESIGN.call(&[keys.members(), keys.lease(), keys.ctl()]).arg(me.as_str()).arg(term.get())
}

/// Gives up a lock that we or a dead member hold under this token; without one, only waiting for it.
pub(crate) fn release_call(
    store: &Store,
    me: &MemberId,
    whose: &MemberId,
    name: &str,
    token: Option<Token>,
) -> Call {
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
}

/// Reads a member's locks as Redis lists them: name, `token:attempt` …
pub(crate) fn held_locks(pairs: &[Value]) -> Result<Vec<(String, Option<Token>)>, StoreError> {
    let one = |pair: &[Value]| {
        let held = text(&pair[1])?;
        Ok((text(&pair[0])?, held.split(':').next().and_then(Token::parse)))
    };
    pairs.chunks_exact(2).map(one).collect()
}

/// What this process does with a lock.
#[derive(Clone, Debug)]
enum Right {
    /// It asks for it, so a lock in its name may be the answer to that.
    Wanted,
    /// It holds it under this token, until it is told that it does not.
    Held(Token, CancellationToken),
}

/// The locks of one session, by name.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    rights: Mutex<HashMap<String, Right>>,
    attempts: AtomicU64,
}

/// The rights at one moment.
pub(super) struct Known(HashMap<String, Right>);

impl Rights {
    /// Somebody asks for this lock from now on; the number of the attempt.
    pub(crate) fn want(&self, name: &str) -> u64 {
        self.change(|rights| drop(rights.insert(name.to_owned(), Right::Wanted)));
        self.attempts.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Nobody here holds it or asks for it any more.
    pub(crate) fn forget(&self, name: &str) {
        self.change(|rights| drop(rights.remove(name)));
    }

    /// It is held from now on, until `lost` is cancelled.
    pub(crate) fn hold(&self, name: &str, token: Token, lost: &CancellationToken) {
        let held = Right::Held(token, lost.clone());
        self.change(|rights| drop(rights.insert(name.to_owned(), held)));
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<String, Right>)) {
        change(&mut self.rights.lock().expect("never poisoned"));
    }

    pub(super) fn known(&self) -> Known {
        Known(self.rights.lock().expect("never poisoned").clone())
    }

    /// Compares what Redis listed with what was known all the time it was asked. Tells those who
    /// hold a lock that is not listed; returns what is listed and nobody's.
    pub(super) fn compare(
        &self,
        before: &Known,
        listed: Vec<(String, Option<Token>)>,
    ) -> Vec<(String, Option<Token>)> {
        let now = self.rights.lock().expect("never poisoned");
        for (name, right) in &before.0 {
            let (Right::Held(token, _), Some(Right::Held(still, lost))) = (right, now.get(name))
            else {
                continue;
            };
            if token == still && !listed.contains(&(name.clone(), Some(*token))) {
                lost.cancel();
            }
        }
        let unknown = |(name, _): &(String, Option<Token>)| {
            !before.0.contains_key(name) && !now.contains_key(name)
        };
        listed.into_iter().filter(unknown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(n: u64) -> Option<Token> {
        Token::parse(&n.to_string())
    }

    #[test]
    fn a_lock_that_nobody_asked_for_is_given_back() {
        let rights = Rights::default();
        let before = rights.known();
        let stray = ("late".to_owned(), token(7));
        assert_eq!(rights.compare(&before, vec![stray.clone()]), vec![stray.clone()]);
        rights.want("late");
        assert!(rights.compare(&before, vec![stray.clone()]).is_empty(), "asked for meanwhile");
        let before = rights.known();
        rights.forget("late");
        assert!(rights.compare(&before, vec![stray]).is_empty(), "asked for until just now");
    }

    #[test]
    fn a_lock_that_is_gone_is_not_held_any_longer() {
        let (rights, lost) = (Rights::default(), CancellationToken::new());
        rights.want("mine");
        let before = rights.known();
        rights.hold("mine", token(7).expect("a token"), &lost);
        rights.compare(&before, vec![]);
        assert!(!lost.is_cancelled(), "granted after Redis was asked");
        let before = rights.known();
        rights.compare(&before, vec![("mine".to_owned(), token(7))]);
        assert!(!lost.is_cancelled());
        rights.compare(&before, vec![("mine".to_owned(), token(8))]);
        assert!(lost.is_cancelled(), "held under another token");
    }
}
