//! [`Place`]: where the primary is that owns the slot of a fleet.
//!
//! **Invariant:** all links of a process lead to the same server. One that finds the primary elsewhere tells it here, and the
//! others give theirs up before their next call. What is known here is a hint: only the probe of a connection decides whether
//! it may be used.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::StoreError;
use super::dialer::Dialer;
use super::sentinels::Sentinels;

/// How many nodes of a cluster are remembered beside those of the address.
const NODES_MAX: usize = 64;
/// How often the nodes of a cluster are asked for.
const NODES_EVERY: Duration = Duration::from_secs(60);

/// Instead of the id of a server, until one was found where it is said to be.
const NOT_YET: &str = "-";

/// Where one server listens.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Spot {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Spot {
    pub(crate) fn tcp(host: impl Into<String>, port: u16) -> Spot {
        Spot::Tcp { host: host.into(), port }
    }

    /// Reads `host:port`, as in the answer `MOVED`. Without a host it is the one that we are connected to.
    pub(super) fn read(text: &str, from: &Spot) -> Option<Spot> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match (host, from) {
            ("" | "?", Spot::Tcp { host, .. }) => Some(Spot::tcp(host.as_str(), port)),
            ("" | "?", Spot::Unix(_)) => None,
            (host, _) => Some(Spot::tcp(host, port)),
        }
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spot::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Spot::Tcp { host, port } => write!(f, "{host}:{port}"),
            Spot::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How to find the primary.
#[derive(Clone)]
pub(super) enum Way {
    /// One server, or any node of a cluster: it says itself where else to go.
    One(Spot),
    /// Nodes of a cluster.
    Nodes(Vec<Spot>),
    /// Sentinels name it.
    Sentinels(Sentinels),
}

pub(crate) struct Place {
    way: Way,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Where the primary was found, or where somebody said that it is.
    at: Option<Spot>,
    /// Where it was found last.
    last: Option<Spot>,
    /// A server of the address has named another one.
    names_others: bool,
    /// Grows whenever somebody says that the primary is elsewhere.
    version: u64,
    /// The server that was found there. `None` if it is not known whether it is still the right one.
    server: Option<String>,
    /// Nodes of the cluster that are not part of the address.
    nodes: Vec<Spot>,
    /// Which seed is asked next.
    turn: usize,
    nodes_asked: Option<Instant>,
}

