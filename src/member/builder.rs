//! [`MemberBuilder`]: puts a member together and starts it.
//!
//! **Invariant:** nothing is started before every setting was checked and Redis was found fit.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use artel_hub::{EventHub, Topic};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Member;
use crate::Error;
use crate::config::Config;
use crate::duties::{Duties, Means};
use crate::feed::{Feed, message_topic};
use crate::fleet::Fleet;
use crate::generator::{DynGenerate, Generate, Runner};
use crate::membership::{Profile, SessionHandle};
use crate::notice::{Board, Notice};
use crate::process;
use crate::role::Role;
use crate::schedule::{Cron, CronSet};
use crate::shutdown::Shutdown;
use crate::stages::Stages;
use crate::store::Store;
use crate::sync::SyncContext;
use crate::worker::{DynHandle, Handle, HandledBy, Route, Routing};

/// The most kinds that a member shows to others.
const KINDS_SHOWN: usize = 100;

impl Fleet {
    /// Begins to build a member, which is this process's part in the fleet.
    pub fn join(&self) -> MemberBuilder {
        MemberBuilder {
            fleet: self.clone(),
            config: Config::default(),
            generate: None,
            handle: None,
            routes: Vec::new(),
            crons: Vec::new(),
            hub: None,
            payloads: None,
        }
    }
}

/// Collects the parts of a member. Made by [`Fleet::join`].
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// use artel::{Config, Context, Message, Role, Tick};
///
/// let mut config = Config::default();
/// config.label = "orders-1".to_owned();
/// let member = fleet
///     .join()
///     .config(config)
///     .generate(|tick: Tick| async move { format!("order {}", tick.seq) })
///     .handle(|message: Message, _: Context| async move { println!("{}", message.text()) })
///     .start()
///     .await?;
/// assert_ne!(member.role(), Role::Observer);
/// member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemberBuilder {
    fleet: Fleet,
    config: Config,
    generate: Option<Box<dyn DynGenerate>>,
    handle: Option<Arc<dyn DynHandle>>,
    routes: Vec<Route>,
    crons: Vec<(String, Cron)>,
    hub: Option<EventHub>,
    /// It is told what becomes of each message; with payloads or without.
    payloads: Option<bool>,
}

impl MemberBuilder {
    /// Sets the settings of the member.
    pub fn config(mut self, config: Config) -> MemberBuilder {
        self.config = config;
        self
    }

    /// Sets the generator, which makes messages while this process leads. Without it, this process
    /// never leads.
    pub fn generate(mut self, generate: impl Generate) -> MemberBuilder {
        self.generate = Some(Box::new(generate));
        self
    }

    /// Sets the handler for messages of this kind, by its name, or with a [`Kind`](crate::Kind), which has options and reads
    /// the payload. Each kind can have its own handler; of two for the same kind the last one counts.
    /// [`handle`](Self::handle) sets the handler for all other messages. Without it they wait for a member that knows their
    /// kind: they are snoozed ten times, and then fail with the cause `kind`.
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
    pub fn on<H>(mut self, kind: impl HandledBy<H>, handler: H) -> MemberBuilder {
        self.routes.push(kind.into_route(handler));
        self
    }

    /// Sets the handler for messages. Without a handler this process never works. Without a handler and
    /// without a generator it is an observer: a member that only uses locks and events.
    pub fn handle(mut self, handle: impl Handle) -> MemberBuilder {
        self.handle = Some(Arc::new(handle));
        self
    }

    /// Declares a periodic entry of the fleet, under this name, when this process joins. It stays when the process goes;
    /// [`Crons::remove`](crate::Crons::remove) removes it. If another program declares it differently, the last one wins.
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use artel::{Cron, Fleet, NewMessage};
    ///
    /// let fleet = Fleet::connect(url, "shop").await?;
    /// let report = NewMessage::from("all customers").with_kind("report");
    /// let member = fleet
    ///     .join()
    ///     .on("report", |_: artel::Message, _: artel::Context| async {})
    ///     .cron("nightly", Cron::new("0 2 * * *").tz("Europe/Berlin").message(report))
    ///     .start()
    ///     .await?;
    /// assert_eq!(fleet.crons().list().await?[0].name, "nightly");
    /// member.shutdown().await;
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cron(mut self, name: impl Into<String>, cron: Cron) -> MemberBuilder {
        self.crons.push((name.into(), cron));
        self
    }

