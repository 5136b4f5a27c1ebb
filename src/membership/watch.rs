//! Looking over the fleet: who does it, and what it tells.
//!
//! **Invariant:** the judgement itself is one script; here is only decided who asks for it and when.

use tokio::time::Instant;

use super::judge;
use super::keeper::Keep;
use super::pulse::Pace;
use super::{Card, End, Exercise, MemberId, Session};
use crate::notice::Notice;
use crate::store::{Reply, Script, StoreError};

static LOOK: Script = Script::new("look", include_str!("look.lua"));

impl Keep {
    pub(super) fn watches(&self, session: &Session) -> bool {
        let leads = matches!(session.exercise(), Exercise::Leading(..));
        judge::watches(leads, session.standing().borrow().rank)
    }

    pub(super) async fn look(&mut self, session: &Session, pace: &mut Pace) {
        pace.next_look = None;
        if session.trusted()
            && let Err(error) = self.try_look(session, pace).await
        {
            tracing::debug!(%error, "could not look");
        }
        if pace.ranked < 0 || self.watches(session) {
            pace.next_look = Some(Instant::now() + judge::LOOK_EVERY);
        }
    }

    pub(super) async fn try_look(
        &self,
        session: &Session,
        pace: &mut Pace,
    ) -> Result<(), StoreError> {
        let keys = &self.store.keys;
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
            ])
            .arg(session.id.as_str())
            .arg(pace.ranked);
        let reply = Reply::parse(self.link.call(&call, session.beat()).await?)?;
        if reply.tag == "gone" {
            session.end(End::Gone);
            return Ok(());
        }
        pace.ranked = reply.number(0)?;
        let rank = reply.number(1)?;
        let mut dead = Vec::new();
        for index in 2..reply.items.len() {
            dead.extend(MemberId::from_redis(&reply.text(index)?));
        }
        session.update_standing(|standing| {
            if rank >= 0 {
                standing.rank = rank as usize;
            }
            standing.members = pace.ranked as usize;
            if !dead.is_empty() {
                standing.orphans = true;
                if standing.lease.as_ref().is_some_and(|holder| dead.contains(&holder.member)) {
                    standing.lease = None;
                }
            }
        });
        for member in dead {
            // What it was called, and where it ran; for people, so it may be missing.
            let card = Card::read(&self.link, keys, &member, session.beat()).await;
            let Card { label, host, pid, .. } = card.unwrap_or_default();
            let process = if pid == 0 { String::new() } else { format!("{host}:{pid}") };
            self.board.publish(Notice::MemberDied { member, label, process });
        }
        Ok(())
    }
}
