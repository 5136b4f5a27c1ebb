//! [`SessionTask`]: keeps one session alive, and starts a new one when it is lost. It runs on the
//! thread of the session connection, so that busy handlers cannot stop the heartbeat.
//!
//! **Invariant:** a join is sent once per id. Without an answer the next try uses a new id, so a late
//! copy can only add a member for which nobody acts. It never brings a dead session back.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::heartbeat::Beats;
use super::moving::Moving;
use super::odometer::Odometer;
use super::{End, Orders, Session};
use crate::Error;
use crate::clock::Moment;
use crate::config::FleetSetting;
use crate::id::MemberId;
use crate::notice::{Board, Notice};
use crate::store::{Call, Hints, Link, PROTOCOL, Reply, Script, Store, StoreError};

static JOIN: Script = Script::new("join", include_str!("join.lua"));
static LEAVE: Script = Script::new("leave", include_str!("leave.lua"));

/// How long a member's display hash outlives its last heartbeat.
pub(super) const PROFILE_TTL: Duration = Duration::from_secs(60);
/// How often a first join is repeated. Redis answered a moment ago, at the start check.
const FIRST_TRIES: u32 = 4;
/// Pause after a join that found other settings.
const CONFLICT_PAUSE: Duration = Duration::from_secs(1);
/// Pause between two refreshes while presence is lost.
pub(super) const ABSENT_BEAT: Duration = Duration::from_millis(100);
/// How often a member reports that no term or token can be granted.
const EXHAUSTED_EVERY: Duration = Duration::from_secs(60);
/// How often the call to leave is tried.
const LEAVE_TRIES: u32 = 3;
/// How long a join waits for its answer.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// What a session reports about its process, and which settings it wants.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) label: String,
    pub(crate) host: String,
    pub(crate) settings: [FleetSetting; 6],
    pub(crate) interval: Duration,
    /// It has a generator.
    pub(crate) can_lead: bool,
    /// It has a handler.
    pub(crate) handles: bool,
    /// The kinds for which it has a handler of their own.
    pub(crate) kinds: Vec<String>,
}

impl Profile {
    /// It neither works nor leads.
    fn observes(&self) -> bool {
        !self.can_lead && !self.handles
    }

