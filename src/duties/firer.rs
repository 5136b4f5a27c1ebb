//! [`Firer`]: fires the periodic entries.
//!
//! **Invariant:** the leader fires; where nobody leads, the lowest rank. The script makes it once in any case: this only
//! keeps two from trying.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::promoter::acts_first;
use super::{Duty, Means};
use crate::Error;
use crate::clock::Moment;
use crate::json_time::{at_ms, since_1970_ms};
use crate::membership::{AskError, Patience, Session};
use crate::mutant::{Rule, disabled};
use crate::notice::Notice;
use crate::schedule::{Entries, Fired, Firing};
use crate::store::Link;

/// The longest sleep: Redis's clock may be set meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the entries are read again although nothing told of a change.
const REREAD_EVERY: Duration = Duration::from_secs(60);
/// Pause after an error, and before an entry whose lane is full is tried again.
const RETRY: Duration = Duration::from_millis(200);

/// Fires whatever is due.
pub(super) struct Firer {
    means: Means,
    /// The session connection, on whose thread it runs: busy handlers must not delay it.
    link: Arc<Link>,
}

/// What this member knows about the entries.
#[derive(Default)]
struct Known {
    entries: Entries,
    /// The change of the entries that it knows; `None`: it must read them.
    rev: Option<u64>,
    /// When it read them.
    read: Option<Moment>,
}

impl Firer {
    pub(super) fn new(means: Means) -> Result<Firer, Error> {
        let link = means.store.session_link()?.link.clone();
        Ok(Firer { means, link })
    }

    /// Fires under one session, until it is over.
    async fn serve(&self, session: &Session) {
        let (mut views, mut orders) = (session.views.follow(), session.orders.follow());
        let mut known = Known::default();
        loop {
            let first = acts_first(session, &views.borrow_and_update());
            let rev = orders.borrow_and_update().crons;
            let mut pause = None;
            match first {
                true => pause = Some(self.fire(session, &mut known, rev).await),
                // Whoever fires meanwhile knows more.
                false => known.rev = None,
            }
            let sleep = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            // A view changes ten times a second. While it acts first, its own timer is enough.
            let led = async {
                loop {
                    if views.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                    if acts_first(session, &views.borrow_and_update()) != first {
                        return;
                    }
                }
            };
            tokio::select! {
                () = session.over.cancelled() => return,
                changed = orders.changed() => if changed.is_err() {
                    return;
                },
                () = led => {}
                () = sleep => {}
            }
        }
    }

    /// Fires what is due. Returns after how long to look again.
    async fn fire(&self, session: &Session, known: &mut Known, rev: u64) -> Duration {
        let is_old = known.read.is_none_or(|at| Moment::now().since(at) > REREAD_EVERY);
        if known.rev != Some(rev) || is_old {
            match Entries::read(&self.means.store, &self.link, session).await {
                Ok(entries) => {
                    *known = Known { entries, rev: Some(rev), read: Some(Moment::now()) }
                }
                Err(error) => {
                    tracing::debug!(%error, "reading the periodic entries failed");
                    return RETRY;
                }
            }
        }
        let now = || match disabled(Rule::FireByRedisTime) {
            true => Some(since_1970_ms(SystemTime::now())),
            false => session.views.follow().borrow().redis_ms(Moment::now()),
        };
        let Some(now_ms) = now() else { return RETRY };
        // An entry that cannot fire now must not hold up the others.
        let (mut held_up, mut pause) = (HashSet::new(), LOOK_EVERY);
        for firing in known.entries.due(now_ms).await {
            if held_up.contains(&firing.entry) {
                continue;
            }
            if !session.trust.holds() {
                return RETRY;
            }
            match self.fire_one(session, known, &firing, now_ms).await {
                Some(Fired::Now | Fired::Skipped) => {
                    known.entries.note(&firing);
                    continue;
                }
                Some(Fired::Changed) => known.rev = None,
                Some(Fired::Early) => pause = pause.min(Duration::from_millis(10)),
                Some(Fired::Full) => {}
                Some(Fired::Fenced) | None => return RETRY,
            }
            pause = pause.min(RETRY);
            held_up.insert(firing.entry);
        }
        let next = known.entries.next(now_ms).map_or(LOOK_EVERY, |next| {
            Duration::from_millis(next.saturating_sub(now().unwrap_or(now_ms)))
        });
        next.min(pause)
    }

    /// Fires an entry for one time. `None` if that failed.
    async fn fire_one(
        &self,
        session: &Session,
        known: &Known,
        firing: &Firing,
        now_ms: u64,
    ) -> Option<Fired> {
        let (store, board) = (&self.means.store, &self.means.board);
        let term = session.tenures.lease.term();
        let call = known.entries.call(store, session, term, firing, now_ms)?;
        let fired = match session.ask(&self.link, Patience::WHILE_TRUSTED, call).await {
            Ok(fired) => fired,
            Err(AskError::Over | AskError::Gone) => return None,
            Err(AskError::Failed(error)) => {
                tracing::warn!(%error, entry = firing.entry, "a periodic entry was not fired");
                return None;
            }
        };
        let (entry, due) = (firing.entry.clone(), at_ms(firing.due));
        if firing.left_out {
            let reason = "too many times were missed: older ones are left out";
            board.publish(Notice::Skipped { entry: entry.clone(), due, reason });
        }
        match fired {
            Fired::Now if firing.sends() => board.publish(Notice::Fired { entry, due }),
            Fired::Skipped => {
                let reason = "the message of an earlier time is not over";
                board.publish(Notice::Skipped { entry, due, reason });
            }
            _ => {}
        }
        Some(fired)
    }
}

impl Duty for Firer {
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
