//! [`Noter`]: writes to the common log what only this process saw.
//!
//! **Invariant:** it delays nobody. What it cannot write, because Redis is away for long or because there is too much of
//! it, is counted and told.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Duty, Means};
use crate::history::{Author, Burst, Note, Thrift};
use crate::notice::{Notice, Notices};
use crate::store::nonce;

/// How often bursts of errors and counts are looked at.
const WINDOW: Duration = Duration::from_secs(10);
/// Entries that wait while Redis does not answer. What comes then is counted.
const WAITING_MAX: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after Redis did not answer.
const RETRY: Duration = Duration::from_millis(500);

pub(super) struct Noter {
    means: Means,
    notices: Notices,
    waiting: VecDeque<(u64, Note, Author)>,
    /// The number of the next entry.
    next: u64,
    /// Entries that found no room.
    lost: u64,
}

impl Noter {
    pub(super) fn new(means: Means) -> Noter {
        let notices = means.board.listen();
        Noter { means, notices, waiting: VecDeque::new(), next: 1, lost: 0 }
    }

    fn author(&self) -> Author {
        let session = self.means.sessions.borrow();
        let term = session.as_ref().and_then(|session| session.tenures.lease.term());
        Author {
            member: session.as_ref().map_or_else(String::new, |session| session.id.to_string()),
            label: self.means.label.clone(),
            role: self.means.roles.borrow().to_string(),
            term: term.map_or_else(String::new, |term| term.to_string()),
        }
    }

    fn add(&mut self, note: Note) {
        if self.waiting.len() >= WAITING_MAX {
            self.lost += 1;
            return;
        }
        self.waiting.push_back((self.next, note, self.author()));
        self.next += 1;
    }

    /// How many messages this session has done.
    fn done(&self) -> u64 {
        let session = self.means.sessions.borrow();
        session.as_ref().map_or(0, |session| session.tally.done.load(Ordering::Relaxed))
    }
}

impl Duty for Noter {
    const ON_SESSION_THREAD: bool = false;

    async fn run(mut self) {
        let (nonce, mut thrift, mut burst) =
            (nonce(), Thrift::new(Instant::now()), Burst::default());
        let (mut windows, mut done) = (tokio::time::interval(WINDOW), 0);
        let mut wait = Duration::ZERO;
        loop {
            let first = self.waiting.front();
            let write = async {
                let Some((number, note, by)) = first else { return std::future::pending().await };
                tokio::time::sleep(wait).await;
                let call = note.call(&self.means.store, &format!("{nonce}-{number}"), by);
                self.means.store.work.call(&call, TIMEOUT).await
            };
            tokio::select! {
                written = write => match written {
                    Err(error) if error.is_passing() => wait = RETRY,
                    written => {
                        if let Err(error) = written {
                            tracing::debug!(%error, "the common log was not written");
                        }
                        wait = Duration::ZERO;
                        self.waiting.pop_front();
                    }
                },
                notice = self.notices.next() => match notice {
                    None => return,
                    Some(Notice::MessageFailed { reason, .. }) => burst.count(&reason),
                    Some(notice) => if let Some(note) = Note::of(&notice)
                        && thrift.passes(Instant::now())
                    {
                        self.add(note);
                    },
                },
                _ = windows.tick() => {
                    let now = self.done();
                    let more = now.saturating_sub(std::mem::replace(&mut done, now));
                    let told = [burst.window(more), thrift.rest(Instant::now())];
                    told.into_iter().flatten().for_each(|note| self.add(note));
                    if self.lost > 0 && self.waiting.is_empty() {
                        let notices = std::mem::take(&mut self.lost);
                        Note::of(&Notice::Missed { notices }).into_iter().for_each(|note| self.add(note));
                    }
                }
            }
        }
    }
}
