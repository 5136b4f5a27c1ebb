//! [`Adopter`]: puts back the messages of dead members and frees their locks.
//!
//! **Invariant:** an orphan is forgotten only when its messages are put back and its locks are freed.
//! One script checks both. However many members adopt at once, nothing happens twice.

use std::time::Duration;

use super::{Duty, Means};
use crate::id::MemberId;
use crate::membership::{AskError, Patience, Session};
use crate::notice::{Board, Notice};
use crate::queue::{PutBack, adopt_messages};
use crate::store::{Call, Reply, Script, Store, StoreError};
use crate::tenure::{locks_of, release_lock};

static FORGET: Script = Script::new("forget", include_str!("forget.lua"));

/// The most orphans per round.
const ROUND: usize = 16;
/// How much later each rank begins, and the last of them.
const STEP: Duration = Duration::from_millis(5);
const TURN_MAX: Duration = Duration::from_secs(2);
/// Pause after Redis refused a call.
const RETRY: Duration = Duration::from_millis(500);

/// Adopts whenever there is an orphan.
pub(super) struct Adopter {
    means: Means,
}

impl Adopter {
    pub(super) fn new(means: Means) -> Adopter {
        Adopter { means }
    }

    /// Adopts under one session, until it is over.
    async fn serve(&self, session: &Session) {
        let mut views = session.views.follow();
        loop {
            let (orphans, rank) = {
                let view = views.borrow_and_update();
                (view.orphans, view.rank)
            };
            if orphans {
                // Every member receives it. The lower ranks are usually done before the others begin, and then a heartbeat
                // of these says so.
                let done = views.wait_for(|view| !view.orphans);
                if let Ok(ended) = tokio::time::timeout(turn(rank), done).await {
                    if ended.is_err() {
                        return;
                    }
                    continue;
                }
                // Before the work, not after it: an orphan that is reported meanwhile must not be
                // missed.
                session.views.update(|view| view.orphans = false);
                let adopted = adopt_all(&self.means.store, session, &self.means.board).await;
                if let Err(AskError::Failed(error)) = adopted {
                    tracing::debug!(%error, "adopting failed");
                    tokio::time::sleep(RETRY).await;
                    session.views.update(|view| view.orphans = true);
                }
            }
            tokio::select! {
                () = session.over.cancelled() => return,
                changed = views.wait_for(|view| view.orphans) => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// How long a member of this rank leaves it to those of lower ranks.
fn turn(rank: usize) -> Duration {
    STEP.saturating_mul(rank as u32).min(TURN_MAX)
}

impl Duty for Adopter {
    const ON_SESSION_THREAD: bool = false;

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

/// Adopts until no orphan is left, no orphan makes progress, or the session is over. Other members
/// cannot make progress with such an orphan, either: the next try follows the next heartbeat, and
/// no sooner.
pub(crate) async fn adopt_all(
    store: &Store,
    session: &Session,
    board: &Board,
) -> Result<PutBack, AskError> {
    let orphans = Call::plain("SRANDMEMBER").arg(store.keys.orphans()).arg(ROUND);
    let orphans = orphans.reading(Reply::into_list);
    let mut total = PutBack::default();
    loop {
        if !session.trust.wait().await {
            return Ok(total);
        }
        let found = store.work.call(&orphans, session.trust.call_timeout()).await;
        let found = found.map_err(AskError::Failed)?;
        let mut got_on = false;
        for orphan in found {
            let Some(id) = orphan_id(store, session, orphan).await? else {
                got_on = true;
                continue;
            };
            let mut put_back = PutBack::default();
            let adopted = adopt(store, session, &id, &mut put_back).await;
            // These messages are put back, whatever went wrong after that.
            let PutBack { returned, failed } = put_back;
            if returned + failed > 0 {
                board.publish(Notice::Adopted { member: id, returned, failed });
            }
            total.returned += returned;
            total.failed += failed;
            let is_over = match adopted {
                Err(AskError::Over | AskError::Gone) => return Ok(total),
                adopted => adopted?,
            };
            got_on |= is_over || returned + failed > 0;
        }
        if !got_on {
            return Ok(total);
        }
    }
}

/// The id of an orphan. A value that is not an id is removed: nothing can belong to it.
async fn orphan_id(
    store: &Store,
    session: &Session,
    orphan: Reply,
) -> Result<Option<MemberId>, AskError> {
    let bytes = orphan.into_bytes().map_err(AskError::Failed)?;
    let id = std::str::from_utf8(&bytes).ok().and_then(MemberId::from_redis);
    if id.is_none() {
        let remove = Call::plain("SREM").arg(store.keys.orphans()).arg(bytes);
        let removed = store.work.call(&remove, session.trust.call_timeout()).await;
        removed.map_err(AskError::Failed)?;
    }
    Ok(id)
}

/// Frees the locks of an orphan, because others may wait for them, and then puts its messages back.
/// Returns whether nothing is left of it.
async fn adopt(
    store: &Store,
    session: &Session,
    orphan: &MemberId,
    put_back: &mut PutBack,
) -> Result<bool, AskError> {
    let locks = store.work.call(&locks_of(store, orphan), session.trust.call_timeout()).await;
    for (name, token) in locks.map_err(AskError::Failed)? {
        let call = release_lock(store, &session.id, orphan, &name, token);
        session.ask(&store.work, Patience::UNTIL_ANSWERED, call).await?;
    }
    adopt_messages(store, session, orphan, put_back).await?;
    let keys = &store.keys;
    let forget = FORGET
        .call(&[keys.members(), keys.orphans(), keys.blocks(orphan), keys.locks(orphan)])
        .arg(session.id.as_str())
        .arg(orphan.as_str())
        .reading(is_forgotten);
    session.ask(&store.work, Patience::UNTIL_ANSWERED, forget).await
}

fn is_forgotten(reply: Reply) -> Result<bool, StoreError> {
    match reply.tag() {
        "ok" | "already" => Ok(true),
        "left" | "alive" => Ok(false),
        _ => Err(reply.unexpected()),
    }
}
