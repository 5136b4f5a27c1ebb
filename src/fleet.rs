//! [`Fleet`]: wires the stages, owns every task, runs until told to stop.
//!
//! **Invariant:** every stage's task ends before [`Fleet::stopped`] returns; what listens for events
//! ends with the last who has a use for it. The order of a graceful stop is written down in
//! `shutdown.rs`.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use artel_hub::{EventHub, Topic};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::config::{Config, check_fleet_name};
use crate::duties::{Duties, Means, adopt_all};
use crate::generator::{DynGenerate, Generate, Runner};
use crate::id::MemberId;
use crate::inspect::Data;
use crate::membership::{AskError, Profile, Session, SessionHandle};
use crate::notice::{Board, Notice, Notices, Relay};
use crate::outcome::{Status, read_status};
use crate::queue::{NewMessage, PutBack, Sender, Sent, disown_strays};
use crate::role::Role;
use crate::shutdown::Shutdown;
use crate::stages::Stages;
use crate::store::{Address, Opened, Store};
use crate::sync::{Barrier, DistributedEvent, Lock, Redis, Semaphore, SyncContext};
use crate::worker::{DynHandle, Handle};

/// Collects the parts of a member. Made by [`Fleet::builder`].
pub struct FleetBuilder {
    redis: Address,
    name: String,
    config: Config,
    generate: Option<Box<dyn DynGenerate>>,
    handle: Option<Arc<dyn DynHandle>>,
    hub: Option<EventHub>,
}

impl FleetBuilder {
    /// The address, such as `redis://user:password@host:6379/0` (default `redis://127.0.0.1`).
    pub fn redis(mut self, address: impl Into<Address>) -> FleetBuilder {
        self.redis = address.into();
        self
    }

    /// The fleet's name (default `artel`). Processes with the same name on the same Redis are one
    /// fleet.
    pub fn name(mut self, name: impl Into<String>) -> FleetBuilder {
        self.name = name.into();
        self
    }

    /// The settings.
    pub fn config(mut self, config: Config) -> FleetBuilder {
        self.config = config;
        self
    }

    /// What makes messages while this process leads. Without it, this process never leads.
    pub fn generate(mut self, generate: impl Generate) -> FleetBuilder {
        self.generate = Some(Box::new(generate));
        self
    }

    /// What handles messages. Without it, this process never works. With neither, it is an observer:
    /// a member that only uses locks and events.
    pub fn handle(mut self, handle: impl Handle) -> FleetBuilder {
        self.handle = Some(Arc::new(handle));
        self
    }

    /// The hub on which this member publishes its notices, from the first on, under
    /// [`Fleet::notice_topic`]. It may be your program's own; the fleet never shuts it down.
    pub fn hub(mut self, hub: EventHub) -> FleetBuilder {
        self.hub = Some(hub);
        self
    }

