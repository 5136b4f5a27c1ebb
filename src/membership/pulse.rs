//! The pulse of a session: heartbeats while it is trusted, questions while it is in doubt, and
//! presence in between.
//!
//! **Invariant:** only a trusted session is refreshed, over whichever connection works; a lease in
//! our name that we do not exercise is given back, and a term that ended is not led any longer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::judge::{self, Pulse};
use super::keeper::{ABSENT_BEAT, Keep, PROFILE_TTL};
use super::right::Known;
use super::{End, Exercise, Holder, MemberId, Session, held_locks, release_call, resign_call};
use crate::clock::Moment;
use crate::notice::Notice;
use crate::store::{Call, Hint, LOCK, Reply, Script, StoreError, list};
use crate::term::Term;

static HEARTBEAT: Script = Script::new("heartbeat", include_str!("heartbeat.lua"));

/// How often a member says that no term or token can be granted.
const EXHAUSTED_EVERY: Duration = Duration::from_secs(60);
/// Locks given back after one heartbeat; more wait for the next.
const STRAYS_MAX: usize = 16;

/// What one session's loop remembers between two turns.
pub(super) struct Pace {
    pub(super) next_beat: Instant,
    pub(super) last_heartbeat: Option<Instant>,
    pub(super) next_look: Option<Instant>,
    /// The member count for which our rank was computed.
    pub(super) ranked: i64,
    /// When the last answered "am I still a member?" was sent.
    pub(super) confirmed: Option<Moment>,
    /// The connection on which we are subscribed; any other one does not show our presence.
    pub(super) subscribed: Option<u64>,
    pub(super) silent_since: Option<Instant>,
}

impl Keep {
    pub(super) async fn live(&mut self, session: &Session) {
        let now = Instant::now();
        let mut pace = Pace {
            next_beat: now,
            last_heartbeat: None,
            next_look: Some(now),
            ranked: -1,
            confirmed: None,
            subscribed: Some(self.joined_on),
            silent_since: None,
        };
        session.present_in(self.joined_on);
        loop {
            if !self.present(&pace) {
                pace.next_beat = pace.next_beat.min(Instant::now() + ABSENT_BEAT);
            }
            let look_at = pace.next_look.unwrap_or(pace.next_beat + Duration::from_secs(3600));
            tokio::select! {
                () = session.over.cancelled() => return,
                () = self.stop.cancelled() => {
                    session.end(End::Leave);
                    return;
                }
                Some(hint) = self.hints.recv() => self.hear(session, &mut pace, hint),
                () = tokio::time::sleep_until(pace.next_beat) => self.beat(session, &mut pace).await,
                () = tokio::time::sleep_until(look_at) => self.look(session, &mut pace).await,
            }
        }
    }

    pub(super) fn hear(&mut self, session: &Session, pace: &mut Pace, hint: Hint) {
        let text = match hint {
            Hint::Lost => {
                // Without presence we are suspects: be heard of at once, then keep being heard of.
                pace.subscribed = None;
                pace.next_beat = Instant::now();
                return;
            }
            Hint::Message(text) => text,
        };
        if let Some(name) = text.strip_prefix(LOCK) {
            return self.pass_on(session, name);
        }
        let mut parts = text.split('|');
        let (word, id) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let Some(id) = MemberId::from_redis(id) else { return };
        let below = id < session.id;
        if word == "dead" && id == session.id {
            // Judged dead while we live: learn it now, not at the next heartbeat.
            pace.last_heartbeat = None;
            pace.next_beat = Instant::now();
        }
        let freed = |lease: &mut Option<Holder>| {
            if lease.as_ref().is_some_and(|holder| holder.member == id) {
                *lease = None;
            }
        };
        match word {
            "free" => session.update_standing(|standing| freed(&mut standing.lease)),
            "lead" => {
                let term = parts.next().and_then(Term::parse);
                self.seen_term = self.seen_term.max(term.map_or(0, Term::get));
                let deadline = Moment::now() + session.lease();
                session.update_standing(|standing| {
                    standing.lease = term.map(|term| Holder { member: id.clone(), term, deadline });
                });
            }
            "joined" if below => session.update_standing(|standing| standing.rank += 1),
            "dead" | "left" => session.update_standing(|standing| {
                freed(&mut standing.lease);
                standing.orphans |= word == "dead";
                if below {
                    standing.rank = standing.rank.saturating_sub(1);
                }
            }),
            _ => {}
        }
        if pace.next_look.is_none() && self.watches(session) {
            pace.next_look = Some(Instant::now() + judge::LOOK_EVERY);
        }
    }

