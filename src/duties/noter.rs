//! [`Noter`]: writes to the common log what only this process saw.
//!
//! **Invariant:** it delays nobody. What it cannot write, because Redis is away for long or because there is too much of
//! it, is counted and told.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::Means;
use crate::history::{Author, Burst, Note, Thrift};
use crate::notice::{Notice, Notices};
use crate::store::{StoreError, nonce};

/// How often bursts of errors and counts are looked at.
const WINDOW: Duration = Duration::from_secs(10);
/// Entries that wait while Redis does not answer. What comes then is counted.
const WAITING_MAX: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after Redis did not answer.
const RETRY: Duration = Duration::from_millis(500);
/// How long the end of a member waits for what is still to be written.
const END: Duration = Duration::from_secs(1);

pub(super) struct Noter {
    means: Means,
    notices: Notices,
    /// What marks the entries of this process.
    nonce: String,
    waiting: VecDeque<(u64, Note, Author)>,
    /// The number of the next entry.
    next: u64,
    /// Entries that found no room.
    lost: u64,
    thrift: Thrift,
    burst: Burst,
}

/// An entry that is being written.
type Writing = BoxFuture<'static, Result<(), StoreError>>;

impl Noter {
    pub(super) fn new(means: Means) -> Noter {
        let notices = means.board.listen();
        Noter {
            means,
            notices,
            nonce: nonce(),
            waiting: VecDeque::new(),
            next: 1,
            lost: 0,
            thrift: Thrift::new(Instant::now()),
            burst: Burst::default(),
        }
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

    fn hear(&mut self, notice: &Notice) {
        if let Notice::MessageFailed { reason, .. } = notice {
            self.burst.count(reason);
        } else if let Some(note) = Note::of(notice)
            && self.thrift.passes(note.kind, Instant::now())
        {
            self.add(note);
        }
    }

    /// Begins to write the first entry, after a pause. What happens meanwhile does not begin it anew.
    fn begin(&self, pause: Duration) -> Option<Writing> {
        let (number, note, by) = self.waiting.front()?;
        let call = note.call(&self.means.store, &format!("{}-{number}", self.nonce), by);
        let link = self.means.store.work.clone();
        Some(Box::pin(async move {
            tokio::time::sleep(pause).await;
            link.call(&call, TIMEOUT).await
        }))
    }

    /// What became of the first entry, and the pause before the next try.
    fn written(&mut self, written: Result<(), StoreError>) -> Duration {
        if written.as_ref().is_err_and(StoreError::is_passing) {
            return RETRY;
        }
        if let Err(error) = written {
            tracing::debug!(%error, "the common log was not written");
        }
        self.waiting.pop_front();
        Duration::ZERO
    }

    /// The member ends: writes what is there, for a bounded time.
    async fn finish(&mut self, mut writing: Option<Writing>) {
        while let Some(Some(notice)) = self.notices.next().now_or_never() {
            self.hear(&notice);
        }
        let all = async {
            let mut pause = Duration::ZERO;
            while let Some(one) = writing.take().or_else(|| self.begin(pause)) {
                pause = self.written(one.await);
            }
        };
        if tokio::time::timeout(END, all).await.is_err() {
            let left = self.waiting.len();
            tracing::debug!(left, "entries of the common log were not written");
        }
    }

    /// Writes until the member ends, and then what is there.
    pub(super) async fn run(mut self) {
        let (mut windows, mut done) = (tokio::time::interval(WINDOW), 0);
        let (mut writing, mut pause) = (None, Duration::ZERO);
        let over = self.means.over.clone();
        loop {
            writing = writing.or_else(|| self.begin(pause));
            let write = async {
                match &mut writing {
                    Some(writing) => writing.await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = over.cancelled() => return self.finish(writing).await,
                written = write => {
                    writing = None;
                    pause = self.written(written);
                }
                notice = self.notices.next() => match notice {
                    None => return,
                    Some(notice) => self.hear(&notice),
                },
                _ = windows.tick() => {
                    let now = self.done();
                    let more = now.saturating_sub(std::mem::replace(&mut done, now));
                    let told = [self.burst.window(more), self.thrift.rest(Instant::now())];
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