impl Place {
    pub(super) fn new(way: Way) -> Place {
        Place { way, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where to connect now, and the version of that knowledge.
    pub(super) async fn find(
        self: &Arc<Place>,
        dialer: &Dialer,
    ) -> Result<(Spot, u64), StoreError> {
        let version = self.known().version;
        match &self.way {
            Way::One(seed) => Ok((self.known().next(std::slice::from_ref(seed)), version)),
            Way::Nodes(seeds) => Ok((self.known().next(seeds), version)),
            Way::Sentinels(sentinels) => {
                sentinels.listen(self, dialer);
                let named = sentinels.ask(dialer).await;
                // Sentinels that are silent stop nobody: what was the primary may still be it.
                match (named, self.known().last.clone()) {
                    (Ok(spot), _) | (Err(_), Some(spot)) => Ok((spot, version)),
                    (Err(error), None) => Err(error),
                }
            }
        }
    }

    /// A probe that began with this version has found the primary here. False if somebody has said meanwhile that it is
    /// elsewhere.
    pub(super) fn found(&self, spot: &Spot, server: &str, version: u64) -> bool {
        let mut known = self.known();
        if known.version != version && known.at.as_ref().is_some_and(|at| at != spot) {
            return false;
        }
        if known.server.as_deref() != Some(server) {
            tracing::debug!(%spot, server, "the primary is here");
        }
        (known.at, known.last) = (Some(spot.clone()), Some(spot.clone()));
        known.server = Some(server.to_owned());
        true
    }

    /// Somebody said that the primary is elsewhere: connections to another place are given up.
    pub(super) fn said(&self, spot: Spot) {
        let mut known = self.known();
        if known.at.as_ref() != Some(&spot) {
            tracing::debug!(%spot, "the primary is said to be here");
            (known.at, known.server) = (Some(spot), Some(NOT_YET.to_owned()));
            known.version += 1;
        }
    }

    /// The primary is not here, or cannot be reached here.
    pub(super) fn lost(&self, spot: &Spot) {
        let mut known = self.known();
        if known.at.as_ref() == Some(spot) {
            (known.at, known.server) = (None, None);
        }
    }

    /// This seed, asked in its turn, did not lead to the primary: the next one is asked.
    pub(super) fn missed(&self, seed: &Spot) {
        let (Way::One(_) | Way::Nodes(_)) = &self.way else { return };
        let seeds = self.seeds();
        let mut known = self.known();
        if known.of_turn(&seeds) == *seed {
            known.turn = known.turn.wrapping_add(1);
        }
    }

    fn seeds(&self) -> Vec<Spot> {
        match &self.way {
            Way::One(seed) => vec![seed.clone()],
            Way::Nodes(seeds) => seeds.clone(),
            Way::Sentinels(_) => Vec::new(),
        }
    }

    /// May a connection to this server still be used?
    pub(super) fn is_here(&self, server: &str) -> bool {
        self.known().server.as_ref().is_none_or(|known| known == server)
    }

    /// Is it time to ask for the nodes of the cluster?
    pub(super) fn wants_nodes(&self) -> bool {
        let (now, mut known) = (Instant::now(), self.known());
        if known.nodes_asked.is_some_and(|at| now - at < NODES_EVERY) {
            return false;
        }
        known.nodes_asked = Some(now);
        true
    }

    /// Remembers nodes of the cluster, in case those of the address are gone.
    pub(super) fn learn(&self, mut nodes: Vec<Spot>) {
        nodes.truncate(NODES_MAX);
        if !nodes.is_empty() {
            self.known().nodes = nodes;
        }
    }

    /// A server of the address has named another one.
    pub(super) fn named(&self) {
        self.known().names_others = true;
    }

    /// Is there more than one server that may be or become the primary?
    pub(super) fn has_others(&self) -> bool {
        let known = self.known();
        match &self.way {
            Way::One(seed) => {
                !known.nodes.is_empty()
                    || known.names_others
                    || known.last.as_ref().is_some_and(|last| last != seed)
            }
            Way::Nodes(_) | Way::Sentinels(_) => true,
        }
    }

    /// Must every server be a node of a cluster?
    pub(super) fn is_of_cluster(&self) -> bool {
        matches!(self.way, Way::Nodes(_))
    }

    /// How many replicas the sentinels know; 0 without them.
    pub(super) fn replicas(&self) -> u32 {
        match &self.way {
            Way::Sentinels(sentinels) => sentinels.replicas(),
            Way::One(_) | Way::Nodes(_) => 0,
        }
    }

    pub(super) fn has_sentinels(&self) -> bool {
        matches!(self.way, Way::Sentinels(_))
    }
}

impl Known {
    fn next(&self, seeds: &[Spot]) -> Spot {
        match &self.at {
            Some(at) => at.clone(),
            None => self.of_turn(seeds),
        }
    }

    fn of_turn(&self, seeds: &[Spot]) -> Spot {
        let mut all: Vec<&Spot> = Vec::new();
        for spot in seeds.iter().chain(&self.nodes).chain(&self.last) {
            if !all.contains(&spot) {
                all.push(spot);
            }
        }
        all[self.turn % all.len()].clone()
    }
}

/// What a server says when it is asked for the slot of another one: `<slot> <host>:<port>`.
pub(super) fn read_moved(detail: &str, from: &Spot) -> Option<Spot> {
    Spot::read(detail.split_whitespace().nth(1)?, from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place::new(Way::Nodes(vec![Spot::tcp("a", 1), Spot::tcp("b", 2)]))
    }

    fn next(place: &Place) -> String {
        let seeds = place.seeds();
        place.known().next(&seeds).to_string()
    }

    #[test]
    fn seeds_are_asked_in_turn_until_the_primary_is_found() {
        let place = place();
        assert_eq!(next(&place), "a:1");
        // Three links miss it at the same time: it was one turn.
        for _ in 0..3 {
            place.missed(&Spot::tcp("a", 1));
        }
        assert_eq!(next(&place), "b:2");
        assert!(place.found(&Spot::tcp("c", 3), "run-1", 0));
        assert_eq!((next(&place), next(&place)), ("c:3".into(), "c:3".into()));
        place.learn(vec![Spot::tcp("c", 3), Spot::tcp("a", 1)]);
        place.lost(&Spot::tcp("c", 3));
        place.missed(&Spot::tcp("c", 3));
        assert_eq!(next(&place), "b:2", "its turn is still to come");
        place.missed(&Spot::tcp("b", 2));
        assert_eq!(next(&place), "c:3", "learned, and its turn");
        place.missed(&Spot::tcp("c", 3));
        assert_eq!(next(&place), "a:1");
    }

    /// A cluster that has no primary for a moment says nothing against the one that it had.
    #[test]
    fn where_the_primary_was_is_asked_again() {
        let place = Place::new(Way::One(Spot::tcp("a", 1)));
        assert!(!place.has_others());
        assert!(place.found(&Spot::tcp("b", 2), "run-1", 0));
        place.lost(&Spot::tcp("b", 2));
        assert!(place.has_others());
        assert_eq!(next(&place), "a:1");
        place.missed(&Spot::tcp("a", 1));
        assert_eq!(next(&place), "b:2");
    }

    #[test]
    fn a_connection_that_leads_elsewhere_is_given_up() {
        let place = place();
        assert!(place.is_here("run-1"), "nothing better is known");
        assert!(place.found(&Spot::tcp("a", 1), "run-1", 0));
        assert!(place.is_here("run-1") && !place.is_here("run-2"));
        place.said(Spot::tcp("a", 1));
        assert!(place.is_here("run-1"), "that is where it is");
        place.said(Spot::tcp("b", 2));
        assert!(!place.is_here("run-1"), "at once, before it was found there");
        assert!(!place.found(&Spot::tcp("a", 1), "run-1", 0), "a probe that began before");
        assert!(!place.is_here("run-1"));
        assert!(place.found(&Spot::tcp("b", 2), "run-2", 1));
        assert!(place.is_here("run-2"));
        // One that broke says nothing about the others.
        place.lost(&Spot::tcp("b", 2));
        assert!(place.is_here("run-2") && place.is_here("run-3"));
    }

    #[test]
    fn where_a_slot_has_moved_to_is_read() {
        let from = Spot::tcp("h", 9);
        let read = |text| read_moved(text, &from).map(|spot| spot.to_string());
        assert_eq!(read("429 10.0.0.1:6380").as_deref(), Some("10.0.0.1:6380"));
        assert_eq!(read("429 :6380").as_deref(), Some("h:6380"), "the same host");
        assert_eq!(read("429 ?:6380").as_deref(), Some("h:6380"));
        assert_eq!(read("429 ::1:6380").as_deref(), Some("[::1]:6380"));
        assert_eq!(read("429 redis.example:7000").as_deref(), Some("redis.example:7000"));
        for odd in ["", "429", "429 x", "429 x:y", "429 x:0", "429 x:99999"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