    /// We are told that a lock is free for which nobody here waits any more: let the next know.
    fn pass_on(&self, session: &Session, name: &str) {
        let call = release_call(&self.store, &session.id, &session.id, name, None);
        let (link, timeout) = (self.link.clone(), session.call_timeout());
        tokio::spawn(async move { link.call(&call, timeout).await });
    }

    pub(super) async fn beat(&mut self, session: &Session, pace: &mut Pace) {
        let beat = session.beat();
        if !self.present(pace) {
            self.become_present(session, pace).await;
        }
        let recently = Moment::now().since(session.refreshed_at()) < beat;
        let told = pace.last_heartbeat.is_some_and(|at| at.elapsed() < session.lease() / 2);
        if self.present(pace) && recently && told {
            pace.next_beat =
                Instant::now() + beat - Moment::now().since(session.refreshed_at()).min(beat);
            return;
        }
        let result =
            match judge::pulse(Moment::now(), session.trusted_until(), pace.confirmed, beat) {
                Pulse::Heartbeat => self.heartbeat(session, pace).await,
                Pulse::Question => self.question(session, pace).await,
            };
        let pause = match result {
            Ok(pause) => {
                self.heard(&mut pace.silent_since);
                pause
            }
            Err(error) => {
                if !session.trusted() {
                    self.unheard(&mut pace.silent_since, &error);
                }
                // While Redis is silent a generator cannot show its work.
                session.note_progress();
                ABSENT_BEAT.min(beat)
            }
        };
        let present = self.present(pace);
        pace.next_beat = Instant::now() + if present { pause } else { pause.min(ABSENT_BEAT) };
        if let Exercise::Leading(term, over) = session.exercise()
            && judge::stalled(
                Moment::now(),
                session.progress(),
                self.profile.interval,
                session.lease(),
            )
        {
            tracing::warn!(%term, "this generator makes no progress, so it resigns");
            self.resign(session, term).await;
            over.cancel();
        }
    }

    pub(super) fn present(&self, pace: &Pace) -> bool {
        pace.subscribed == Some(self.link.epoch())
    }

    /// Without presence we are suspects: refresh over the work connection, at once and then ten
    /// times a second, while a new session connection is made.
    pub(super) async fn become_present(&self, session: &Session, pace: &mut Pace) {
        let timeout = session.call_timeout();
        let mut subscribing = std::pin::pin!(self.subscribe(&session.id, timeout));
        let mut heard = false;
        loop {
            if session.trusted() {
                let (held, hi, _) = session.blocks();
                let call = self.heartbeat_call(session, held, hi);
                let sent = Moment::now();
                let refreshing = self.store.work.call_live(&call, session.beat());
                let answer = tokio::select! {
                    answer = refreshing => Some(answer),
                    result = &mut subscribing => {
                        if self.subscribed(session, pace, result, heard) {
                            return;
                        }
                        subscribing.set(self.subscribe(&session.id, timeout));
                        None
                    }
                };
                match answer.map(|answer| answer.and_then(Reply::parse)) {
                    Some(Ok(reply)) if reply.tag == "gone" => return session.end(End::Gone),
                    Some(Ok(reply)) => {
                        heard = true;
                        if let (Ok(lease), Ok(grace)) = (reply.number(7), reply.number(8)) {
                            session.follow(lease as u64, grace as u64);
                        }
                        session.refresh(sent);
                    }
                    Some(Err(_)) => heard = false,
                    None => {}
                }
            }
            tokio::select! {
                () = session.over.cancelled() => return,
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(ABSENT_BEAT) => {}
                result = &mut subscribing => {
                    // While the other connection is heard, this one is tried again and again; if
                    // neither is, the question must be asked.
                    if self.subscribed(session, pace, result, heard) || !heard {
                        return;
                    }
                    subscribing.set(self.subscribe(&session.id, timeout));
                }
            }
        }
    }

