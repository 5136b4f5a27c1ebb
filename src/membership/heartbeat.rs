//! [`Beats`]: sends heartbeats while a session is trusted and questions while it is in doubt, and keeps
//! it present.
//!
//! **Invariant:** only a trusted session is refreshed, over any connection that works.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::heartbeat_reply::Heartbeat;
use super::judge::{self, Beat};
use super::session_task::{ABSENT_BEAT, PROFILE_TTL, SessionTask};
use super::{AskError, End, Holder, Orders, Patience, Session};
use crate::clock::Moment;
use crate::notice::Notice;
use crate::store::{Call, Control, Hint, Script, StoreError};
use crate::tenure::{Difference, Known, LeaseUse, release_lock, resign};
use crate::term::{Term, Token};

static HEARTBEAT: Script = Script::new("heartbeat", include_str!("heartbeat.lua"));

/// How many locks are given back after one heartbeat. More wait for the next one.
const STRAYS_MAX: usize = 16;

/// What the session task knows about the current session.
pub(super) struct Beats<'a> {
    pub(super) task: &'a mut SessionTask,
    pub(super) session: Arc<Session>,
    next_beat: Instant,
    last_heartbeat: Option<Instant>,
    pub(super) next_look: Option<Instant>,
    /// The member count for which our rank was computed.
    pub(super) ranked: i64,
    /// When the last answered "am I still a member?" was sent.
    confirmed: Option<Moment>,
    /// The connection on which we are subscribed. Another one does not show our presence.
    subscribed: Option<u64>,
    /// This connection was made because our presence was not visible on the last one.
    is_renewed: bool,
}

/// What we believe of our presence when a heartbeat is sent.
#[derive(Clone, Copy)]
enum Presence {
    None = 0,
    Believed = 1,
    /// On a connection that was made because we were not seen.
    Renewed = 2,
}

