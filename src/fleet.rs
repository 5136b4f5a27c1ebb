//! [`Fleet`]: wires the stages, owns every task, runs until told to stop.
//!
//! **Invariant:** every task this crate spawns ends before [`Fleet::stopped`] returns. The order of
//! a graceful stop is written down in `shutdown.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Error;
use crate::config::{ATTEMPTS_MAX, Config, GRACE, LEASE, check_fleet_name};
use crate::election::{Elector, Lease};
use crate::generator::{DynGenerate, Ending, Generate, Outlet, Runner};
use crate::membership::{Exercise, Keeper, MemberId, Profile, Session, resign_call};
use crate::notice::{Board, Notice, Notices};
use crate::outcome::{Status, read_status};
use crate::queue::{NewMessage, Sender, Sent, adopt_all, disown_strays};
use crate::shutdown::Shutdown;
use crate::store::{Address, Store};
use crate::worker::{DynHandle, Handle, Mode, Worker};

/// Pause of the adopter after Redis refused it.
const ADOPT_RETRY: Duration = Duration::from_millis(500);

/// What a process does in its fleet at this moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Role {
    /// It has no session, and joins anew.
    Outside,
    /// It handles messages.
    Worker,
    /// It leads, and generates them.
    Generator,
}

/// Collects the parts of a member. Made by [`Fleet::builder`].
pub struct FleetBuilder {
    redis: Address,
    name: String,
    config: Config,
    generate: Option<Box<dyn DynGenerate>>,
    handle: Option<Arc<dyn DynHandle>>,
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

