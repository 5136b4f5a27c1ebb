//! [`Holds`]: the permits that this process holds, and the barriers at which it waits.
//!
//! **Invariant:** soon after another server took over, which may have forgotten the last steps, nothing is held there in our
//! name that we gave up, and no permit is relied on that is not there.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio_util::sync::CancellationToken;

use super::SyncContext;
use crate::membership::{AskError, Patience};
use crate::mutant::{Rule, disabled};
use crate::store::{Script, Signal};

static COMPARE: Script = Script::new("hold_compare", include_str!("hold_compare.lua"));

/// The number of the last attempt to get something. It rises for as long as this process runs.
static NUMBERS: AtomicU64 = AtomicU64::new(0);
/// How many names are remembered of which nothing is held.
const NAMES_MAX: usize = 1000;

/// What is held: a permit of a semaphore, or a place at a barrier.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum What {
    Permit,
    Arrival,
}

impl What {
    /// Its letter in Redis.
    fn letter(self) -> &'static str {
        match self {
            What::Permit => "h",
            What::Arrival => "a",
        }
    }
}

/// What one member wants to hold, by the key in Redis. A key stays when nothing of it is held any more: the end may be forgotten.
#[derive(Default)]
pub(super) struct Holds(Mutex<HashMap<String, Named>>);

struct Named {
    what: What,
    signal: Arc<Signal>,
    open: BTreeMap<u64, CancellationToken>,
}

/// One of them, from before it is asked for until it is given up.
pub(super) struct Open {
    holds: Weak<Holds>,
    key: Arc<Signal>,
    pub(super) n: u64,
    /// Another server does not have it.
    pub(super) missing: CancellationToken,
}

impl Holds {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Named>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to want one, under a new number.
    pub(super) fn open(self: &Arc<Holds>, what: What, signal: &Arc<Signal>) -> Open {
        let mut all = self.all();
        if all.len() >= NAMES_MAX {
            all.retain(|_, named| !named.open.is_empty());
        }
        let n = NUMBERS.fetch_add(1, Ordering::Relaxed) + 1;
        let missing = CancellationToken::new();
        let new = || Named { what, signal: signal.clone(), open: BTreeMap::new() };
        let named = all.entry(signal.key.clone()).or_insert_with(new);
        named.open.insert(n, missing.clone());
        Open { holds: Arc::downgrade(self), key: signal.clone(), n, missing }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(holds) = self.holds.upgrade()
            && let Some(named) = holds.all().get_mut(&self.key.key)
        {
            named.open.remove(&self.n);
        }
    }
}

/// Compares what is held whenever another server answers. Ends with the context.
pub(super) async fn compare_on_change(context: Weak<SyncContext>) {
    let mut last = None;
    while let Some(context) = context.upgrade() {
        let link = context.session_link.link.clone();
        let epoch = link.epoch();
        if let Some(server) = link.history_in(epoch) {
            let changed = last.replace(server.clone()).is_some_and(|last| last != server);
            if changed && !disabled(Rule::CompareHolds) {
                context.compare_holds().await;
            }
        }
        drop(context);
        link.past(epoch).await;
    }
}

impl SyncContext {
    async fn compare_holds(&self) {
        let Some(session) = self.sessions.borrow().clone() else { return };
        let (mut calls, members) = (Vec::new(), self.fleet.store.keys.members());
        for named in self.holds.all().values() {
            let [key, channel] = named.signal.pair();
            let call = COMPARE.call(&[members.clone(), key, channel]).arg(session.id.as_str());
            let mut call = call.arg(named.what.letter()).arg(NUMBERS.load(Ordering::Relaxed));
            named.open.keys().for_each(|n| call.push_arg(n));
            calls.push((call, named.open.clone()));
        }
        for (call, open) in calls {
            let link = &self.session_link.link;
            let reply = match session.ask(link, Patience::UNTIL_OVER, call).await {
                Ok(reply) => reply,
                Err(AskError::Over | AskError::Gone) => return,
                // Such as a key of another type: nothing is held there.
                Err(AskError::Failed(error)) => {
                    tracing::debug!(%error, "what is held was not compared");
                    continue;
                }
            };
            let numbers = (0..reply.len()).filter_map(|at| reply.number(at).ok());
            for missing in numbers.filter_map(|n| open.get(&(n as u64))) {
                missing.cancel();
            }
        }
    }
}