impl Beats<'_> {
    /// Keeps the session alive until it is over.
    pub(super) async fn live(task: &mut SessionTask, session: &Arc<Session>) {
        let (now, joined_on, is_renewed) = (Instant::now(), task.joined_on, task.joined_blind);
        session.trust.present_in(joined_on);
        let mut beats = Beats {
            task,
            session: session.clone(),
            next_beat: now,
            last_heartbeat: None,
            next_look: Some(now),
            ranked: -1,
            confirmed: None,
            subscribed: Some(joined_on),
            is_renewed,
        };
        beats.run().await;
    }

    async fn run(&mut self) {
        loop {
            if !self.is_present() {
                self.next_beat = self.next_beat.min(Instant::now() + ABSENT_BEAT);
            }
            let link = self.task.link.clone();
            let (epoch, is_present) = (self.subscribed.unwrap_or(0), self.is_present());
            let look_at = self.next_look.unwrap_or(self.next_beat + Duration::from_secs(3600));
            tokio::select! {
                () = self.session.over.cancelled() => return,
                () = self.task.stop.cancelled() => {
                    self.session.end(End::Leave);
                    return;
                }
                Some(hint) = self.task.hints.recv() => match hint {
                    // Without presence we are suspects: refresh the session at once, and then often.
                    Hint::Lost => (self.subscribed, self.next_beat) = (None, Instant::now()),
                    Hint::Control(control) => self.follow(control),
                },
                // Another task's call may have found out that it ends.
                () = link.past(epoch), if is_present => {
                    (self.subscribed, self.next_beat) = (None, Instant::now());
                }
                () = tokio::time::sleep_until(self.next_beat) => self.beat().await,
                () = tokio::time::sleep_until(look_at) => self.look().await,
            }
        }
    }

    /// Applies a message of a script.
    fn follow(&mut self, control: Control) {
        let (me, views) = (self.session.id.clone(), &self.session.views);
        match control {
            Control::Unlocked(name) => return self.pass_on(&name),
            // The next heartbeat tells what was ordered.
            Control::Ordered => (self.last_heartbeat, self.next_beat) = (None, Instant::now()),
            Control::Free(id) => views.update(|view| view.freed_by(&id)),
            Control::Lead(member, term) => {
                self.task.seen_term = self.task.seen_term.max(term.get());
                self.task.store.floor.saw_term(term.get());
                let deadline = Moment::now() + self.session.trust.lease();
                views.update(|view| view.lease = Some(Holder { member, term, deadline }));
            }
            Control::Joined(id) if id < me => {
                views.update(|view| view.rank += 1);
                // A look that was on its way may have counted it, too: until the next look the rank is a guess.
                self.ranked = -1;
            }
            Control::Joined(_) => {}
            Control::Dead(ref id) | Control::Left(ref id) => {
                let is_dead = matches!(control, Control::Dead(_));
                if is_dead && *id == me {
                    // We were judged dead although we live: find it out now, not at the next heartbeat.
                    (self.last_heartbeat, self.next_beat) = (None, Instant::now());
                }
                views.update(|view| {
                    view.freed_by(id);
                    view.orphans |= is_dead;
                    view.rank = view.rank.saturating_sub(usize::from(*id < me));
                });
                if *id < me {
                    self.ranked = -1;
                }
            }
        }
        self.plan_look();
    }

    /// A lock is free, but nobody here waits for it any longer: notify the next waiter.
    fn pass_on(&self, name: &str) {
        let (session, link) = (self.session.clone(), self.task.link.clone());
        let call = release_lock(&self.task.store, &session.id, &session.id, name, None);
        tokio::spawn(async move { session.ask(&link, Patience::ONCE, call).await });
    }

    async fn beat(&mut self) {
        let beat = judge::next_beat(self.session.trust.beat(), rand::random());
        if !self.is_present() {
            self.become_present().await;
        }
        let trust = &self.session.trust;
        let since = Moment::now().since(trust.refreshed_at());
        let told = self.last_heartbeat.is_some_and(|at| at.elapsed() < trust.lease() / 2);
        if self.is_present() && since < beat && told {
            self.next_beat = Instant::now() + beat - since;
            return;
        }
        let session = self.session.clone();
        let result = match judge::beat(Moment::now(), trust.until(), self.confirmed, beat) {
            Beat::Heartbeat => self.heartbeat(&session).await,
            Beat::Question => self.question(&session).await,
        };
        if session.over.is_cancelled() {
            return;
        }
        let (trust, lease) = (&session.trust, &session.tenures.lease);
        let pause = match result {
            Ok(pause) => pause,
            Err(error) => {
                self.task.refused(&error);
                if !trust.holds() {
                    self.task.unheard(&error);
                }
                // While Redis does not answer, a generator cannot show its progress.
                lease.note_progress();
                ABSENT_BEAT.min(beat)
            }
        };
        let pause = if self.is_present() { pause } else { pause.min(ABSENT_BEAT) };
        self.next_beat = Instant::now() + pause;
        let interval = self.task.profile.interval;
        if let LeaseUse::Leading(term, over) = lease.get()
            && judge::stalled(Moment::now(), lease.progress(), interval, trust.lease())
        {
            tracing::warn!(%term, "this generator makes no progress, so it resigns");
            self.resign(term).await;
            over.cancel();
        }
    }

    fn is_present(&self) -> bool {
        self.subscribed == Some(self.task.link.epoch())
    }

    fn subscribing(&self) -> BoxFuture<'static, Result<u64, StoreError>> {
        let timeout = self.session.trust.call_timeout();
        Box::pin(self.task.subscribe(&self.session.id, timeout))
    }

    /// Without presence we are suspects. Refreshes the session over the work connection, at once and
    /// then ten times a second, until a new session connection is made.
    async fn become_present(&mut self) {
        let session = self.session.clone();
        let mut subscribing = self.subscribing();
        let mut heard = false;
        loop {
            if session.trust.holds() {
                let (work, sent) = (self.task.store.work.clone(), Moment::now());
                let answer = match work.is_live() {
                    true => tokio::select! {
                        answer = session.ask(&work, Patience::ONE_BEAT, self.heartbeat_call(Presence::None, None)) => Some(answer),
                        result = &mut subscribing => {
                            if self.subscribed(result, heard) {
                                return;
                            }
                            subscribing = self.subscribing();
                            None
                        }
                    },
                    false => Some(Err(AskError::Failed(StoreError::odd("not connected")))),
                };
                match answer {
                    Some(Err(AskError::Over | AskError::Gone)) => return,
                    Some(Ok(told)) => {
                        heard = true;
                        session.trust.follow(told.lease_ms, told.grace_ms);
                        session.trust.refresh(sent);
                    }
                    Some(Err(AskError::Failed(_))) => heard = false,
                    None => {}
                }
            }
            tokio::select! {
                () = session.over.cancelled() => return,
                () = self.task.stop.cancelled() => return,
                () = tokio::time::sleep(ABSENT_BEAT) => {}
                result = &mut subscribing => {
                    // While the work connection is answered, this one is tried again and again. If
                    // neither is answered, the question must be asked.
                    if self.subscribed(result, heard) || !heard {
                        return;
                    }
                    subscribing = self.subscribing();
                }
            }
        }
    }

    fn subscribed(&mut self, result: Result<u64, StoreError>, heard: bool) -> bool {
        match result {
            Ok(epoch) => {
                self.subscribed = Some(epoch);
                self.session.trust.present_in(epoch);
                true
            }
            Err(error) => {
                tracing::debug!(%error, member = %self.session.id, "not present yet");
                if !heard && !self.session.trust.holds() {
                    self.task.unheard(&error);
                }
                false
            }
        }
    }

    /// What every process remembers of the server it was connected to: `server` is the one it is connected to now.
    fn heartbeat_call(&self, presence: Presence, server: Option<&str>) -> Call<Heartbeat> {
        let (session, keys) = (&self.session, &self.task.store.keys);
        let (asked, trust, tally) = (session.blocks.asked(), &session.trust, &session.tally);
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
                keys.control(),
                keys.alive_of(&session.id),
                keys.blind(),
                keys.counts(),
                keys.servers(),
                keys.losses(),
                keys.notices(),
            ])
            .arg(session.id.as_str())
            .arg(trust.lease_ms())
            .arg(asked.held)
            .arg(asked.hi)
            .arg(PROFILE_TTL.max(trust.lease() * 2).as_millis() as u64)
            .arg(presence as u8);
        call = self.task.odometer.tell(call, server);
        for (field, count) in [
            ("done", &tally.done),
            ("failed", &tally.failed),
            ("in_flight", &tally.in_flight),
            ("claimed", &tally.claimed),
        ] {
            call = call.arg(field).arg(count.load(Ordering::Relaxed));
        }
        for (field, is_so) in [("idle", &tally.idle), ("works", &tally.works)] {
            call = call.arg(field).arg(u8::from(is_so.load(Ordering::Relaxed)));
        }
        call = call.arg("leaderless_ms").arg(session.views.leaderless().as_millis() as u64);
        for (field, value) in self.task.profile.fixed_fields() {
            call = call.arg(field).arg(value);
        }
        let me = session.id.clone();
        call.reading(move |reply| Heartbeat::read(reply, &me))
    }

    /// Refreshes the session and applies the reply.
    async fn heartbeat(&mut self, session: &Arc<Session>) -> Result<Duration, StoreError> {
        let (tenures, asked) = (&session.tenures, session.blocks.asked());
        let (lease_before, locks_before) = (tenures.lease.get(), tenures.locks.known());
        let sent = Moment::now();
        let presence = match (self.is_present(), self.is_renewed) {
            (false, _) => Presence::None,
            (true, false) => Presence::Believed,
            (true, true) => Presence::Renewed,
        };
        let epoch = self.subscribed.filter(|_| self.is_present());
        let server = epoch.and_then(|epoch| self.task.link.server_in(epoch));
        let mut call = self.heartbeat_call(presence, server.as_deref());
        if let (Some(epoch), true) = (epoch, server.is_some()) {
            call = call.only_in(epoch);
        }
        let told = match session.ask(&self.task.link, Patience::ONE_BEAT, call).await {
            Ok(told) => told,
            Err(AskError::Over | AskError::Gone) => return Ok(session.trust.beat()),
            Err(AskError::Failed(error)) => return Err(error),
        };
        self.task.heard();
        session.board.meter.redis.add(Moment::now().since(sent));
        // Trust counts with the lease that Redis has just used.
        session.trust.follow(told.lease_ms, told.grace_ms);
        session.trust.refresh(sent);
        self.last_heartbeat = Some(Instant::now());
        self.confirmed = None;
        // On another connection nothing was believed.
        if self.is_present() {
            self.compare_presence(presence, told.is_seen);
        }
        let (steps, forgotten) = (told.steps, told.forgotten);
        let changed =
            server.and_then(|server| self.task.odometer.reached(server, steps, forgotten));
        changed.into_iter().for_each(|notice| session.board.publish(notice));

        let holder = told.holder.map(|(member, term, left)| {
            self.task.compare_term(term.get());
            Holder { member, term, deadline: sent + left }
        });
        session.views.update(|view| {
            view.lease = holder.clone();
            view.known = true;
            view.orphans = told.has_orphans;
            view.members = told.members;
        });
        self.obey(told.orders).await;
        if told.is_stray && session.blocks.is_unchanged(&asked) {
            let what = "open blocks that nobody holds";
            self.task.board.publish(Notice::DataLossSeen { what });
            session.end(End::DataLoss);
            return Ok(session.trust.beat());
        }
        let mine = holder.filter(|holder| holder.member == session.id).map(|holder| holder.term);
        if let Difference::Unused(term) = tenures.lease.compare(lease_before, mine) {
            tracing::debug!(%term, "a lease in our name that we do not use: resigning");
            self.resign(term).await;
        }
        if !told.spent.is_empty() {
            self.task.exhausted(&told.spent);
        }
        self.give_back_strays(&locks_before, told.locks).await;
        if judge::look_overdue(told.looked_ago, session.trust.lease()) {
            self.next_look = Some(Instant::now());
        }
        Ok(judge::next_beat(session.trust.beat(), rand::random()))
    }

    /// Does what operators ask for.
    async fn obey(&self, orders: Orders) {
        let session = &self.session;
        let ended = match session.tenures.lease.get() {
            LeaseUse::Leading(term, over) if orders.ends(&session.id, term) => Some((term, over)),
            _ => None,
        };
        if let Some(notice) = session.orders.update(orders) {
            session.board.publish(notice);
        }
        if let Some((term, over)) = ended {
            tracing::info!(%term, "this generator was asked to step down, so it resigns");
            self.resign(term).await;
            over.cancel();
        }
    }

    /// Believing that we are present and not being seen, we need another connection: its subscriptions are gone. If that does
    /// not help, Redis judges us by our deadline only.
    fn compare_presence(&mut self, believed: Presence, is_seen: bool) {
        match (believed, is_seen) {
            (Presence::None, _) | (Presence::Renewed, false) => {}
            (_, true) => self.is_renewed = false,
            (Presence::Believed, false) => {
                tracing::debug!(member = %self.session.id, "our presence is not visible: connecting anew");
                self.task.link.reset();
                (self.subscribed, self.is_renewed) = (None, true);
            }
        }
    }

    /// Gives back locks in our name that nobody here holds.
    async fn give_back_strays(&self, before: &Known, listed: Vec<(String, Option<Token>)>) {
        let session = &self.session;
        let strays = session.tenures.locks.compare(before, listed);
        for (name, token) in strays.into_iter().take(STRAYS_MAX) {
            tracing::debug!(name, "a lock in our name that nobody here holds: giving it back");
            let call = release_lock(&self.task.store, &session.id, &session.id, &name, token);
            if session.ask(&self.task.link, Patience::ONE_BEAT, call).await.is_err() {
                return; // the next heartbeat lists them again
            }
        }
    }

    async fn resign(&self, term: Term) {
        let call = resign(&self.task.store, &self.session.id, term);
        // It may stay unanswered: the next heartbeat sees the lease again.
        let _ = self.session.ask(&self.task.link, Patience::ONE_BEAT, call).await;
    }

    /// In doubt: asks whether we are still a member, and changes nothing.
    async fn question(&mut self, session: &Session) -> Result<Duration, StoreError> {
        let members = self.task.store.keys.members();
        let call = Call::plain("ZSCORE").arg(members).arg(session.id.as_str());
        let sent = Moment::now();
        match self.task.link.call(&call, session.trust.beat()).await?.is_nil() {
            true => session.end(End::Gone),
            false => self.confirmed = Some(sent),
        }
        Ok(Duration::ZERO)
    }
}