    pub(super) fn subscribed(
        &self,
        session: &Session,
        pace: &mut Pace,
        result: Result<u64, StoreError>,
        heard: bool,
    ) -> bool {
        match result {
            Ok(epoch) => {
                pace.subscribed = Some(epoch);
                session.present_in(epoch);
                true
            }
            Err(error) => {
                tracing::debug!(%error, member = %session.id, "not present yet");
                if !heard && !session.trusted() {
                    self.unheard(&mut pace.silent_since, &error);
                }
                false
            }
        }
    }

    pub(super) fn heartbeat_call(&self, session: &Session, held: usize, hi: u64) -> Call {
        let keys = &self.store.keys;
        let mut call = HEARTBEAT
            .call(&[
                keys.members(),
                keys.lease(),
                keys.watch(),
                keys.orphans(),
                keys.member(&session.id),
                keys.blocks(&session.id),
                keys.locks(&session.id),
                keys.term(),
                keys.token(),
                keys.config(),
            ])
            .arg(session.id.as_str())
            .arg(session.lease().as_millis() as u64)
            .arg(held)
            .arg(hi)
            .arg(PROFILE_TTL.max(session.lease() * 2).as_millis() as u64)
            .arg("done")
            .arg(session.done.load(Ordering::Relaxed))
            .arg("failed")
            .arg(session.failed.load(Ordering::Relaxed))
            .arg("in_flight")
            .arg(session.in_flight.load(Ordering::Relaxed))
            .arg("claimed")
            .arg(session.claimed.load(Ordering::Relaxed))
            .arg("idle")
            .arg(u8::from(session.idle.load(Ordering::Relaxed)))
            .arg("works")
            .arg(u8::from(session.works.load(Ordering::Relaxed)))
            .arg("leaderless_ms")
            .arg(session.leaderless().as_millis() as u64);
        for (field, value) in self.profile.card() {
            call = call.arg(field).arg(value);
        }
        call
    }

    /// Refreshes the session and takes in what the reply tells.
    pub(super) async fn heartbeat(
        &mut self,
        session: &Session,
        pace: &mut Pace,
    ) -> Result<Duration, StoreError> {
        let (held, hi, mark) = session.blocks();
        let (exercise_before, locks_before) = (session.exercise(), session.rights.known());
        let call = self.heartbeat_call(session, held, hi);
        let sent = Moment::now();
        let reply = Reply::parse(self.link.call(&call, session.beat()).await?)?;
        if reply.tag == "gone" {
            session.end(End::Gone);
            return Ok(session.beat());
        }
        session.follow(reply.number(7)? as u64, reply.number(8)? as u64);
        session.refresh(sent);
        pace.last_heartbeat = Some(Instant::now());
        pace.confirmed = None;

        let lease = reply.text(0)?;
        let left = Duration::from_millis(reply.number(1)?.max(0) as u64);
        let holder = lease.split_once('|').and_then(|(member, term)| {
            let member = MemberId::from_redis(member)?;
            Some(Holder { member, term: Term::parse(term)?, deadline: sent + left })
        });
        if let Some(holder) = &holder {
            self.compare_term(holder.term.get());
        }
        let orphans = reply.number(3)? > 0;
        let members = reply.number(4)? as usize;
        session.update_standing(|standing| {
            standing.lease = holder.clone();
            standing.known = true;
            standing.orphans = orphans;
            standing.members = members;
        });
        if reply.number(5)? == 1 && mark.is_some() && mark == session.blocks().2 {
            self.board.publish(Notice::DataLossSeen { what: "open blocks that nobody holds" });
            session.end(End::DataLoss);
            return Ok(session.beat());
        }
        self.compare_lease(session, holder, exercise_before).await;
        let spent = reply.text(6)?;
        if !spent.is_empty() {
            self.exhausted(&spent);
        }
        let locks = reply.items.get(9).cloned().unwrap_or(redis::Value::Nil);
        if let Err(error) = self.compare_locks(session, &locks_before, locks).await {
            tracing::debug!(%error, "giving locks back: the next heartbeat lists them again");
        }
        if judge::look_overdue(
            Duration::from_millis(reply.number(2)?.max(0) as u64),
            session.lease(),
        ) {
            pace.next_look = Some(Instant::now());
        }
        Ok(session.beat())
    }