    /// Publishes on the hub what this member does with each message, as a [`MessageRecord`](crate::MessageRecord) under
    /// [`Member::message_topic`], with payloads or without. It needs a [`hub`](Self::hub). Publishing never waits: what a
    /// subscriber has no room for, it counts as dropped.
    pub fn publish_messages(mut self, payloads: bool) -> MemberBuilder {
        self.payloads = Some(payloads);
        self
    }

    /// Sets the hub on which this member publishes its notices, from the first one on, under
    /// [`Member::notice_topic`]. It may be your program's own hub; the member never shuts it down.
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
        self.config.validate()?;
        self.routes.iter().try_for_each(|route| route.options.check())?;
        self.crons.iter().try_for_each(|(name, cron)| cron.check(name))
    }

    /// Joins the fleet. Returns when this process is a member.
    ///
    /// # Errors
    ///
    /// If a setting is out of range, Redis cannot be reached, denies access or is unfit, or the fleet
    /// runs with other values. Once it has started, a member survives all failures of Redis.
    ///
    /// # Cancel safety
    ///
    /// Safe: a session that was opened meanwhile ends by itself.
    pub async fn start(mut self) -> Result<Member, Error> {
        self.check()?;
        if self.config.label.is_empty() {
            self.config.label = own_name();
        }
        let (fleet, hints) = self.fleet.of_member(&self.config)?;
        let store = fleet.store.clone();
        store.check().await?;
        store.count_steps();
        let messages = message_topic(fleet.name());
        let feed = self.hub.as_ref().zip(self.payloads);
        let feed = feed
            .and_then(|(hub, payloads)| Feed::new(hub, &messages, &self.config.label, payloads));
        let board = Board::new(feed);
        let notices = Some(board.listen());
        let topic = notice_topic(fleet.name());
        let relay = self.hub.as_ref().map(|hub| board.relay(hub, &topic));
        let handle =
            SessionHandle::start(store.clone(), hints, self.profile(), board.clone()).await?;
        fleet.is_compared();
        for (name, cron) in &self.crons {
            if let CronSet::Replaced(before) = fleet.crons().set(name, cron).await? {
                board.publish(Notice::CronReplaced { entry: name.clone(), before });
            }
        }
        let observes = self.generate.is_none() && !self.handles();
        if !observes {
            store.risks().await.iter().for_each(|risk| tracing::warn!("{risk}"));
        }
        let sessions = handle.sessions();
        let sync = SyncContext::new(fleet.clone(), sessions.clone())?;
        let (role, roles) = watch::channel(self.resting());
        let hub = Arc::new(self.hub.take().map_or_else(OnceLock::new, OnceLock::from));
        let duties = Duties::start(&Means {
            store: store.clone(),
            board: board.clone(),
            sessions: sessions.clone(),
            roles: roles.clone(),
            question: fleet.watch(&store.keys.gather())?,
            hub: hub.clone(),
            label: self.config.label.clone(),
            host: process::host(),
            began: Instant::now(),
            over: CancellationToken::new(),
        })?;
        let stop = Shutdown::new(self.config.stop_grace);
        let stages = self.stages(&store, &board, role, &stop);
        let task = tokio::spawn(stages.run(handle, duties));
        Ok(Member {
            fleet,
            topic,
            hub,
            relay: Mutex::new(relay),
            sync,
            board,
            notices,
            roles,
            sessions,
            stop,
            began: Instant::now(),
            numbers: Arc::default(),
            task,
        })
    }

    fn profile(&self) -> Profile {
        Profile {
            label: self.config.label.clone(),
            host: process::host(),
            settings: self.config.fleet_wide(),
            interval: self.config.interval,
            can_lead: self.generate.is_some(),
            handles: self.handles(),
            kinds: self.routes.iter().map(|route| route.name.clone()).take(KINDS_SHOWN).collect(),
        }
    }

    /// Has it a handler?
    fn handles(&self) -> bool {
        self.handle.is_some() || !self.routes.is_empty()
    }

    /// Its role while it does not lead.
    fn resting(&self) -> Role {
        match (self.generate.is_some(), self.handles()) {
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
        let routing = Routing::new(self.routes, self.handle, &self.config);
        Stages {
            store: store.clone(),
            config: self.config,
            board: board.clone(),
            runner,
            routing,
            role,
            resting,
            stop: stop.clone(),
        }
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

/// The name of a process without a label: its program and its process id.
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
