//! [`Keeper`]: keeps one session alive, on a thread and a small runtime of its own, so that busy
//! handlers cannot stop the heartbeat; and starts a new one when it is lost.
//!
//! **Invariant:** a join is sent once per id. Without an answer the next try uses a new id, so a
//! late copy can only add a ghost that nobody acts for, never bring a dead session back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::judge::{self, Pulse};
use super::{End, Exercise, Holder, MemberId, Session};
use crate::Error;
use crate::clock::Moment;
use crate::notice::{Board, Notice};
use crate::store::{Call, Hint, Link, Reply, Script, Store, StoreError};
use crate::term::Term;

static JOIN: Script = Script::new("join", include_str!("join.lua"));
static HEARTBEAT: Script = Script::new("heartbeat", include_str!("heartbeat.lua"));
static LOOK: Script = Script::new("look", include_str!("look.lua"));
static LEAVE: Script = Script::new("leave", include_str!("leave.lua"));
static RESIGN: Script = Script::new("resign", include_str!("resign.lua"));

/// How long a member's display hash outlives its last heartbeat.
const PROFILE_TTL: Duration = Duration::from_secs(60);
/// Pause between two refreshes while presence is lost.
const ABSENT_BEAT: Duration = Duration::from_millis(100);

/// What a session tells about its process, and asks of its fleet.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) label: String,
    pub(crate) host: String,
    /// Explicit wishes; `None` takes what the fleet has.
    pub(crate) lease: Option<Duration>,
    pub(crate) grace: Option<Duration>,
    pub(crate) attempts_max: Option<u32>,
    pub(crate) defaults: (Duration, Duration, u32),
    pub(crate) interval: Duration,
}

