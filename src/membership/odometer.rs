//! [`Odometer`]: how far the fleet had come on the server that answered us last.
//!
//! **Invariant:** another server is noticed by the first heartbeat that it answers, and that heartbeat says what we saw on the
//! one before.

use crate::notice::Notice;
use crate::store::{CALLS, Call};

#[derive(Debug, Default)]
pub(super) struct Odometer(Option<Reading>);

#[derive(Debug)]
struct Reading {
    server: String,
    /// The sum of all counts of the fleet, last and first.
    steps: u64,
    first: u64,
}

impl Odometer {
    /// Adds the server that we are connected to, if that is known, and the one that we come from.
    pub(super) fn tell<R>(&self, call: Call<R>, server: Option<&str>) -> Call<R> {
        let call = call.arg(server.unwrap_or_default());
        match server.and(self.0.as_ref()) {
            Some(last) => call.arg(&last.server).arg(last.steps).arg(last.first),
            None => call.arg("").arg(0).arg(0),
        }
    }

    /// A heartbeat was answered by this server. The notice, if it is another one than before.
    pub(super) fn reached(&mut self, server: String, steps: u64, forgotten: u64) -> Option<Notice> {
        tracing::trace!(target: CALLS, server, forgotten, "reached");
        match &mut self.0 {
            Some(last) if last.server == server => {
                last.steps = steps;
                None
            }
            last => {
                let to = server.clone();
                let before = last.replace(Reading { server, steps, first: steps })?;
                Some(Notice::ServerChanged { from: before.server, to, forgotten })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_server_is_noticed_once() {
        let mut odometer = Odometer::default();
        assert!(odometer.reached("one".to_owned(), 5, 0).is_none(), "the first one");
        assert!(odometer.reached("one".to_owned(), 9, 0).is_none());
        let notice = odometer.reached("two".to_owned(), 7, 2);
        assert!(matches!(notice, Some(Notice::ServerChanged { forgotten: 2, .. })), "{notice:?}");
        assert!(odometer.reached("two".to_owned(), 8, 0).is_none());
        let last = odometer.0.expect("a reading");
        assert_eq!((last.server.as_str(), last.steps, last.first), ("two", 8, 7));
    }
}
