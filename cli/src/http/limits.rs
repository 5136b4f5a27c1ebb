//! [`Limits`]: how often one peer may change something, or guess a token.
//!
//! **Invariant:** a peer that was quiet may do [`BURST`] times as much at once as in a second, and what is remembered of
//! peers is bounded.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What is counted.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum What {
    Change,
    WrongToken,
}

/// How many a peer may do in a second.
fn per_second(what: What) -> f64 {
    match what {
        What::Change => 100.0,
        What::WrongToken => 5.0,
    }
}

const BURST: f64 = 4.0;
/// Peers that are remembered.
const PEERS_MAX: usize = 4096;

/// What is left of the allowance of a peer, and when that was.
type Left = (f64, Instant);

/// The allowances of all peers of one port.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    peers: Arc<Mutex<HashMap<(IpAddr, What), Left>>>,
}

/// Who counts as one peer: an address, or a network of IPv6, all of which one host may have.
fn peer_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
    }
}

impl Limits {
    /// Uses up a part of the allowance; false if nothing is left of it.
    pub(super) fn uses(&self, what: What, address: IpAddr, now: Instant) -> bool {
        let rate = per_second(what);
        let grown = |(left, at): &Left, rate: f64| {
            (left + now.saturating_duration_since(*at).as_secs_f64() * rate).min(rate * BURST)
        };
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.len() >= PEERS_MAX {
            // Who has its whole allowance need not be remembered.
            peers.retain(|(_, what), left| {
                let rate = per_second(*what);
                grown(left, rate) < rate * BURST
            });
            if peers.len() >= PEERS_MAX {
                peers.clear();
            }
        }
        let entry = peers.entry((peer_of(address), what)).or_insert((rate * BURST, now));
        *entry = (grown(entry, rate), now);
        let allowed = entry.0 >= 1.0;
        entry.0 -= f64::from(u8::from(allowed));
        allowed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_allowance_is_used_up_and_grows_again() {
        let (limits, now) = (Limits::default(), Instant::now());
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let tries =
            |address, at| (0..1000).filter(|_| limits.uses(What::WrongToken, address, at)).count();
        assert_eq!((tries(one, now), tries(one, now)), (20, 0));
        assert!(limits.uses(What::Change, one, now));
        assert_eq!(tries(other, now), 20, "others have their own");
        assert_eq!(tries(one, now + Duration::from_secs(2)), 10);
        for network in 0..3 * PEERS_MAX as u16 {
            let address = IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, network]);
            limits.uses(What::Change, address, now);
        }
        assert!(limits.peers.lock().expect("not poisoned").len() <= PEERS_MAX);
    }
}
