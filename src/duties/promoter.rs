//! [`Promoter`]: lets go scheduled messages that are due.
//!
//! **Invariant:** the generator does it at once; where nobody leads, the lowest rank. Another member that looks does it if
//! something is overdue, so a generator that is frozen, deaf or just dead holds up nothing.

use std::sync::Arc;
use std::time::Duration;

use super::{Duty, Means};
use crate::Error;
use crate::clock::Moment;
use crate::membership::{AskError, Due, FleetView, Patience, Session};
use crate::mutant::{Rule, disabled};
use crate::notice::Notice;
use crate::schedule::{PROMOTE_MAX, promote};
use crate::store::Link;
use crate::tenure::LeaseUse;

/// Others than the first let something be overdue for this long.
const OTHERS_AFTER: Duration = Duration::from_millis(300);
/// Something that is overdue for this long is reported.
const OVERDUE: Duration = Duration::from_secs(5);
/// How often it is reported.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Pause after an error.
const RETRY: Duration = Duration::from_millis(100);

/// Promotes whenever something is due.
pub(super) struct Promoter {
    means: Means,
    /// The session connection, on whose thread it runs.
    link: Arc<Link>,
}

/// Is this the member that acts first: the leader, or the lowest rank where nobody leads?
pub(super) fn acts_first(session: &Session, view: &FleetView) -> bool {
    match (session.tenures.lease.get(), &view.lease) {
        (LeaseUse::Leading(..), _) => true,
        (_, Some(holder)) => holder.member == session.id,
        (_, None) => view.rank == 0,
    }
}

/// After how long this member promotes what is due in `left_ms`.
fn promotes_in(first: bool, left_ms: i64) -> Duration {
    let extra = if first { 0 } else { OTHERS_AFTER.as_millis() as i64 };
    Duration::from_millis(left_ms.saturating_add(extra).max(0) as u64)
}

impl Promoter {
    pub(super) fn new(means: Means) -> Result<Promoter, Error> {
        let link = means.store.session_link()?.link.clone();
        Ok(Promoter { means, link })
    }

    /// Promotes under one session, until it is over.
    async fn serve(&self, session: &Session) {
        let mut views = session.views.follow();
        let mut reported: Option<Moment> = None;
        loop {
            let (due, first) = {
                let view = views.borrow_and_update();
                (view.due, acts_first(session, &view))
            };
            let may = first || !disabled(Rule::OthersPromote);
            let pause =
                due.filter(|_| may).map(|due| promotes_in(first, due.left_ms(Moment::now())));
            tokio::select! {
                () = session.over.cancelled() => return,
                changed = views.changed() => if changed.is_err() {
                    return;
                },
                () = tokio::time::sleep(pause.unwrap_or(REPORT_EVERY)), if pause.is_some() => {
                    if let Some(due) = due {
                        self.report_overdue(due, &mut reported);
                    }
                    self.promote(session).await;
                }
            }
        }
    }

    fn report_overdue(&self, due: Due, reported: &mut Option<Moment>) {
        let late = Duration::from_millis(due.left_ms(Moment::now()).min(0).unsigned_abs());
        let is_new = reported.is_none_or(|at| Moment::now().since(at) > REPORT_EVERY);
        if late > OVERDUE && is_new {
            *reported = Some(Moment::now());
            self.means.board.publish(Notice::Overdue { late });
        }
    }

    /// Lets go all that is due.
    async fn promote(&self, session: &Session) {
        loop {
            if !session.trust.holds() {
                return tokio::time::sleep(RETRY).await;
            }
            let asked = Moment::now();
            let call = promote(&self.means.store, session);
            match session.ask(&self.link, Patience::ONE_BEAT, call).await {
                Ok(promoted) if promoted.moved >= PROMOTE_MAX => {}
                Ok(promoted) => {
                    let due = promoted.next_ms.map(|in_ms| Due { asked, in_ms });
                    return session.views.update(|view| view.due = due);
                }
                Err(AskError::Over | AskError::Gone) => return,
                Err(AskError::Failed(error)) => {
                    tracing::debug!(%error, "letting go what is due failed");
                    return tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

impl Duty for Promoter {
    const ON_SESSION_THREAD: bool = true;

    async fn run(self) {
        let mut sessions = self.means.sessions.clone();
        loop {
            let session = sessions.borrow_and_update().clone();
            if let Some(session) = session {
                self.serve(&session).await;
            }
            if sessions.changed().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_promotes_at_its_time_and_the_others_when_it_is_overdue() {
        let ms = Duration::from_millis;
        assert_eq!((promotes_in(true, 70), promotes_in(true, -4000)), (ms(70), ms(0)));
        assert_eq!((promotes_in(false, 70), promotes_in(false, 0)), (ms(370), ms(300)));
        assert_eq!((promotes_in(false, -299), promotes_in(false, -4000)), (ms(1), ms(0)));
    }
}
