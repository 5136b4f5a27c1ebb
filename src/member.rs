//! [`Member`]: this process's part in a fleet. It wires the stages, owns every task, runs until told to stop.
//!
//! **Invariant:** every task ends before [`Member::stopped`] returns; what listens for events
//! ends with the last who has a use for it. The order of a graceful stop is written down in
//! `shutdown.rs`.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use artel_hub::{EventHub, Topic};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::config::Config;
use crate::duties::{Duties, Means, adopt_all};
use crate::fleet::Fleet;
use crate::generator::{DynGenerate, Generate, Runner};
use crate::id::MemberId;
use crate::membership::{AskError, Profile, Session, SessionHandle};
use crate::notice::{Board, Notice, Notices, Relay};
use crate::queue::{PutBack, disown_strays};
use crate::role::Role;
use crate::shutdown::Shutdown;
use crate::stages::Stages;
use crate::store::Store;
use crate::sync::{Barrier, Lock, Semaphore, SyncContext};
use crate::worker::{DynHandle, Handle, by_kind};

impl Fleet {
    /// Begins to put a member together: what this process does in the fleet.
    pub fn join(&self) -> MemberBuilder {
        MemberBuilder {
            fleet: self.clone(),
            config: Config::default(),
            generate: None,
            handle: None,
            kinds: BTreeMap::new(),
            hub: None,
        }
    }
}

/// Collects the parts of a member. Made by [`Fleet::join`].
pub struct MemberBuilder {
    fleet: Fleet,
    config: Config,
    generate: Option<Box<dyn DynGenerate>>,
    handle: Option<Arc<dyn DynHandle>>,
    kinds: BTreeMap<String, Arc<dyn DynHandle>>,
    hub: Option<EventHub>,
}

impl MemberBuilder {
    /// The settings.
    pub fn config(mut self, config: Config) -> MemberBuilder {
        self.config = config;
        self
    }

    /// What makes messages while this process leads. Without it, this process never leads.
    pub fn generate(mut self, generate: impl Generate) -> MemberBuilder {
        self.generate = Some(Box::new(generate));
        self
    }

    /// What handles messages of this kind. Several kinds have a handler each; what [`handle`](Self::handle) is given
    /// gets all the others, and without it they fail with the cause `kind`.
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use artel::{Context, NewMessage, json};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Mail { to: String }
    ///
    /// let fleet = artel::Fleet::connect(url, "shop").await?;
    /// let member = fleet
    ///     .join()
    ///     .on("mail", json(|mail: Mail, _: Context| async move { println!("to {}", mail.to) }))
    ///     .on("ping", |_: artel::Message, _: Context| async {})
    ///     .start()
    ///     .await?;
    /// fleet.send(NewMessage::from(r#"{"to":"ann"}"#).with_kind("mail")).await?;
    /// while fleet.status().await?.messages.done == 0 {
    ///     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    /// }
    /// member.shutdown().await;
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on(mut self, kind: impl Into<String>, handle: impl Handle) -> MemberBuilder {
        self.kinds.insert(kind.into(), Arc::new(handle));
        self
    }

    /// What handles messages. Without it, this process never works. With neither, it is an observer:
    /// a member that only uses locks and events.
    pub fn handle(mut self, handle: impl Handle) -> MemberBuilder {
        self.handle = Some(Arc::new(handle));
        self
    }

    /// The hub on which this member publishes its notices, from the first on, under
    /// [`Member::notice_topic`]. It may be your program's own; the member never shuts it down.
    pub fn hub(mut self, hub: EventHub) -> MemberBuilder {
        self.hub = Some(hub);
        self
    }

