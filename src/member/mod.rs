//! [`Member`]: this process's part in a fleet. It owns every task and runs until it is stopped.
//!
//! **Invariant:** every task ends before [`Member::stopped`] returns. A task that listens for events
//! ends with its last user. `shutdown.rs` describes the order of a graceful stop.

mod builder;

use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use artel_hub::{EventHub, Topic};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::duties::adopt_all;
use crate::feed::{MessageRecord, message_topic};
use crate::fleet::Fleet;
use crate::id::MemberId;
use crate::membership::{AskError, Session};
use crate::meter::Meter;
use crate::metrics::{KnownNumbers, MetricsSource};
use crate::notice::{Board, Notice, Notices, Relay};
use crate::queue::{PutBack, disown_strays};
use crate::role::Role;
use crate::shutdown::Shutdown;
use crate::sync::{Barrier, Lock, Semaphore, SyncContext};

pub use builder::MemberBuilder;

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
    hub: Arc<OnceLock<EventHub>>,
    relay: Mutex<Option<Relay>>,
    roles: watch::Receiver<Role>,
    sessions: watch::Receiver<Option<Arc<Session>>>,
    stop: Shutdown,
    began: Instant,
    /// The last numbers of the fleet that were asked for.
    numbers: KnownNumbers,
    task: JoinHandle<()>,
}

/// What a service beside the stages needs of a member.
pub(crate) struct MemberParts {
    pub(crate) fleet: Fleet,
    pub(crate) sessions: watch::Receiver<Option<Arc<Session>>>,
    pub(crate) hub: Arc<OnceLock<EventHub>>,
    pub(crate) meter: Arc<Meter>,
}

impl Member {
    /// The fleet it is a member of, over the member's own connections.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The role of this process at this moment.
    pub fn role(&self) -> Role {
        self.roles().now()
    }

    /// Follows the role of this process, also after the member was dropped.
    pub fn roles(&self) -> Roles {
        Roles { sessions: self.sessions.clone(), roles: self.roles.clone() }
    }

    /// The id of the current session, if there is one.
    pub fn id(&self) -> Option<MemberId> {
        self.sessions.borrow().as_ref().map(|session| session.id.clone())
    }

    /// Tells whether this process takes part, also after the member was dropped.
    pub fn readiness(&self) -> Readiness {
        Readiness { sessions: self.sessions.clone(), stop: self.stop.token.clone() }
    }

    /// The numbers of this process and, if it speaks for it, of its fleet, for Prometheus.
    pub fn metrics(&self) -> MetricsSource {
        MetricsSource {
            fleet: self.fleet.clone(),
            meter: self.board.meter.clone(),
            sessions: self.sessions.clone(),
            roles: self.roles.clone(),
            hub: self.hub.get().cloned(),
            began: self.began,
            numbers: self.numbers.clone(),
            is_member: true,
        }
    }

    /// What a service beside the stages needs of this member.
    pub(crate) fn parts(&self) -> MemberParts {
        MemberParts {
            fleet: self.fleet.clone(),
            sessions: self.sessions.clone(),
            hub: self.hub.clone(),
            meter: self.board.meter.clone(),
        }
    }

    /// A lock of this fleet.
    ///
    /// # Errors
    ///
    /// If the name is empty, longer than 200 bytes, or has braces or control characters.
    pub fn lock(&self, name: &str) -> Result<Lock, Error> {
        Lock::new(&self.sync, name)
    }

    /// A semaphore of this fleet, with this number of permits.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and if there are not between 1 and 10,000 permits.
    pub fn semaphore(&self, name: &str, permits: u32) -> Result<Semaphore, Error> {
        Semaphore::new(&self.sync, name, permits)
    }

    /// A barrier of this fleet, for this number of parties.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and if there are not between 1 and 10,000 parties.
    pub fn barrier(&self, name: &str, parties: u32) -> Result<Barrier, Error> {
        Barrier::new(&self.sync, name, parties)
    }

    /// The notices from now on. The first call also gets the notices since the start.
    pub fn notices(&mut self) -> Notices {
        self.notices.take().unwrap_or_else(|| self.board.listen())
    }

    /// The hub on which this member publishes its notices: the hub it was given, or else one of its own
    /// that begins with this call.
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

    /// The topic under which this member tells what it does with each message: `artel/<fleet>/messages`.
    pub fn message_topic(&self) -> Topic<MessageRecord> {
        message_topic(self.fleet.name())
    }

    /// Puts back the messages of dead members, including blocks without an owner, and returns what
    /// happened to them. Live work is never touched. Members do this all the time by themselves; this
    /// call does it now.
    ///
    /// # Cancel safety
    ///
    /// Safe: any member puts back the rest.
    pub async fn clean(&self) -> Result<PutBack, Error> {
        let session = self.sessions.borrow().clone().ok_or(Error::Stopping)?;
        let explain = |error: AskError| self.fleet.store.explain(error.into_store());
        match disown_strays(&self.fleet.store, &session).await {
            Err(AskError::Over | AskError::Gone) => return Ok(PutBack::default()),
            disowned => disowned.map_err(explain)?,
        };
        adopt_all(&self.fleet.store, &session, &self.board).await.map_err(explain)
    }

    /// Takes part until this future is done, and then leaves.
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
    /// Not safe: if it is dropped early, the member stops in the background.
    pub async fn run_until<F: Future>(self, until: F) -> F::Output {
        let done = until.await;
        self.shutdown().await;
        done
    }

    /// Stops gracefully, and returns when this process has left the fleet.
    ///
    /// # Cancel safety
    ///
    /// Not safe: if it is dropped early, the stop goes on in the background.
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
    /// Not safe: it consumes the handle. If it is dropped early, the stop goes on in the background.
    pub async fn stopped(mut self) {
        let _ = (&mut self.task).await;
        let relay = self.relay.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(relay) = relay {
            relay.end().await;
        }
    }
}

/// Tells the role of a process. Made by [`Member::roles`].
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let member = fleet.join().start().await?;
/// let roles = member.roles();
/// assert_eq!(roles.now(), artel::Role::Observer);
/// # member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Roles {
    sessions: watch::Receiver<Option<Arc<Session>>>,
    roles: watch::Receiver<Role>,
}

impl Roles {
    /// The role of the process at this moment.
    pub fn now(&self) -> Role {
        match &*self.sessions.borrow() {
            None => Role::Outside,
            Some(_) => *self.roles.borrow(),
        }
    }
}

/// Tells whether a process takes part in its fleet. Made by [`Member::readiness`].
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// let member = fleet.join().start().await?;
/// assert_eq!(member.readiness().problem(), None);
/// # member.shutdown().await;
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Readiness {
    sessions: watch::Receiver<Option<Arc<Session>>>,
    stop: CancellationToken,
}

impl Readiness {
    /// `None` if this process has a session that it can rely on at this instant. Otherwise what is
    /// wrong.
    pub fn problem(&self) -> Option<&'static str> {
        match &*self.sessions.borrow() {
            _ if self.stop.is_cancelled() => Some("it is stopping"),
            None => Some("it has no session: it is joining again, or Redis is down"),
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

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.begin();
    }
}
