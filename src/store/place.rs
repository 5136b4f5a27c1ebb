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

/// How the primary is looked for.
#[derive(Clone)]
pub(super) enum Way {
    /// One server, or nodes of a cluster: they say themselves where else to go.
    Seeds(Vec<Spot>),
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

    /// Where to connect now.
    pub(super) async fn find(self: &Arc<Place>, dialer: &Dialer) -> Result<Spot, StoreError> {
        match &self.way {
            Way::Seeds(seeds) => Ok(self.known().next(seeds)),
            Way::Sentinels(sentinels) => {
                sentinels.listen(self, dialer);
                let named = sentinels.ask(dialer).await;
                // Sentinels that are silent stop nobody: what was the primary may still be it.
                match (named, self.known().at.clone()) {
                    (Ok(spot), _) | (Err(StoreError::Unconnected(_)), Some(spot)) => Ok(spot),
                    (Err(error), _) => Err(error),
                }
            }
        }
    }

    /// A probe has found the primary here.
    pub(super) fn found(&self, spot: &Spot, server: &str) {
        let mut known = self.known();
        if known.server.as_deref() != Some(server) {
            tracing::debug!(%spot, server, "the primary is here");
        }
        (known.at, known.server) = (Some(spot.clone()), Some(server.to_owned()));
    }

    /// Somebody said that the primary is elsewhere: connections to another place are given up.
    pub(super) fn said(&self, spot: Spot) {
        let mut known = self.known();
        if known.at.as_ref() != Some(&spot) {
            tracing::debug!(%spot, "the primary is said to be here");
            (known.at, known.server) = (Some(spot), Some(NOT_YET.to_owned()));
        }
    }

    /// The primary is not here, or cannot be reached here.
    pub(super) fn lost(&self, spot: &Spot) {
        let mut known = self.known();
        if known.at.as_ref() == Some(spot) {
            (known.at, known.server) = (None, None);
        }
        known.turn = known.turn.wrapping_add(1);
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

    /// Is there more than one server that may be or become the primary?
    pub(super) fn has_others(&self) -> bool {
        let known = self.known();
        match &self.way {
            Way::Seeds(seeds) => seeds.len() + known.nodes.len() > 1 || known.at.is_some(),
            Way::Sentinels(_) => true,
        }
    }

    pub(super) fn has_sentinels(&self) -> bool {
        matches!(self.way, Way::Sentinels(_))
    }
}

impl Known {
    fn next(&self, seeds: &[Spot]) -> Spot {
        if let Some(at) = &self.at {
            return at.clone();
        }
        let all: Vec<&Spot> =
            seeds.iter().chain(self.nodes.iter().filter(|node| !seeds.contains(node))).collect();
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
        Place::new(Way::Seeds(vec![Spot::tcp("a", 1), Spot::tcp("b", 2)]))
    }

    fn next(place: &Place) -> String {
        let Way::Seeds(seeds) = &place.way else { panic!("seeds") };
        place.known().next(seeds).to_string()
    }

    #[test]
    fn seeds_are_asked_in_turn_until_the_primary_is_found() {
        let place = place();
        assert_eq!(next(&place), "a:1");
        place.lost(&Spot::tcp("a", 1));
        assert_eq!(next(&place), "b:2");
        place.found(&Spot::tcp("c", 3), "run-1");
        assert_eq!((next(&place), next(&place)), ("c:3".into(), "c:3".into()));
        place.learn(vec![Spot::tcp("c", 3), Spot::tcp("a", 1)]);
        place.lost(&Spot::tcp("c", 3));
        assert_eq!(next(&place), "c:3", "learned, and its turn");
        place.lost(&Spot::tcp("c", 3));
        assert_eq!(next(&place), "a:1");
    }

    #[test]
    fn a_connection_that_leads_elsewhere_is_given_up() {
        let place = place();
        assert!(place.is_here("run-1"), "nothing better is known");
        place.found(&Spot::tcp("a", 1), "run-1");
        assert!(place.is_here("run-1") && !place.is_here("run-2"));
        place.said(Spot::tcp("a", 1));
        assert!(place.is_here("run-1"), "that is where it is");
        place.said(Spot::tcp("b", 2));
        assert!(!place.is_here("run-1"), "at once, before it was found there");
        place.found(&Spot::tcp("b", 2), "run-2");
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
