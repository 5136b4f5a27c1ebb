//! The look at the fleet: which member does it, and what it reports.
//!
//! **Invariant:** the judgement itself is one script. This file only decides which member runs it, and
//! when.

use tokio::time::Instant;

use super::heartbeat::Beats;
use super::{AskError, Due, MemberInfo, Patience, judge};
use crate::clock::Moment;
use crate::id::MemberId;
use crate::notice::Notice;
use crate::store::{Reply, Script, StoreError};
use crate::tenure::LeaseUse;

static LOOK: Script = Script::new("look", include_str!("look.lua"));

/// What a look showed.
struct Looked {
    members: i64,
    /// `None` if it is unchanged.
    rank: Option<usize>,
    dead: Vec<MemberId>,
    redis_ms: u64,
    /// In how many ms the first scheduled message is due.
    due_ms: Option<i64>,
}

impl Looked {
    fn read(reply: Reply) -> Result<Looked, StoreError> {
        if !["ok", "early"].contains(&reply.tag()) {
            return Err(reply.unexpected());
        }
        let (members, rank) = (reply.number(0)?, reply.number(1)?);
        let (redis_ms, due_ms) = (reply.number(2)? as u64, reply.text(3)?.parse().ok());
        let dead = reply.into_parts().into_iter().skip(4).map(Reply::into_text);
        let dead: Vec<String> = dead.collect::<Result<_, _>>()?;
        let dead = dead.iter().filter_map(|id| MemberId::from_redis(id)).collect();
        Ok(Looked { members, rank: usize::try_from(rank).ok(), dead, redis_ms, due_ms })
    }
}

impl Beats<'_> {
    pub(super) fn watches(&self) -> bool {
        let leads = matches!(self.session.tenures.lease.get(), LeaseUse::Leading(..));
        judge::watches(leads, self.session.views.follow().borrow().rank)
    }

    /// Sees to it that this member looks, if it has to.
    pub(super) fn plan_look(&mut self) {
        let rank = self.session.views.follow().borrow().rank;
        let within = judge::looks_within(self.watches(), rank, self.ranked >= 0);
        if let (None, Some(within)) = (self.next_look, within) {
            self.next_look = Some(Instant::now() + within);
        }
    }

    pub(super) async fn look(&mut self) {
        self.next_look = None;
        if self.session.trust.holds()
            && let Err(AskError::Failed(error)) = self.try_look().await
        {
            tracing::debug!(%error, "could not look");
        }
        if self.ranked < 0 || self.watches() {
            self.next_look = Some(Instant::now() + judge::LOOK_EVERY);
        }
    }

    async fn try_look(&mut self) -> Result<(), AskError> {
        let (session, task) = (&self.session, &self.task);
        let keys = &task.store.keys;
        let call = LOOK
            .call(&[
                keys.members(),
                keys.watch(),
                keys.suspects(),
                keys.blind(),
                keys.orphans(),
                keys.alive(),
                keys.ctl(),
                keys.config(),
                keys.scheduled(),
                keys.resting(),
                keys.control(),
                keys.lease(),
                keys.notices(),
            ])
            .arg(session.id.as_str())
            .arg(self.ranked)
            .reading(Looked::read);
        let asked = Moment::now();
        let looked = session.ask(&task.link, Patience::ONE_BEAT, call).await?;
        self.ranked = looked.members;
        session.views.update(|view| {
            view.rank = looked.rank.unwrap_or(view.rank);
            view.members = looked.members as usize;
            view.orphans |= !looked.dead.is_empty();
            view.clock = Some((asked, looked.redis_ms));
            view.due = looked.due_ms.map(|in_ms| Due { asked, in_ms });
            looked.dead.iter().for_each(|id| view.freed_by(id));
        });
        for member in looked.dead {
            // Its label, and where it ran. This is for people, so it may be missing.
            let info = MemberInfo::read(&task.link, keys, &member, session.trust.beat()).await;
            let MemberInfo { label, host, pid, .. } = info.unwrap_or_default();
            let process = if pid == 0 { String::new() } else { format!("{host}:{pid}") };
            task.board.publish(Notice::MemberDied { member, label, process });
        }
        Ok(())
    }
}