    /// Checks the settings without connecting to anything.
    ///
    /// ```
    /// let mut config = artel::Config::default();
    /// config.concurrency = 0;
    /// let fleet = artel::Fleet::open("redis://127.0.0.1", "orders")?;
    /// assert!(fleet.join().config(config).check().is_err());
    /// # Ok::<(), artel::Error>(())
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        self.config.validate()
    }

    /// Joins the fleet; returns when this process is a member.
    ///
    /// # Errors
    ///
    /// If a setting is out of range, Redis cannot be reached, denies access or is unfit, or the
    /// fleet runs with other values. Once started, a member survives all of Redis's troubles.
    ///
    /// # Cancel safety
    ///
    /// Safe: a session that was opened meanwhile ends by itself.
    pub async fn start(mut self) -> Result<Member, Error> {
        self.check()?;
        if self.config.label.is_empty() {
            self.config.label = own_name();
        }
        self.handle = by_kind(std::mem::take(&mut self.kinds), self.handle.take());
        let (fleet, hints) = self.fleet.of_member(&self.config)?;
        let store = fleet.store.clone();
        store.check().await?;
        let board = Board::new();
        let notices = Some(board.listen());
        let topic = notice_topic(fleet.name());
        let relay = self.hub.as_ref().map(|hub| board.relay(hub, &topic));
        let handle =
            SessionHandle::start(store.clone(), hints, self.profile(), board.clone()).await?;
        fleet.is_compared();
        let observes = self.generate.is_none() && self.handle.is_none();
        if !observes && store.is_persistent().await.is_ok_and(|persistent| !persistent) {
            tracing::warn!("Redis keeps no append-only file: what it holds is lost when it dies");
        }
        let sessions = handle.sessions();
        let sync = SyncContext::new(fleet.clone(), sessions.clone())?;
        let (role, roles) = watch::channel(self.resting());
        let duties = Duties::start(&Means {
            store: store.clone(),
            board: board.clone(),
            sessions: sessions.clone(),
            roles: roles.clone(),
            question: fleet.watch(&store.keys.gather())?,
            label: self.config.label.clone(),
            host: host(),
            began: Instant::now(),
        })?;
        let stop = Shutdown::new(self.config.stop_grace);
        let hub = self.hub.take().map_or_else(OnceLock::new, OnceLock::from);
        let stages = self.stages(&store, &board, role, &stop);
        let task = tokio::spawn(stages.run(handle, duties));
        let relay = Mutex::new(relay);
        Ok(Member { fleet, topic, hub, relay, sync, board, notices, roles, sessions, stop, task })
    }

    fn profile(&self) -> Profile {
        Profile {
            label: self.config.label.clone(),
            host: host(),
            settings: self.config.fleet_wide(),
            interval: self.config.interval,
            can_lead: self.generate.is_some(),
            handles: self.handle.is_some(),
        }
    }

    /// Its role while it does not lead.
    fn resting(&self) -> Role {
        match (self.generate.is_some(), self.handle.is_some()) {
            (_, true) => Role::Worker,
            (true, false) => Role::Standby,
            (false, false) => Role::Observer,
        }
    }

    fn stages(
        self,
        store: &Store,
        board: &Board,
        role: watch::Sender<Role>,
        stop: &Shutdown,
    ) -> Stages {
        let resting = self.resting();
        let runner =
            self.generate.map(|generate| Runner::new(generate, store, &self.config, board));
        Stages {
            store: store.clone(),
            config: self.config,
            board: board.clone(),
            runner,
            handle: self.handle,
            role,
            resting,
            stop: stop.clone(),
        }
    }
}

/// This process's part in a fleet.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let fleet = artel::Fleet::connect(url, "orders").await?;
/// let member = fleet
///     .join()
///     .generate(|tick: artel::Tick| async move { format!("message {}", tick.seq) })
///     .handle(|_: artel::Message, _: artel::Context| async { artel::Outcome::done() })
///     .start()
///     .await?;
/// assert_eq!(fleet.status().await?.messages.balance, 0);
/// member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Member {
    fleet: Fleet,
    sync: Arc<SyncContext>,
    board: Board,
    notices: Option<Notices>,
    topic: Topic<Notice>,
    hub: OnceLock<EventHub>,
    relay: Mutex<Option<Relay>>,
    roles: watch::Receiver<Role>,
    sessions: watch::Receiver<Option<Arc<Session>>>,
    stop: Shutdown,
    task: JoinHandle<()>,
}

impl Member {
    /// The fleet it is a member of, over the connections that it has anyway.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// What this process does at this moment.
    pub fn role(&self) -> Role {
        match &*self.sessions.borrow() {
            None => Role::Outside,
            Some(_) => *self.roles.borrow(),
        }
    }

    /// The id of the present session, if there is one.
    pub fn id(&self) -> Option<MemberId> {
        self.sessions.borrow().as_ref().map(|session| session.id.clone())
    }

    /// Whether this process takes part, also after this was dropped.
    pub fn readiness(&self) -> Readiness {
        Readiness { sessions: self.sessions.clone(), stop: self.stop.token.clone() }
    }

    /// A lock of this fleet.
    ///
    /// # Errors
    ///
    /// If the name is empty, longer than 200 bytes, or has braces or control characters.
    pub fn lock(&self, name: &str) -> Result<Lock, Error> {
        Lock::new(&self.sync, name)
    }

    /// A semaphore of this fleet, with so many permits.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and if there are not between 1 and 10,000 permits.
    pub fn semaphore(&self, name: &str, permits: u32) -> Result<Semaphore, Error> {
        Semaphore::new(&self.sync, name, permits)
    }

    /// A barrier of this fleet, at which so many are waited for.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and if there are not between 1 and 10,000 parties.
    pub fn barrier(&self, name: &str, parties: u32) -> Result<Barrier, Error> {
        Barrier::new(&self.sync, name, parties)
    }

