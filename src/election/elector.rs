//! [`Elector`]: waits until the lease is free and until its turn, and takes the lease.
//!
//! **Invariant:** every lease it returns was granted by Redis to this session, under a term that was
//! never granted before.

use std::sync::Arc;
use std::time::Duration;

use super::Lease;
use super::lease::turn;
use crate::clock::Moment;
use crate::membership::{AskError, FleetView, Patience, Session};
use crate::store::Store;
use crate::tenure::{Granted, LeaseUse, acquire_lease};

/// Pause between two tries. A holder whose deadline has passed keeps the lease until it is reaped.
const RETRY: Duration = Duration::from_millis(100);
/// A deadline counts as missed only when this time has passed after it.
const SLACK: Duration = Duration::from_millis(20);

/// Stands for election for one session.
pub(crate) struct Elector {
    pub(crate) store: Store,
    pub(crate) session: Arc<Session>,
    pub(crate) takeover_step: Duration,
}

impl Elector {
    /// Waits until this member is elected. `None` if the session is over.
    pub(crate) async fn elect(&self) -> Option<Lease> {
        let mut views = self.session.views.follow();
        loop {
            if !self.may_lead().await {
                return None;
            }
            let seen = views.borrow_and_update().clone();
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
                    _ = views.changed() => continue,
                    () = tokio::time::sleep(pause) => {}
                }
                if !seen.known {
                    continue;
                }
            }
            let turn = turn(seen.rank, self.takeover_step, rand::random());
            tokio::select! {
                () = self.session.over.cancelled() => return None,
                () = tokio::time::sleep(turn) => {}
            }
            if self.taken(&views.borrow_and_update()) {
                continue;
            }
            if !self.session.trust.wait().await {
                return None;
            }
            match self.acquire().await {
                Ok(Some(lease)) => return Some(lease),
                Ok(None) => {}
                Err(AskError::Over | AskError::Gone) => return None,
                Err(AskError::Failed(error)) => tracing::debug!(%error, "acquire was not answered"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Waits while this member is drained. False if the session is over.
    async fn may_lead(&self) -> bool {
        let mut orders = self.session.orders.follow();
        tokio::select! {
            () = self.session.over.cancelled() => false,
            allowed = orders.wait_for(|orders| !orders.is_drained) => allowed.is_ok(),
        }
    }

    /// Does another member lead, with a deadline that has not passed yet?
    fn taken(&self, view: &FleetView) -> bool {
        view.lease.as_ref().is_some_and(|holder| {
            holder.member != self.session.id && holder.deadline + SLACK > Moment::now()
        })
    }

    /// Asks for the lease. `None` if another member has it.
    async fn acquire(&self) -> Result<Option<Lease>, AskError> {
        let session = &self.session;
        // A grant that is not on the replicas could be given again, and asking again makes another one: so it is waited for.
        let call = acquire_lease(&self.store, &session.id, session.trust.lease_ms()).patient();
        session.tenures.lease.set(LeaseUse::Acquiring);
        let sent = Moment::now();
        let answer = tokio::select! {
            answer = session.ask(&self.store.work, Patience::ONCE, call) => answer,
            () = session.over.cancelled() => Err(AskError::Over),
        };
        if let Ok(Granted::Won(grant)) = answer {
            let lease = Lease::new(session.clone(), sent, grant);
            session.tenures.lease.set(LeaseUse::Leading(lease.term, lease.over.clone()));
            return Ok(Some(lease));
        }
        session.tenures.lease.set(LeaseUse::Idle);
        if let Granted::Held(left) = answer? {
            session.views.update(|view| {
                if let Some(holder) = &mut view.lease {
                    holder.deadline = sent + left;
                }
            });
        }
        Ok(None)
    }
}