    /// What handles messages. Without it, this process never works.
    pub fn handle(mut self, handle: impl Handle) -> FleetBuilder {
        self.handle = Some(Arc::new(handle));
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
    pub async fn start(self) -> Result<Fleet, Error> {
        self.check()?;
        let store = Store::open(&self.redis, &self.name)?;
        store.check().await?;
        let board = Board::new();
        let notices = board.listen();
        let profile = Profile {
            label: self.config.label.clone(),
            host: host(),
            lease: self.config.lease,
            grace: self.config.grace,
            attempts_max: self.config.attempts_max,
            defaults: (LEASE, GRACE, ATTEMPTS_MAX),
            interval: self.config.interval,
        };
        let keeper = Keeper::start(store.clone(), profile, board.clone()).await?;
        if store.is_persistent().await.is_ok_and(|persistent| !persistent) {
            tracing::warn!("Redis keeps no append-only file: what it holds is lost when it dies");
        }
        let sessions = keeper.sessions();
        let (role, roles) = watch::channel(Role::Worker);
        let stop = Shutdown::new(self.config.stop_grace);
        let runner = self.generate.map(|generate| {
            let (store, config, board) = (store.clone(), self.config.clone(), board.clone());
            Runner { generate, outlet: Outlet { store, config, board } }
        });
        let crew = Crew {
            store: store.clone(),
            config: self.config,
            board: board.clone(),
            runner,
            handle: self.handle,
            role,
            stop: stop.clone(),
        };
        let ledger = crew.config.ledger.arg();
        let sender = Sender::on(store.clone(), &crew.config);
        let task = tokio::spawn(crew.run(keeper));
        let notices = Some(notices);
        Ok(Fleet { store, ledger, sender, board, notices, roles, sessions, stop, task })
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
    ledger: i64,
    sender: Sender,
    board: Board,
    notices: Option<Notices>,
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

    /// Sends into other lanes, many at once, or once per key.
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// What happens from now on; the first call also gets what happened since the start.
    pub fn notices(&mut self) -> Notices {
        self.notices.take().unwrap_or_else(|| self.board.listen())
    }

    /// Puts back what dead members left behind, blocks that belong to nobody included, and says how
    /// many messages that were. Live work is never touched. Members do this all the time by
    /// themselves; this does it now.
    ///
    /// # Cancel safety
    ///
    /// Safe: whatever was not put back is put back by any member.
    pub async fn clean(&self) -> Result<u64, Error> {
        let session = self.sessions.borrow().clone().ok_or(Error::Stopping)?;
        let explain = |error| self.store.explain(error);
        disown_strays(&self.store, &session).await.map_err(explain)?;
        adopt_all(&self.store, &session, self.ledger, &self.board).await.map_err(explain)
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
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.begin();
    }
}

/// Everything that runs inside one member, across its sessions.
struct Crew {
    store: Store,
    config: Config,
    board: Board,
    runner: Option<Runner>,
    handle: Option<Arc<dyn DynHandle>>,
    role: watch::Sender<Role>,
    stop: Shutdown,
}

impl Crew {
    async fn run(mut self, keeper: Keeper) {
        let mut sessions = keeper.sessions();
        loop {
            let session = sessions.borrow_and_update().clone();
            match session {
                Some(session) if !session.over.is_cancelled() => self.serve(&session).await,
                _ => tokio::select! {
                    () = self.stop.token.cancelled() => {}
                    changed = sessions.changed() => if changed.is_err() {
                        tracing::error!("the session thread is gone");
                        break;
                    },
                },
            }
            if self.stop.token.is_cancelled() {
                break;
            }
        }
        keeper.leave().await;
    }

    /// Takes part under one session, until it is over or the fleet stops.
    async fn serve(&mut self, session: &Arc<Session>) {
        let (mode, modes) = watch::channel(Mode::Work);
        let mut worker = self.handle.as_ref().map(|handle| {
            let worker = Worker::new(
                self.store.clone(),
                session.clone(),
                self.config.clone(),
                handle,
                self.board.clone(),
                modes,
            );
            tokio::spawn(worker.run())
        });
        let adopter = tokio::spawn(adopt(
            self.store.clone(),
            session.clone(),
            self.config.ledger.arg(),
            self.board.clone(),
        ));
        self.lead(session, &mode).await;
        if !session.over.is_cancelled() {
            mode.send_replace(Mode::Drain);
            if let Some(worker) = &mut worker {
                let drained = tokio::time::timeout(self.stop.left(), &mut *worker).await;
                if drained.is_err() {
                    let running = session.in_flight.load(Ordering::Relaxed);
                    if running > 0 {
                        tracing::warn!(running, "handlers still run at the deadline");
                    }
                    mode.send_replace(Mode::Halt);
                }
            }
        }
        adopter.abort();
        let _ = adopter.await;
        if let Some(worker) = worker
            && !worker.is_finished()
        {
            let _ = worker.await;
        }
    }

    /// Stands for election and leads, again and again, until the session is over or the fleet
    /// stops.
    async fn lead(&mut self, session: &Arc<Session>, mode: &watch::Sender<Mode>) {
        let Some(runner) = &mut self.runner else {
            tokio::select! {
                () = session.over.cancelled() => {}
                () = self.stop.token.cancelled() => {}
            }
            return;
        };
        let elector = Elector {
            store: self.store.clone(),
            session: session.clone(),
            takeover_timeout: self.config.takeover_timeout,
        };
        loop {
            let lease = tokio::select! {
                () = self.stop.token.cancelled() => break,
                lease = elector.elect() => lease,
            };
            let Some(lease) = lease else { break };
            mode.send_replace(Mode::Rest);
            self.role.send_replace(Role::Generator);
            self.board.publish(Notice::BecameGenerator { term: lease.term });
            let ending = tokio::select! {
                ending = runner.lead(&lease, &self.stop.token) => ending,
                // A runner that waits for an answer must not hold up a stop for ever.
                () = self.stop.overdue() => Ending::Stopped,
            };
            session.set_exercise(Exercise::Idle);
            self.role.send_replace(Role::Worker);
            let reason = match ending {
                Ending::Stopped => "stopping",
                Ending::Deposed => "its term is over",
                Ending::Over => "the session is over",
            };
            if ending == Ending::Stopped {
                resign(&self.store, &lease).await;
            }
            self.board.publish(Notice::LeaseLost { term: lease.term, reason });
            if ending == Ending::Stopped || session.over.is_cancelled() {
                break;
            }
            mode.send_replace(Mode::Work);
            // Whoever was deposed for making no progress lets others try first.
            tokio::select! {
                () = self.stop.token.cancelled() => break,
                () = tokio::time::sleep(session.lease / 3) => {}
            }
        }
        session.set_exercise(Exercise::Idle);
    }
}

async fn resign(store: &Store, lease: &Lease) {
    let session = &lease.session;
    let call = resign_call(store, &session.id, lease.term);
    if let Err(error) = store.work.call(&call, session.call_timeout()).await {
        tracing::debug!(%error, "resigning unanswered: the lease ends with the session");
    }
}

/// Puts back what dead members held, whenever there is something.
async fn adopt(store: Store, session: Arc<Session>, ledger: i64, board: Board) {
    let mut standing = session.standing();
    loop {
        let (orphans, rank) = {
            let standing = standing.borrow_and_update();
            (standing.orphans, standing.rank)
        };
        if orphans {
            // Everybody hears of it; the lower ranks are usually done before the others begin.
            tokio::time::sleep(Duration::from_millis(rank.min(20) as u64 * 5)).await;
            // Before, not after: what is heard of meanwhile must not be forgotten.
            session.update_standing(|standing| standing.orphans = false);
            if let Err(error) = adopt_all(&store, &session, ledger, &board).await {
                tracing::debug!(%error, "adopting");
                tokio::time::sleep(ADOPT_RETRY).await;
                session.update_standing(|standing| standing.orphans = true);
            }
        }
        tokio::select! {
            () = session.over.cancelled() => return,
            changed = standing.wait_for(|standing| standing.orphans) => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