    /// The fields of the member's info that never change.
    pub(super) fn fixed_fields(&self) -> [(&'static str, String); 6] {
        [
            ("label", self.label.clone()),
            ("host", self.host.clone()),
            ("pid", std::process::id().to_string()),
            ("can_lead", u8::from(self.can_lead).to_string()),
            ("handles", u8::from(self.handles).to_string()),
            ("kinds", serde_json::to_string(&self.kinds).unwrap_or_default()),
        ]
    }
}

/// The handle on the sessions of this process.
pub(crate) struct SessionHandle {
    sessions: watch::Receiver<Option<Arc<Session>>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl SessionHandle {
    /// Joins, and returns when the first session is open.
    pub(crate) async fn start(
        store: Store,
        hints: Hints,
        profile: Profile,
        board: Board,
    ) -> Result<SessionHandle, Error> {
        let (publish, sessions) = watch::channel(None);
        let (ready, joined) = oneshot::channel();
        let stop = CancellationToken::new();
        let listening = hints.link.clone();
        let task = SessionTask {
            link: listening.link.clone(),
            store,
            profile,
            board,
            hints,
            publish,
            stop: stop.clone(),
            seen_term: 0,
            seen_born: None,
            exhausted_at: None,
            joined_on: 0,
            joined_blind: false,
            silent_since: None,
            is_denied: false,
            moving: Moving::default(),
            odometer: Odometer::default(),
        };
        let task = listening.spawn(task.run(ready));
        // If this future is dropped while it waits, the task must leave the fleet.
        let abandoned = stop.clone().drop_guard();
        let joined = joined.await;
        abandoned.disarm();
        match joined {
            Ok(Ok(())) => Ok(SessionHandle { sessions, stop, task }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::Stopping),
        }
    }

    /// The current session, and every later one.
    pub(crate) fn sessions(&self) -> watch::Receiver<Option<Arc<Session>>> {
        self.sessions.clone()
    }

    /// Leaves the fleet.
    pub(crate) async fn leave(mut self) {
        self.stop.cancel();
        let _ = (&mut self.task).await;
    }
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What Redis answered to a join.
enum Joined {
    Session(Box<Session>),
    /// The fleet has other settings, or another protocol. With a `lease`, all of its members are
    /// overdue; those that live refresh their sessions within that time.
    Conflict {
        error: Error,
        lease: Option<Duration>,
    },
}

fn overdue(wait_ms: i64) -> Option<Duration> {
    (wait_ms > 0).then(|| Duration::from_millis(wait_ms as u64))
}

/// What the session thread knows across sessions.
pub(super) struct SessionTask {
    pub(super) store: Store,
    pub(super) profile: Profile,
    pub(super) board: Board,
    pub(super) link: Arc<Link>,
    pub(super) hints: Hints,
    publish: watch::Sender<Option<Arc<Session>>>,
    pub(super) stop: CancellationToken,
    /// The highest term this process has seen. Terms only grow, so a Redis whose terms are lower
    /// has lost acknowledged writes.
    pub(super) seen_term: u64,
    /// The id of the fleet's first member ever.
    seen_born: Option<String>,
    /// When it was last reported that no term can be granted.
    exhausted_at: Option<Instant>,
    /// The connection on which the current session subscribed before it joined.
    pub(super) joined_on: u64,
    /// Our presence was not visible when it joined.
    pub(super) joined_blind: bool,
    /// Since when Redis has not answered, and whether it was reported that it denies access.
    silent_since: Option<Instant>,
    is_denied: bool,
    moving: Moving,
    /// The server that answered the last heartbeat.
    pub(super) odometer: Odometer,
}

impl SessionTask {
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
                    if self.wait_for_the_fleet(&error).await {
                        continue;
                    }
                    return;
                }
            };
            self.board.publish(Notice::Joined { member: session.id.clone() });
            if let Some(notice) = session.orders.first_notice() {
                self.board.publish(notice);
            }
            self.publish.send_replace(Some(session.clone()));
            if let Some(ready) = ready.take() {
                let _ = ready.send(Ok(()));
            }
            Beats::live(&mut self, &session).await;
            self.publish.send_replace(None);
            match session.ended() {
                Some(End::Gone) | None => {
                    self.board.publish(Notice::SessionLost { member: session.id.clone() });
                }
                Some(End::DataLoss | End::Refused) => self.leave(&session).await,
                Some(End::Leave) => {
                    self.leave(&session).await;
                    // Clients of the same fleet may go on: they subscribe again.
                    self.link.reset();
                    return;
                }
            }
            // A new id gets new connections. The presence of the old id ends with its connection. If
            // the old connections led to a server that is no longer the right one, that ends, too.
            self.link.reset();
            self.store.work.reset();
            self.store.wait.reset();
        }
    }

    /// The fleet got other settings while we were away: we use them from now on. We cannot use another
    /// protocol: this waits until those members are gone. Returns false if the process stops.
    async fn wait_for_the_fleet(&mut self, error: &Error) -> bool {
        let pause = match error {
            Error::BeingRemoved { .. } => {
                tracing::error!(%error, "cannot join: waiting until it is removed");
                CONFLICT_PAUSE
            }
            Error::Protocol { .. } => {
                tracing::error!(
                    %error,
                    "cannot join: stop all processes of the fleet, then start all with one version"
                );
                CONFLICT_PAUSE * 10
            }
            _ => {
                tracing::error!(%error, "joining with the fleet's values instead");
                CONFLICT_PAUSE
            }
        };
        self.profile.settings.iter_mut().for_each(|setting| setting.wanted = None);
        self.pause(pause).await
    }

    /// Waits. Returns false if the process stops meanwhile.
    async fn pause(&self, time: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(time) => true,
            () = self.stop.cancelled() => false,
        }
    }

    /// Joins under a new id, again and again until it is answered. `None` if the process stops.
    async fn join(&mut self, first: bool) -> Result<Option<Session>, Error> {
        let mut tries = 0;
        // Since when all members, whose settings are not ours, are overdue.
        let mut overdue_since: Option<Instant> = None;
        let mut waited = false;
        let mut id = MemberId::new(self.profile.observes());
        while !self.stop.is_cancelled() {
            match self.join_as(&id, waited).await {
                Ok(Joined::Session(session)) => {
                    self.heard();
                    return Ok(Some(*session));
                }
                // The members are dead, or only frozen: a living member refreshes within a lease. A
                // refusal wrote nothing, so the id can be used again.
                Ok(Joined::Conflict { lease: Some(lease), error })
                    if first || matches!(error, Error::Protocol { .. }) =>
                {
                    if overdue_since.is_none() {
                        tracing::warn!(%error, "all members are overdue: waiting one lease for them");
                    }
                    let since = *overdue_since.get_or_insert_with(Instant::now);
                    waited = since.elapsed() >= lease;
                }
                Ok(Joined::Conflict { error, .. }) => return Err(error),
                Err(error)
                    if first
                        && (tries >= FIRST_TRIES
                            || matches!(error, StoreError::Server { .. })
                                && !error.is_passing()) =>
                {
                    return Err(self.store.explain(error));
                }
                Err(error) => {
                    tries += 1;
                    (overdue_since, waited) = (None, false);
                    id = MemberId::new(self.profile.observes());
                    self.refused(&error);
                    if !first {
                        self.unheard(&error);
                    }
                    self.link.reset();
                }
            }
            if !self.pause(ABSENT_BEAT).await {
                break;
            }
        }
        Ok(None)
    }

    async fn join_as(&mut self, id: &MemberId, waited: bool) -> Result<Joined, StoreError> {
        self.joined_on = self.subscribe(id, JOIN_TIMEOUT).await?;
        let call = self.join_call(id, waited);
        let sent = Moment::now();
        let reply = self.link.call(&call, JOIN_TIMEOUT).await?;
        match reply.tag() {
            "ok" => {
                self.compare_term(reply.number(0)? as u64);
                self.compare_born(reply.text(2)?);
                self.joined_blind = reply.number(1)? == 1;
                if self.joined_blind {
                    tracing::debug!(%id, "our presence is not visible: judged by deadline only");
                }
                let ms = |at| reply.number(at).map(|ms| Duration::from_millis(ms as u64));
                let (times, backlog_max) = ((ms(4)?, ms(5)?), reply.number(8)? as usize);
                let control = reply.into_parts().into_iter().nth(3);
                let orders = control.map(|control| Orders::read(control, id)).transpose()?;
                let (orders, board) = (orders.unwrap_or_default(), self.board.clone());
                let session = Session::new(id.clone(), times, backlog_max, orders, sent, board);
                session.tally.works.store(self.profile.handles, Ordering::Relaxed);
                Ok(Joined::Session(Box::new(session)))
            }
            "config" => {
                let error = Error::Conflict {
                    fleet: self.store.fleet().to_owned(),
                    field: reply.text(0)?,
                    theirs: reply.text(1)?,
                    yours: reply.text(2)?,
                };
                Ok(Joined::Conflict { error, lease: overdue(reply.number(3)?) })
            }
            "protocol" => {
                let error = self.store.other_protocol(&reply.text(0)?);
                Ok(Joined::Conflict { error, lease: overdue(reply.number(1)?) })
            }
            _ => Err(reply.unexpected()),
        }
    }

    fn join_call(&self, id: &MemberId, waited: bool) -> Call<Reply> {
        let (keys, settings) = (&self.store.keys, &self.profile.settings);
        let mut call = JOIN
            .call(&[
                keys.members(),
                keys.member(id),
                keys.watch(),
                keys.blind(),
                keys.config(),
                keys.term(),
                keys.suspects(),
                keys.orphans(),
                keys.alive_of(id),
                keys.ctl(),
                keys.control(),
                keys.lease(),
                keys.notices(),
            ])
            .arg(id.as_str())
            .arg(PROFILE_TTL.as_millis() as u64)
            .arg(PROTOCOL)
            .arg(u8::from(waited))
            .arg(settings.len());
        for FleetSetting { field, wanted, default } in settings {
            let wanted = wanted.map_or(String::new(), |value| value.to_string());
            call = call.arg(field).arg(wanted).arg(default);
        }
        for (field, value) in self.profile.fixed_fields() {
            call = call.arg(field).arg(value);
        }
        call.arg("version").arg(env!("CARGO_PKG_VERSION"))
    }

    /// Makes our presence visible, and receives hints from then on, for the epoch that is returned.
    pub(super) fn subscribe(
        &self,
        id: &MemberId,
        timeout: Duration,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send + 'static {
        let (link, keys) = (self.link.clone(), &self.store.keys);
        let (first, others) = (keys.alive(), [keys.alive_of(id), keys.ctl()]);
        async move {
            let mut epoch = link.subscribe(&first, timeout).await?;
            for channel in others {
                if link.subscribe(&channel, timeout).await? != epoch {
                    // The earlier subscriptions do not exist on the new connection.
                    epoch = 0;
                }
            }
            Ok(epoch)
        }
    }

    /// Leaves the fleet, for a bounded time. Without an answer the session ends by itself.
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
                keys.locks(&session.id),
                keys.control(),
                keys.watch(),
                keys.notices(),
            ])
            .arg(session.id.as_str());
        for _ in 0..LEAVE_TRIES {
            match self.link.call(&call, session.trust.call_timeout()).await {
                Ok(_) => return,
                Err(error) => tracing::debug!(%error, "leave was not answered"),
            }
        }
    }

    pub(super) fn compare_term(&mut self, term: u64) {
        self.store.floor.saw_term(term);
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

    /// No further term or token can be granted. This is reported again and again: only an operator can
    /// help.
    pub(super) fn exhausted(&mut self, names: &[String]) {
        if self.exhausted_at.is_none_or(|at| at.elapsed() >= EXHAUSTED_EVERY) {
            self.exhausted_at = Some(Instant::now());
            let keys = &self.store.keys;
            let key = |name: &String| if name == "term" { keys.term() } else { keys.token() };
            self.board.publish(Notice::Exhausted { keys: names.iter().map(key).collect() });
        }
    }

    /// A heartbeat, or a join, was refused in this way.
    pub(super) fn refused(&mut self, error: &StoreError) {
        if let Some(after) = self.moving.refused(error) {
            let slot = self.store.keys.slot();
            self.board.publish(Notice::SlotMoving { slot, after });
        }
    }

    /// Redis did not answer.
    pub(super) fn unheard(&mut self, error: &StoreError) {
        let reason = error.to_string();
        let is_new = self.silent_since.is_none();
        self.silent_since.get_or_insert_with(Instant::now);
        if error.is_denied() {
            if !std::mem::replace(&mut self.is_denied, true) {
                self.board.publish(Notice::Denied { reason });
            }
        } else if is_new {
            self.board.publish(Notice::Disconnected { reason });
        }
    }

    /// Redis answered.
    pub(super) fn heard(&mut self) {
        self.is_denied = false;
        self.moving.answered();
        if let Some(since) = self.silent_since.take() {
            self.board.publish(Notice::Reconnected { after: since.elapsed() });
        }
    }
}
