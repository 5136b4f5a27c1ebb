//! [`Exchanging`]: one round trip with Redis, made until every call has its answer.
//!
//! **Invariant:** a call is repeated byte for byte until it is answered or the session is over; only a fetch
//! whose answer does not come through three times is replaced by a call that gives back what it brought. A
//! refusal that passes is waited out; one that does not ends the session, so that others have what we hold.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::clock::Moment;
use crate::membership::{End, Session};
use crate::notice::{Board, Notice};
use crate::store::{Call, Store, StoreError};

/// Pause before an unanswered exchange is repeated.
pub(super) const RETRY: Duration = Duration::from_millis(50);
/// A call that Redis refuses this often, for no reason that passes, will never be accepted.
const REFUSALS_MAX: u32 = 60;
/// A fetch whose answer does not come through this often, while Redis answers otherwise, is given up.
const FETCH_TRIES: u32 = 3;

/// What Redis answered to an exchange.
pub(super) struct Answers {
    pub(super) values: Vec<redis::Value>,
    /// The fetch was given up: its answer is that of the call that gives back what it brought.
    pub(super) unread: bool,
}

/// One exchange under way.
pub(super) struct Exchanging {
    pub(super) store: Store,
    pub(super) session: Arc<Session>,
    /// What is settled and given back.
    pub(super) calls: Vec<Call>,
    /// And fetched, as the last.
    pub(super) fetch: Option<FetchCall>,
    /// It settles something.
    pub(super) settles: bool,
    pub(super) replicas: u32,
    pub(super) board: Board,
}

/// A fetch, and what is sent instead if its answer does not come through.
pub(super) struct FetchCall {
    pub(super) call: Call,
    pub(super) unread: Call,
    /// Bytes its answer may have.
    pub(super) bytes: usize,
}

impl Exchanging {
    /// Sends all calls together and repeats the unanswered ones until each has its answer; `None` when
    /// the session is over.
    pub(super) async fn perform(mut self) -> Option<Answers> {
        let (store, session) = (self.store, self.session);
        let fetch_at = self.calls.len();
        self.calls.extend(self.fetch.as_ref().map(|fetch| fetch.call.clone()));
        let mut answers: Vec<Option<redis::Value>> = self.calls.iter().map(|_| None).collect();
        let (mut refusals, mut passing, mut epoch) = (0, 0_u32, 0);
        let (mut fetches, mut unread) = (0, false);
        loop {
            if !session.until_trusted().await {
                return None;
            }
            let open: Vec<usize> = (0..answers.len()).filter(|&at| answers[at].is_none()).collect();
            let sent = Moment::now();
            let timeout = session.call_timeout();
            if !open.is_empty() {
                epoch = store.work.epoch();
            }
            let calls = open.iter().map(|&at| store.work.call(&self.calls[at], timeout));
            let results = join_all(calls).await;
            let mut heard = false;
            for (at, result) in open.into_iter().zip(results) {
                match result {
                    Ok(value) => {
                        heard = true;
                        answers[at] = Some(value);
                    }
                    Err(error) if error.is_passing() || error.is_oom() => {
                        let refused = matches!(error, StoreError::Server { .. });
                        passing += u32::from(refused);
                        tracing::debug!(%error, "unanswered, will be repeated");
                        // Redis is there, and the answer is not: it may be large, and the link slow.
                        let slow =
                            matches!(error, StoreError::Silent(_)) && session.refreshed_at() > sent;
                        if let Some(fetch) = self.fetch.as_ref().filter(|_| at == fetch_at && slow)
                        {
                            fetches += 1;
                            unread = fetches >= FETCH_TRIES;
                            self.calls[at] = match unread {
                                true => fetch.unread.clone(),
                                false => fetch.call.clone().answering(fetch.bytes),
                            };
                        }
                    }
                    Err(error) => {
                        refusals += 1;
                        tracing::warn!(%error, refusals, "Redis refused");
                        if refusals >= REFUSALS_MAX {
                            // Nothing of it was recorded, and nothing will be: let others have what we hold.
                            self.board.publish(Notice::Refused { reason: error.to_string() });
                            session.end(End::Refused);
                            return None;
                        }
                    }
                }
            }
            if heard {
                session.refresh(sent);
            }
            if answers.iter().all(Option::is_some) {
                let wanted = if self.settles || unread { self.replicas } else { 0 };
                match store.replicas(wanted, timeout, epoch).await {
                    Ok(have) if have < wanted => {
                        self.board.publish(Notice::Unreplicated { replicas: have, wanted });
                        continue;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        // Another connection knows nothing of these writes: make them again on it.
                        tracing::debug!(%error, "replicas unknown, will be repeated");
                        answers.fill(None);
                        tokio::time::sleep(RETRY).await;
                        continue;
                    }
                }
                let values = answers.into_iter().flatten().collect();
                return Some(Answers { values, unread });
            }
            // The longer it refuses, the less it is asked.
            tokio::time::sleep(RETRY * (refusals.max(passing) / 4 + 1).min(10)).await;
        }
    }
}
