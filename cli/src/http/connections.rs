//! [`Connections`]: the open connections, and which one is closed to make room.
//!
//! **Invariant:** there are never more than [`ALL_MAX`] connections, and never more than
//! [`PEER_MAX`] of one peer. A new connection is always let in: the one that has been idle for
//! longest is closed for it. So a probe is answered however many connections others hold open.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

/// Connections at the same time.
pub(super) const ALL_MAX: usize = 256;
/// Connections of one peer at the same time.
pub(super) const PEER_MAX: usize = 128;

#[derive(Debug)]
struct Entry {
    peer: IpAddr,
    /// When it was opened, or last answered.
    active: Instant,
    /// A request of it is being answered.
    answering: bool,
    over: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    all: HashMap<u64, Entry>,
}

/// All connections of one port.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    state: Arc<Mutex<State>>,
}

/// Kept by an answer that has no end of its own: as long as it is kept, the connection is not closed for its age.
#[derive(Clone, Debug)]
pub(super) struct Endless(Arc<()>);

impl Endless {
    pub(super) fn new() -> Endless {
        Endless(Arc::new(()))
    }

    /// Is there another one?
    pub(super) fn is_kept(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// One connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    state: Arc<Mutex<State>>,
    number: u64,
    /// Cancelled when another connection needs its place.
    pub(super) over: CancellationToken,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    /// Lets a new connection in. If there is no room, another one is closed: then `true`.
    pub(super) fn enter(&self, peer: IpAddr) -> (Connection, bool) {
        let mut state = lock(&self.state);
        let of_peer = state.all.values().filter(|entry| entry.peer == peer).count();
        let goes = match (of_peer >= PEER_MAX, state.all.len() >= ALL_MAX) {
            (true, _) => idlest(&state.all, |entry| entry.peer == peer),
            (false, true) => idlest(&state.all, |_| true),
            (false, false) => None,
        };
        let gone = goes.and_then(|number| state.all.remove(&number));
        if let Some(entry) = &gone {
            entry.over.cancel();
        }
        state.next += 1;
        let (number, over) = (state.next, CancellationToken::new());
        let entry = Entry { peer, active: Instant::now(), answering: false, over: over.clone() };
        state.all.insert(number, entry);
        (Connection { state: self.state.clone(), number, over }, gone.is_some())
    }
}

/// The connection that has been idle for longest. One that is being answered is chosen only if
/// there is no other.
fn idlest(all: &HashMap<u64, Entry>, among: impl Fn(&Entry) -> bool) -> Option<u64> {
    let among = all.iter().filter(|(_, entry)| among(entry));
    let idlest = among.min_by_key(|(number, entry)| (entry.answering, entry.active, **number));
    idlest.map(|(number, _)| *number)
}

impl Connection {
    /// Records that a request is being answered now, or was answered.
    pub(super) fn answering(&self, now: bool) {
        if let Some(entry) = lock(&self.state).all.get_mut(&self.number) {
            (entry.answering, entry.active) = (now, Instant::now());
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        lock(&self.state).all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn whoever_comes_gets_in_and_the_idlest_goes() {
        let connections = Connections::default();
        let mut kept: Vec<Connection> =
            (0..PEER_MAX).map(|_| connections.enter(peer(1)).0).collect();
        kept[0].answering(true);
        kept[1].answering(true);
        kept[1].answering(false); // it was answered just now
        let (one_more, one_went) = connections.enter(peer(1));
        assert!(one_went);
        assert!(!one_more.over.is_cancelled());
        let gone = |kept: &[Connection]| -> Vec<usize> {
            (0..kept.len()).filter(|&at| kept[at].over.is_cancelled()).collect()
        };
        assert_eq!(gone(&kept), [2], "not those that are or were answered");
        kept.push(one_more);
        let others: Vec<Connection> =
            (1..ALL_MAX).map(|at| connections.enter(peer(2 + (at / PEER_MAX) as u8)).0).collect();
        assert_eq!(lock(&connections.state).all.len(), ALL_MAX);
        assert!(!others.iter().any(|other| other.over.is_cancelled()));
        assert!(!kept[0].over.is_cancelled(), "it is being answered");
        drop((kept, others));
        assert!(lock(&connections.state).all.is_empty());
    }

    #[test]
    fn one_peer_takes_nobody_else_s_place() {
        let connections = Connections::default();
        let (mine, _) = connections.enter(peer(1));
        let theirs: Vec<Connection> =
            (0..5 * ALL_MAX).map(|_| connections.enter(peer(2)).0).collect();
        assert!(!mine.over.is_cancelled());
        let left = theirs.iter().filter(|one| !one.over.is_cancelled()).count();
        assert_eq!(left, PEER_MAX);
    }
}