    /// Checks settings, name and address without connecting to anything.
    ///
    /// ```
    /// let member = artel::Fleet::builder().name("not a name");
    /// assert!(member.check().is_err());
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        self.config.validate()?;
        check_fleet_name(&self.name)?;
        Store::open(&self.redis, &self.name).map(|_| ())
    }

    /// Joins the fleet; returns when this process is a member.
    ///
    /// # Errors
    ///
    /// If a setting is out of range, Redis cannot be reached, denies access or is unfit, or the
    /// fleet runs with other values. Once started, a fleet survives all of Redis's troubles.
    ///
    /// # Cancel safety
    ///
    /// Safe: a session that was opened meanwhile ends by itself.
    pub async fn start(mut self) -> Result<Fleet, Error> {
        self.check()?;
        if self.config.label.is_empty() {
            self.config.label = own_name();
        }
        let store = Store::open(&self.redis, &self.name)?;
        store.check().await?;
        let board = Board::new();
        let notices = Some(board.listen());
        let topic = notice_topic(&self.name);
        let relay = self.hub.as_ref().map(|hub| board.relay(hub, &topic));
        let handle = SessionHandle::start(store.clone(), self.profile(), board.clone()).await?;
        let observes = self.generate.is_none() && self.handle.is_none();
        if !observes && store.is_persistent().await.is_ok_and(|persistent| !persistent) {
            tracing::warn!("Redis keeps no append-only file: what it holds is lost when it dies");
        }
        let sessions = handle.sessions();
        let redis = Redis::of_member(store.clone());
        let sync = SyncContext::new(redis.clone(), sessions.clone())?;
        let (role, roles) = watch::channel(self.resting());
        let duties = Duties::start(&Means {
            store: store.clone(),
            board: board.clone(),
            sessions: sessions.clone(),
            roles: roles.clone(),
            question: redis.watch(&store.keys.gather())?,
            label: self.config.label.clone(),
            host: host(),
            began: Instant::now(),
        })?;
        let backlog_max = sessions.borrow().as_ref().map(|session| session.backlog_max);
        let opened = Opened { backlog_max: backlog_max.ok_or(Error::Stopping)?, was_joined: true };
        let sender = Sender::on(store.clone(), &self.config, opened);
        let stop = Shutdown::new(self.config.stop_grace);
        let hub = self.hub.take().map_or_else(OnceLock::new, OnceLock::from);
        let stages = self.stages(&store, &board, role, &stop);
        let task = tokio::spawn(stages.run(handle, duties));
        let relay = Mutex::new(relay);
        Ok(Fleet {
            topic,
            hub,
            relay,
            store,
            redis,
            sync,
            sender,
            board,
            notices,
            roles,
            sessions,
            stop,
            task,
        })
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
/// # let server = artel_testkit::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let fleet = artel::Fleet::builder()
///     .redis(url)
///     .generate(|tick: artel::Tick| async move { format!("message {}", tick.seq) })
///     .handle(|_: artel::Message, _: artel::Context| async { artel::Outcome::done() })
///     .start()
///     .await?;
/// assert_eq!(fleet.status().await?.messages.balance, 0);
/// fleet.stop();
/// fleet.stopped().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Fleet {
    store: Store,
    redis: Redis,
    sync: Arc<SyncContext>,
    sender: Sender,
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

impl Fleet {
    /// Begins to put a member together.
    pub fn builder() -> FleetBuilder {
        FleetBuilder {
            redis: Address::new("redis://127.0.0.1"),
            name: "artel".to_owned(),
            config: Config::default(),
            generate: None,
            handle: None,
            hub: None,
        }
    }

    /// What this process does at this moment.
    pub fn role(&self) -> Role {
        match &*self.sessions.borrow() {
            None => Role::Outside,
            Some(_) => *self.roles.borrow(),
        }
    }

    /// The id of the present session, if there is one.
    pub fn member(&self) -> Option<MemberId> {
        self.sessions.borrow().as_ref().map(|session| session.id.clone())
    }

    /// Whether this process takes part, for whoever must know while the fleet runs and stops.
    pub fn readiness(&self) -> Readiness {
        Readiness { sessions: self.sessions.clone(), stop: self.stop.token.clone() }
    }

    /// The fleet at this moment: who leads, who is here, the books.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn status(&self) -> Result<Status, Error> {
        read_status(&self.store).await
    }

    /// Puts a message into the lane `normal`, for any worker of the fleet.
    ///
    /// ```
    /// # let server = artel_testkit::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let fleet = artel::Fleet::builder().redis(url).start().await?;
    /// let sent = fleet.send("hello").await?;
    /// assert!(sent.is_new && sent.id.as_str().starts_with('s'));
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Sender::send_all`].
    ///
    /// # Cancel safety
    ///
    /// Dropped before it returns, the message may have been added or not; never twice.
    pub async fn send(&self, message: impl Into<NewMessage>) -> Result<Sent, Error> {
        self.sender.send(message).await
    }

    /// What effects wrote under this name; `None` if nothing did.
    ///
    /// ```
    /// # let server = artel_testkit::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use artel::{Context, Effect, Message, Outcome};
    ///
    /// let fleet = artel::Fleet::builder()
    ///     .redis(url)
    ///     .handle(|_: Message, _: Context| async { Outcome::done().with(Effect::incr_by("seen", 1)) })
    ///     .start()
    ///     .await?;
    /// fleet.send("hello").await?;
    /// while fleet.data("seen").await?.and_then(|seen| seen.number()) != Some(1) {
    ///     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    /// }
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Redis::data`].
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn data(&self, name: &str) -> Result<Option<Data>, Error> {
        self.redis.data(name).await
    }

    /// Sends into other lanes, many at once, or once per key.
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// The place of this fleet, to share its events over the connection this member has anyway.
    pub fn redis(&self) -> Redis {
        self.redis.clone()
    }

    /// An event of this fleet.
    ///
    /// # Errors
    ///
    /// As [`DistributedEvent::new`].
    pub fn event(&self, name: &str) -> Result<DistributedEvent, Error> {
        DistributedEvent::new(&self.redis, name)
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
    /// # let server = artel_testkit::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use artel::Notice;
    /// use artel::hub::{Delivery, Overflow, Queue};
    ///
    /// let fleet = artel::Fleet::builder().redis(url).start().await?;
    /// let log = fleet
    ///     .hub()
    ///     .subscribe(fleet.notice_topic())
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
        let explain = |error: AskError| self.store.explain(error.into_store());
        disown_strays(&self.store, &session).await.map_err(explain)?;
        adopt_all(&self.store, &session, &self.board).await.map_err(explain)
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

/// Whether a process takes part in its fleet: made by [`Fleet::readiness`].
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

impl Drop for Fleet {
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
