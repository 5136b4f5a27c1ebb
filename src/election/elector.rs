//! [`Elector`]: waits for the lease to be free, and for its turn, and takes it.
//!
//! **Invariant:** every lease it returns is one Redis granted to this session, under a term that
//! was never granted before.

use std::sync::Arc;
use std::time::Duration;

use super::Lease;
use super::acquire::lease_call;
use super::lease::turn;
use crate::clock::Moment;
use crate::membership::{End, Exercise, Session};
use crate::store::{Reply, Store, StoreError};
use crate::term::Term;

/// A holder whose deadline has passed is asked after this often, until somebody has reaped it.
const RETRY: Duration = Duration::from_millis(100);
/// A deadline is given this much before it counts as missed.
const SLACK: Duration = Duration::from_millis(20);

/// Stands for election on behalf of one session.
pub(crate) struct Elector {
    pub(crate) store: Store,
    pub(crate) session: Arc<Session>,
    pub(crate) takeover_timeout: Duration,
}

enum Answer {
    Won(Lease),
    Held,
    Over,
}

impl Elector {
    /// Waits until elected; `None` when the session is over.
    pub(crate) async fn elect(&self) -> Option<Lease> {
        let mut standing = self.session.standing();
        loop {
            let seen = standing.borrow_and_update().clone();
            let pause = match &seen.lease {
                _ if !seen.known => Some(Duration::from_secs(1)),
                Some(holder) if holder.member != self.session.id => {
                    Some(holder.deadline.since(Moment::now()) + SLACK)
                }
                _ => None,
            };
            if let Some(pause) = pause {
                tokio::select! {
                    () = self.session.over.cancelled() => return None,
                    _ = standing.changed() => continue,
                    () = tokio::time::sleep(pause) => {}
                }
                if !seen.known {
                    continue;
                }
            }
            let turn = turn(seen.rank, self.takeover_timeout, rand::random());
            tokio::select! {
                () = self.session.over.cancelled() => return None,
                () = tokio::time::sleep(turn) => {}
            }
            if self.taken(&standing.borrow_and_update()) {
                continue;
            }
            if !self.session.until_trusted().await {
                return None;
            }
            match self.acquire().await {
                Ok(Answer::Won(lease)) => return Some(lease),
                Ok(Answer::Over) => return None,
                Ok(Answer::Held) => {}
                Err(error) => tracing::debug!(%error, "acquire unanswered"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Does somebody else lead whose deadline is still to come?
    fn taken(&self, standing: &crate::membership::Standing) -> bool {
        standing.lease.as_ref().is_some_and(|holder| {
            holder.member != self.session.id && holder.deadline + SLACK > Moment::now()
        })
    }

    async fn acquire(&self) -> Result<Answer, StoreError> {
        let call = lease_call(&self.store, &self.session);
        self.session.set_exercise(Exercise::Acquiring);
        let sent = Moment::now();
        let reply = match self.store.work.call(&call, self.session.call_timeout()).await {
            Ok(value) => Reply::parse(value),
            Err(error) => Err(error),
        };
        let answer = self.answer(reply, sent);
        if !matches!(answer, Ok(Answer::Won(_))) {
            self.session.set_exercise(Exercise::Idle);
        }
        answer
    }

    fn answer(&self, reply: Result<Reply, StoreError>, sent: Moment) -> Result<Answer, StoreError> {
        let reply = reply?;
        match reply.tag.as_str() {
            "won" => {
                let term = Term::parse(&reply.text(0)?);
                let term = term.ok_or_else(|| StoreError::odd("a term that is no number"))?;
                let (now, generated) = (reply.number(1)? as u64, reply.number(2)? as u64);
                let (pushed_ms, state) = (reply.number(3)? as u64, reply.bytes(4)?);
                let session = self.session.clone();
                let lease = Lease::new(term, session, sent, now, generated, pushed_ms, state);
                self.session.refresh(sent);
                self.session.set_exercise(Exercise::Leading(term, lease.over.clone()));
                Ok(Answer::Won(lease))
            }
            "held" => {
                let left = Duration::from_millis(reply.number(1)?.max(0) as u64);
                self.session.update_standing(|standing| {
                    if let Some(holder) = &mut standing.lease {
                        holder.deadline = sent + left;
                    }
                });
                Ok(Answer::Held)
            }
            // Heartbeats say so, once a minute.
            "spent" => Ok(Answer::Held),
            "gone" => {
                self.session.end(End::Gone);
                Ok(Answer::Over)
            }
            _ => Err(reply.unexpected()),
        }
    }
}