/// The handle on the session thread.
pub(crate) struct Keeper {
    sessions: watch::Receiver<Option<Arc<Session>>>,
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread and waits for the first session.
    pub(crate) async fn start(
        store: Store,
        profile: Profile,
        board: Board,
    ) -> Result<Keeper, Error> {
        let (publish, sessions) = watch::channel(None);
        let (ready, joined) = oneshot::channel();
        let stop = CancellationToken::new();
        let (link, hints) = store.session_link();
        let keep = Keep {
            store,
            profile,
            board,
            link,
            hints,
            publish,
            stop: stop.clone(),
            seen_term: 0,
            seen_born: None,
            joined_on: 0,
        };
        let thread = std::thread::Builder::new()
            .name("artel-session".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                match runtime {
                    Ok(runtime) => runtime.block_on(keep.run(ready)),
                    Err(error) => tracing::error!(%error, "the session thread has no runtime"),
                }
            })
            .map_err(|error| Error::Config { field: "threads", problem: error.to_string() })?;
        // Dropped while waiting, the thread must not stay a member on nobody's behalf.
        let abandoned = stop.clone().drop_guard();
        let joined = joined.await;
        abandoned.disarm();
        match joined {
            Ok(Ok(())) => Ok(Keeper { sessions, stop, thread: Some(thread) }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::Stopping),
        }
    }

    /// The present session, and every later one.
    pub(crate) fn sessions(&self) -> watch::Receiver<Option<Arc<Session>>> {
        self.sessions.clone()
    }

    /// Leaves the fleet and ends the thread.
    pub(crate) async fn leave(mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Gives up exactly this term, whoever sends it: the session thread or the generator itself.
pub(crate) fn resign_call(store: &Store, me: &MemberId, term: Term) -> Call {
    let keys = &store.keys;
    RESIGN.call(&[keys.members(), keys.lease(), keys.ctl()]).arg(me.as_str()).arg(term.get())
}

struct Keep {
    store: Store,
    profile: Profile,
    board: Board,
    link: Link,
    hints: UnboundedReceiver<Hint>,
    publish: watch::Sender<Option<Arc<Session>>>,
    stop: CancellationToken,
    /// The highest term this process has seen. Terms only grow, so a Redis whose terms are lower
    /// has lost acknowledged writes.
    seen_term: u64,
    /// The id of the fleet's first member ever.
    seen_born: Option<String>,
    /// The connection on which the present session subscribed before it joined.
    joined_on: u64,
}

/// What one session's loop remembers between two turns.
struct Pace {
    next_beat: Instant,
    last_heartbeat: Option<Instant>,
    next_look: Option<Instant>,
    /// The member count for which our rank was computed.
    ranked: i64,
    /// When the last answered "am I still a member?" was sent.
    confirmed: Option<Moment>,
    /// The connection on which we are subscribed; any other one does not show our presence.
    subscribed: Option<u64>,
    silent_since: Option<Instant>,
}

impl Keep {
    async fn run(mut self, ready: oneshot::Sender<Result<(), Error>>) {
        let mut ready = Some(ready);
        loop {
            let session = match self.join(ready.is_some()).await {
                Ok(Some(session)) => Arc::new(session),
                Ok(None) => return,
                Err(error) => {
                    if let Some(ready) = ready.take() {
                        let _ = ready.send(Err(error));
                        return;
                    }
                    // The fleet was set up anew with other values while we were away: take them.
                    tracing::error!(%error, "joining with the fleet's values instead");
                    self.profile.lease = None;
                    self.profile.grace = None;
                    self.profile.attempts_max = None;
                    continue;
                }
            };
            self.board.publish(Notice::Joined { member: session.id.clone() });
            self.publish.send_replace(Some(session.clone()));
            if let Some(ready) = ready.take() {
                let _ = ready.send(Ok(()));
            }
            self.live(&session).await;
            self.publish.send_replace(None);
            match session.ended() {
                Some(End::Gone) | None => {
                    self.board.publish(Notice::SessionLost { member: session.id.clone() });
                }
                Some(End::DataLoss) => self.leave(&session).await,
                Some(End::Leave) => {
                    self.leave(&session).await;
                    return;
                }
            }
            // New connections for a new id: the old id's presence ends with the old one, and if the
            // old ones led to a server that is no longer the right one, this ends that, too.
            self.link.reset().await;
            self.store.work.reset().await;
            self.store.wait.reset().await;
        }
    }

    /// Joins under a new id, again and again until it is answered; `None` when told to stop.
    async fn join(&mut self, first: bool) -> Result<Option<Session>, Error> {
        let mut silent_since = None;
        loop {
            if self.stop.is_cancelled() {
                return Ok(None);
            }
            let id = MemberId::random();
            match self.join_as(&id).await {
                Ok(session) => {
                    self.heard(&mut silent_since);
                    return session.map(Some);
                }
                Err(error @ StoreError::Server { .. }) if first => {
                    return Err(self.store.explain(error));
                }
                Err(error) if first => return Err(self.store.explain(error)),
                Err(error) => {
                    self.unheard(&mut silent_since, &error);
                    self.link.reset().await;
                    tokio::select! {
                        () = tokio::time::sleep(ABSENT_BEAT) => {}
                        () = self.stop.cancelled() => return Ok(None),
                    }
                }
            }
        }
    }

    async fn join_as(&mut self, id: &MemberId) -> Result<Result<Session, Error>, StoreError> {
        let timeout = Duration::from_secs(2);
        self.subscribe(id, timeout).await?;
        self.joined_on = self.link.epoch();
        let keys = &self.store.keys;
        let (lease, grace, attempts) = self.profile.defaults;
        let wish = |d: Option<Duration>| d.map_or(String::new(), |d| d.as_millis().to_string());
        let mut call = JOIN
            .call(&[
                keys.members(),
                keys.member(id),
                keys.watch(),
                keys.blind(),
                keys.config(),
                keys.alive_of(id),
                keys.ctl(),
                keys.term(),
            ])
            .arg(id.as_str())
            .arg(PROFILE_TTL.as_millis() as u64)
            .arg(wish(self.profile.lease))
            .arg(wish(self.profile.grace))
            .arg(self.profile.attempts_max.map_or(String::new(), |n| n.to_string()))
            .arg(lease.as_millis() as u64)
            .arg(grace.as_millis() as u64)
            .arg(attempts);
        call = call.arg("label").arg(&self.profile.label).arg("host").arg(&self.profile.host);
        call =
            call.arg("pid").arg(std::process::id()).arg("version").arg(env!("CARGO_PKG_VERSION"));
        let sent = Moment::now();
        let reply = Reply::parse(self.link.call(&call, timeout).await?)?;
        match reply.tag.as_str() {
            "ok" => {
                self.compare_term(reply.number(0)? as u64);
                self.compare_born(reply.text(5)?);
                if reply.number(4)? == 1 {
                    tracing::debug!(%id, "our presence is not visible: judged by deadline only");
                }
                let lease = Duration::from_millis(reply.number(1)? as u64);
                let grace = Duration::from_millis(reply.number(2)? as u64);
                let attempts_max = reply.number(3)? as u32;
                Ok(Ok(Session::new(id.clone(), lease, grace, attempts_max, sent)))
            }
            "config" => Ok(Err(Error::Conflict {
                fleet: self.store.fleet().to_owned(),
                field: reply.text(0)?,
                theirs: reply.text(1)?,
                yours: reply.text(2)?,
            })),
            _ => Err(reply.unexpected()),
        }
    }

    /// Makes our presence visible, and hears hints from then on. One channel per command: several
    /// in one would shift other callers' replies.
    async fn subscribe(&self, id: &MemberId, timeout: Duration) -> Result<(), StoreError> {
        let keys = &self.store.keys;
        for channel in [keys.alive(), keys.alive_of(id), keys.ctl()] {
            self.link.call(&Call::plain("SSUBSCRIBE").arg(channel), timeout).await?;
        }
        Ok(())
    }

    async fn live(&mut self, session: &Session) {
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

    fn hear(&mut self, session: &Session, pace: &mut Pace, hint: Hint) {
        let text = match hint {
            Hint::Lost => {
                // Without presence we are suspects: be heard of at once, then keep being heard of.
                pace.subscribed = None;
                pace.next_beat = Instant::now();
                return;
            }
            Hint::Message(text) => text,
        };
        let mut parts = text.split('|');
        let (word, id) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let id = MemberId::from_redis(id);
        let below = id < session.id;
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
                let deadline = Moment::now() + session.lease;
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

    fn watches(&self, session: &Session) -> bool {
        let leads = matches!(session.exercise(), Exercise::Leading(..));
        judge::watches(leads, session.standing().borrow().rank)
    }

    async fn beat(&mut self, session: &Session, pace: &mut Pace) {
        let beat = session.beat();
        if !self.present(pace) {
            self.become_present(session, pace).await;
        }
        let recently = Moment::now().since(session.refreshed_at()) < beat;
        let told = pace.last_heartbeat.is_some_and(|at| at.elapsed() < session.lease / 2);
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
                session.lease,
            )
        {
            tracing::warn!(%term, "this generator makes no progress, so it resigns");
            self.resign(session, term).await;
            over.cancel();
        }
    }

    fn present(&self, pace: &Pace) -> bool {
        pace.subscribed == Some(self.link.epoch())
    }

    /// Without presence we are suspects: refresh over the work connection, at once and then ten
    /// times a second, while a new session connection is made.
    async fn become_present(&self, session: &Session, pace: &mut Pace) {
        let subscribing = self.subscribe(&session.id, session.call_timeout());
        let mut subscribing = std::pin::pin!(subscribing);
        let mut heard = false;
        loop {
            if session.trusted() {
                let (held, hi, _) = session.blocks();
                let call = self.heartbeat_call(session, held, hi);
                let sent = Moment::now();
                let refreshing = self.store.work.call_live(&call, session.beat());
                let answer = tokio::select! {
                    answer = refreshing => answer,
                    result = &mut subscribing => return self.subscribed(session, pace, result, heard),
                };
                match answer.and_then(Reply::parse) {
                    Ok(reply) if reply.tag == "gone" => return session.end(End::Gone),
                    Ok(_) => {
                        heard = true;
                        session.refresh(sent);
                    }
                    Err(_) => heard = false,
                }
            }
            tokio::select! {
                () = session.over.cancelled() => return,
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(ABSENT_BEAT) => {}
                result = &mut subscribing => return self.subscribed(session, pace, result, heard),
            }
        }
    }

    fn subscribed(
        &self,
        session: &Session,
        pace: &mut Pace,
        result: Result<(), StoreError>,
        heard: bool,
    ) {
        match result {
            Ok(()) => pace.subscribed = Some(self.link.epoch()),
            Err(error) => {
                tracing::debug!(%error, member = %session.id, "not present yet");
                if !heard {
                    self.unheard(&mut pace.silent_since, &error);
                }
            }
        }
    }

    fn heartbeat_call(&self, session: &Session, held: String, hi: u64) -> Call {
        let keys = &self.store.keys;
        HEARTBEAT
            .call(&[
                keys.members(),
                keys.lease(),
                keys.watch(),
                keys.orphans(),
                keys.member(&session.id),
                keys.blocks(&session.id),
            ])
            .arg(session.id.as_str())
            .arg(session.lease.as_millis() as u64)
            .arg(held)
            .arg(hi)
            .arg(PROFILE_TTL.max(session.lease * 2).as_millis() as u64)
            .arg("done")
            .arg(session.done.load(Ordering::Relaxed))
            .arg("failed")
            .arg(session.failed.load(Ordering::Relaxed))
            .arg("in_flight")
            .arg(session.in_flight.load(Ordering::Relaxed))
            .arg("label")
            .arg(&self.profile.label)
            .arg("host")
            .arg(&self.profile.host)
            .arg("pid")
            .arg(std::process::id())
    }

    /// Refreshes the session and takes in what the reply tells.
    async fn heartbeat(
        &mut self,
        session: &Session,
        pace: &mut Pace,
    ) -> Result<Duration, StoreError> {
        let (held, hi, mark) = session.blocks();
        let exercise_before = session.exercise();
        let call = self.heartbeat_call(session, held, hi);
        let sent = Moment::now();
        let reply = Reply::parse(self.link.call(&call, session.beat()).await?)?;
        if reply.tag == "gone" {
            session.end(End::Gone);
            return Ok(session.beat());
        }
        session.refresh(sent);
        pace.last_heartbeat = Some(Instant::now());
        pace.confirmed = None;

        let lease = reply.text(0)?;
        let left = Duration::from_millis(reply.number(1)?.max(0) as u64);
        let holder = lease.split_once('|').and_then(|(member, term)| {
            let member = MemberId::from_redis(member);
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
        if judge::look_overdue(Duration::from_millis(reply.number(2)?.max(0) as u64), session.lease)
        {
            pace.next_look = Some(Instant::now());
        }
        Ok(session.beat())
    }

    /// A lease in our name that we do not exercise would leave the fleet without a generator for
    /// ever: give it back. And a term that ended without us must not be led any longer.
    async fn compare_lease(&self, session: &Session, holder: Option<Holder>, before: Exercise) {
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

    async fn resign(&self, session: &Session, term: Term) {
        let call = resign_call(&self.store, &session.id, term);
        // Unanswered is fine: the next heartbeat sees the lease again.
        let _ = self.link.call(&call, session.beat()).await;
    }

    /// In doubt: asks, and changes nothing.
    async fn question(&self, session: &Session, pace: &mut Pace) -> Result<Duration, StoreError> {
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

    async fn look(&mut self, session: &Session, pace: &mut Pace) {
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

    async fn try_look(&self, session: &Session, pace: &mut Pace) -> Result<(), StoreError> {
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
            ])
            .arg(session.id.as_str())
            .arg(session.lease.as_millis() as u64)
            .arg(session.grace.as_millis() as u64)
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
            dead.push(MemberId::from_redis(&reply.text(index)?));
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
            self.board.publish(Notice::MemberDied { member });
        }
        Ok(())
    }

    /// Says goodbye, for a bounded time: unanswered, the session ends by itself.
    async fn leave(&self, session: &Session) {
        let keys = &self.store.keys;
        let call = LEAVE
            .call(&[
                keys.members(),
                keys.suspects(),
                keys.blind(),
                keys.orphans(),
                keys.lease(),
                keys.member(&session.id),
                keys.blocks(&session.id),
                keys.ctl(),
            ])
            .arg(session.id.as_str());
        for _ in 0..3 {
            match self.link.call(&call, session.call_timeout()).await {
                Ok(_) => return,
                Err(error) => tracing::debug!(%error, "leaving unanswered"),
            }
        }
    }

    fn compare_term(&mut self, term: u64) {
        if term < self.seen_term {
            self.board.publish(Notice::DataLossSeen { what: "terms that were granted" });
        }
        self.seen_term = term;
    }

    fn compare_born(&mut self, born: String) {
        if self.seen_born.as_ref().is_some_and(|seen| *seen != born) {
            self.board.publish(Notice::DataLossSeen { what: "the whole fleet" });
        }
        self.seen_born = Some(born);
    }

    fn unheard(&self, silent_since: &mut Option<Instant>, error: &StoreError) {
        if silent_since.is_none() {
            *silent_since = Some(Instant::now());
            self.board.publish(Notice::Disconnected { reason: error.to_string() });
        }
    }

    fn heard(&self, silent_since: &mut Option<Instant>) {
        if let Some(since) = silent_since.take() {
            self.board.publish(Notice::Reconnected { after: since.elapsed() });
        }
    }
}