    /// No term or token can be granted any more. Said again and again: only an operator can help.
    fn exhausted(&mut self, names: &str) {
        let due = self.exhausted_at.is_none_or(|at| at.elapsed() >= EXHAUSTED_EVERY);
        if due {
            self.exhausted_at = Some(Instant::now());
            let keys = &self.store.keys;
            let key = |name| if name == "term" { keys.term() } else { keys.token() };
            let keys = names.split(' ').map(key).collect();
            self.board.publish(Notice::Exhausted { keys });
        }
    }

    /// A lease in our name that we do not exercise would leave the fleet without a generator for
    /// ever: give it back. And a term that ended without us must not be led any longer.
    pub(super) async fn compare_lease(
        &self,
        session: &Session,
        holder: Option<Holder>,
        before: Exercise,
    ) {
        let mine = holder.filter(|holder| holder.member == session.id).map(|holder| holder.term);
        match (before, session.exercise(), mine) {
            (Exercise::Idle, Exercise::Idle, Some(term)) => {
                tracing::debug!(%term, "a lease in our name that we do not exercise: resigning");
                self.resign(session, term).await;
            }
            (Exercise::Leading(before, _), Exercise::Leading(term, over), mine)
                if before == term && mine != Some(term) =>
            {
                over.cancel();
            }
            _ => {}
        }
    }

    /// The same for locks.
    async fn compare_locks(
        &self,
        session: &Session,
        before: &Known,
        listed: redis::Value,
    ) -> Result<(), StoreError> {
        let strays = session.rights.compare(before, held_locks(&list(listed)?)?);
        for (name, token) in strays.into_iter().take(STRAYS_MAX) {
            tracing::debug!(name, "a lock in our name that nobody here holds: giving it back");
            let call = release_call(&self.store, &session.id, &session.id, &name, token);
            self.link.call(&call, session.beat()).await?;
        }
        Ok(())
    }

    pub(super) async fn resign(&self, session: &Session, term: Term) {
        let call = resign_call(&self.store, &session.id, term);
        // Unanswered is fine: the next heartbeat sees the lease again.
        let _ = self.link.call(&call, session.beat()).await;
    }

    /// In doubt: asks, and changes nothing.
    pub(super) async fn question(
        &self,
        session: &Session,
        pace: &mut Pace,
    ) -> Result<Duration, StoreError> {
        let call = Call::plain("ZSCORE").arg(self.store.keys.members()).arg(session.id.as_str());
        let sent = Moment::now();
        let answer = self.link.call(&call, session.beat()).await?;
        if answer == redis::Value::Nil {
            session.end(End::Gone);
        } else {
            pace.confirmed = Some(sent);
        }
        Ok(Duration::ZERO)
    }
}