    /// What happens from now on; the first call also gets what happened since the start.
    pub fn notices(&mut self) -> Notices {
        self.notices.take().unwrap_or_else(|| self.board.listen())
    }

    /// The hub on which this member publishes its notices: the one it was given, else one of its
    /// own that begins with this call.
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use artel::Notice;
    /// use artel::hub::{Delivery, Overflow, Queue};
    ///
    /// let fleet = artel::Fleet::connect(url, "orders").await?;
    /// let member = fleet.join().start().await?;
    /// let log = member
    ///     .hub()
    ///     .subscribe(member.notice_topic())
    ///     .name("log")
    ///     .queue(Queue::bounded(1024).on_full(Overflow::DropOldest))
    ///     .spawn(|notice: Delivery<'_, Notice>| println!("{:?}", notice.get()))?;
    /// # drop(log);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hub(&self) -> &EventHub {
        self.hub.get_or_init(|| {
            let hub = EventHub::new();
            let relay = self.board.relay(&hub, &self.topic);
            *self.relay.lock().unwrap_or_else(PoisonError::into_inner) = Some(relay);
            hub
        })
    }

    /// The topic of this member's notices: `artel/<fleet>/notices`.
    pub fn notice_topic(&self) -> Topic<Notice> {
        self.topic.clone()
    }

    /// Puts back what dead members left behind, blocks that belong to nobody included, and says what
    /// became of it. Live work is never touched. Members do this all the time by
    /// themselves; this does it now.
    ///
    /// # Cancel safety
    ///
    /// Safe: whatever was not put back is put back by any member.
    pub async fn clean(&self) -> Result<PutBack, Error> {
        let session = self.sessions.borrow().clone().ok_or(Error::Stopping)?;
        let explain = |error: AskError| self.fleet.store.explain(error.into_store());
        match disown_strays(&self.fleet.store, &session).await {
            Err(AskError::Over | AskError::Gone) => return Ok(PutBack::default()),
            disowned => disowned.map_err(explain)?,
        };
        adopt_all(&self.fleet.store, &session, &self.board).await.map_err(explain)
    }

    /// Takes part until this future is done, and leaves.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), artel::Error> {
    /// let fleet = artel::Fleet::connect("redis://127.0.0.1", "orders").await?;
    /// let member = fleet.join().handle(|_: artel::Message, _: artel::Context| async {}).start().await?;
    /// member.run_until(tokio::signal::ctrl_c()).await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Not safe: dropped early, it stops in the background.
    pub async fn run_until<F: Future>(self, until: F) -> F::Output {
        let done = until.await;
        self.shutdown().await;
        done
    }

    /// Stops gracefully, and returns when this process has left the fleet.
    ///
    /// # Cancel safety
    ///
    /// Not safe: dropped early, the stop goes on in the background.
    pub async fn shutdown(self) {
        self.stop();
        self.stopped().await;
    }

    /// Begins a graceful stop. Returns at once.
    pub fn stop(&self) {
        self.stop.begin();
    }

    /// Waits until this process has left the fleet.
    ///
    /// # Cancel safety
    ///
    /// Not safe: it consumes the handle, so dropped early the stop goes on in the background.
    pub async fn stopped(mut self) {
        let _ = (&mut self.task).await;
        let relay = self.relay.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(relay) = relay {
            relay.end().await;
        }
    }
}

/// Whether a process takes part in its fleet: made by [`Member::readiness`].
#[derive(Clone, Debug)]
pub struct Readiness {
    sessions: watch::Receiver<Option<Arc<Session>>>,
    stop: CancellationToken,
}

impl Readiness {
    /// Nothing, if this process has a session that it may rely on at this instant; else what is
    /// wrong.
    pub fn problem(&self) -> Option<&'static str> {
        match &*self.sessions.borrow() {
            _ if self.stop.is_cancelled() => Some("it is stopping"),
            None => Some("it has no session: it is joining anew, or Redis is away"),
            Some(session) if !session.trust.holds() => Some("Redis does not answer"),
            Some(_) => None,
        }
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("id", &self.id()).field("role", &self.role()).finish()
    }
}

impl std::fmt::Debug for MemberBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemberBuilder")
            .field("fleet", &self.fleet)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.begin();
    }
}

/// What people call a process that has no label: its program and its number.
fn own_name() -> String {
    let program = std::env::current_exe().ok();
    let program =
        program.as_ref().and_then(|path| path.file_stem()).map(|name| name.to_string_lossy());
    let program = program.as_deref().unwrap_or("artel").replace(char::is_control, "?");
    let program: String = program.chars().take(40).collect();
    format!("{program}-{}", std::process::id())
}

fn notice_topic(fleet: &str) -> Topic<Notice> {
    Topic::json_to_read("artel/notices").at(format!("artel/{fleet}/notices"))
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
