//! [`Locks`]: the locks of one session, as this process knows them.
//!
//! **Invariant:** a lock in our name that nobody here holds or asks for is given back, and a lock that
//! is no longer in our name is no longer held.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

use crate::term::Token;

/// What this process does with a lock.
#[derive(Clone, Debug)]
enum LockUse {
    /// It asks for the lock, so a lock in its name may be the answer to that.
    Wanted,
    /// It holds the lock under this token, until the cancellation reports that the lock is lost.
    Held(Token, CancellationToken),
}

/// The locks of one session, by name.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    uses: Mutex<HashMap<String, LockUse>>,
    attempts: AtomicU64,
}

/// The uses of the locks at one moment.
pub(crate) struct Known(HashMap<String, LockUse>);

impl Locks {
    /// A task asks for this lock from now on. Returns the number of the attempt.
    pub(crate) fn want(&self, name: &str) -> u64 {
        self.change(|uses| drop(uses.insert(name.to_owned(), LockUse::Wanted)));
        self.attempts.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Nobody here holds this lock or asks for it any longer.
    pub(crate) fn forget(&self, name: &str) {
        self.change(|uses| drop(uses.remove(name)));
    }

    /// This lock is held from now on, until `lost` is cancelled.
    pub(crate) fn hold(&self, name: &str, token: Token, lost: &CancellationToken) {
        let held = LockUse::Held(token, lost.clone());
        self.change(|uses| drop(uses.insert(name.to_owned(), held)));
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<String, LockUse>)) {
        change(&mut self.uses.lock().expect("never poisoned"));
    }

    pub(crate) fn known(&self) -> Known {
        Known(self.uses.lock().expect("never poisoned").clone())
    }

    /// Compares the locks that Redis listed with their uses before and after the call. Cancels the
    /// token of a held lock that is not listed. Returns the listed locks that nobody here holds or asks
    /// for.
    pub(crate) fn compare(
        &self,
        before: &Known,
        listed: Vec<(String, Option<Token>)>,
    ) -> Vec<(String, Option<Token>)> {
        let now = self.uses.lock().expect("never poisoned");
        for (name, used) in &before.0 {
            let (LockUse::Held(token, _), Some(LockUse::Held(still, lost))) = (used, now.get(name))
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
        let locks = Locks::default();
        let before = locks.known();
        let stray = ("late".to_owned(), token(7));
        assert_eq!(locks.compare(&before, vec![stray.clone()]), vec![stray.clone()]);
        locks.want("late");
        assert!(locks.compare(&before, vec![stray.clone()]).is_empty(), "asked for meanwhile");
        let before = locks.known();
        locks.forget("late");
        assert!(locks.compare(&before, vec![stray]).is_empty(), "asked for until just now");
    }

    #[test]
    fn a_lock_that_is_gone_is_not_held_any_longer() {
        let (locks, lost) = (Locks::default(), CancellationToken::new());
        locks.want("mine");
        let before = locks.known();
        locks.hold("mine", token(7).expect("a token"), &lost);
        locks.compare(&before, vec![]);
        assert!(!lost.is_cancelled(), "granted after Redis was asked");
        let before = locks.known();
        locks.compare(&before, vec![("mine".to_owned(), token(7))]);
        assert!(!lost.is_cancelled());
        locks.compare(&before, vec![("mine".to_owned(), token(8))]);
        assert!(lost.is_cancelled(), "held under another token");
    }
}
