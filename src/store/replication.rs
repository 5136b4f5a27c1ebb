//! [`Replication`]: waits until replicas have what the primary did.
//!
//! **Invariant:** a call is released only by a `WAIT` that was sent after its answer had come, behind another command, to the
//! server process that gave the answer: such a `WAIT` covers everything that this server did before. One `WAIT` serves all
//! that wait. What is asked for never becomes less by itself: of all replicas, those that are gone count, too.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::check::info_field;
use super::link::Link;
use super::{Call, Reply, StoreError};
use crate::config::Durability;
use crate::mutant::{Rule, disabled};

/// How long one `WAIT` waits. Replicas that are farther away than this are out of reach.
const WAIT: Duration = Duration::from_secs(1);
/// How long its answer is waited for.
const ROUND: Duration = Duration::from_secs(2);
/// The pause after a round that failed.
const PAUSE: Duration = Duration::from_millis(50);
/// How often the replicas are counted, if all of them are waited for.
const COUNT_EVERY: Duration = Duration::from_millis(100);
/// After this time without enough replicas it is asked whether this server is still the primary.
const DOUBT: Duration = Duration::from_secs(3);

/// Too few replicas have what was done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Lack {
    pub(crate) replicas: u32,
    pub(crate) wanted: u32,
    /// Since when.
    pub(crate) since: Instant,
}

/// All clones share one connection.
#[derive(Clone)]
pub(crate) struct Replication {
    shared: Arc<Shared>,
}

struct Shared {
    link: Link,
    waiting: Mutex<Waiting>,
    /// The server of a round that is under way is not the one that somebody waits for.
    elsewhere: Notify,
    /// The most replicas that the primary ever showed.
    most: AtomicU32,
    counted: Mutex<Option<Instant>>,
    lack: watch::Sender<Option<Lack>>,
}

#[derive(Default)]
struct Waiting {
    all: Vec<Waiter>,
    /// A task serves them.
    is_served: bool,
}

/// A call that was answered, and waits for replicas.
struct Waiter {
    /// The server that answered it.
    server: String,
    durability: Durability,
    tell: oneshot::Sender<Result<(), StoreError>>,
}

/// What one `WAIT` said.
struct Round {
    server: String,
    /// How many replicas it waited for, and how many have everything.
    asked: u32,
    replicas: u32,
}

impl Replication {
    pub(super) fn new(link: Link) -> Replication {
        Replication {
            shared: Arc::new(Shared {
                link,
                waiting: Mutex::default(),
                elsewhere: Notify::new(),
                most: AtomicU32::new(0),
                counted: Mutex::default(),
                lack: watch::Sender::new(None),
            }),
        }
    }

    /// Waits until enough replicas have everything that this server did until now. Ends only then, or if it can no longer
    /// be known whether they will.
    pub(super) async fn cover(
        &self,
        server: String,
        durability: Durability,
    ) -> Result<(), StoreError> {
        let (tell, told) = oneshot::channel();
        {
            let mut waiting = self.shared.waiting();
            let now_at = self.shared.link.server_in(self.shared.link.epoch());
            if now_at.is_some_and(|now_at| now_at != server) {
                self.shared.elsewhere.notify_one();
            }
            waiting.all.push(Waiter { server, durability, tell });
            if !std::mem::replace(&mut waiting.is_served, true) {
                let service = Service { shared: self.shared.clone(), is_over: false };
                tokio::spawn(service.run());
            }
        }
        let ended = || StoreError::Broken("nobody waits for replicas any more".to_owned());
        told.await.unwrap_or_else(|_| Err(ended()))
    }

    /// What lacks, as of the last time that somebody waited for replicas.
    pub(crate) fn follow(&self) -> watch::Receiver<Option<Lack>> {
        self.shared.lack.subscribe()
    }

    /// Does it lack what this asks for?
    pub(crate) fn is_short(&self, lack: &Lack, durability: Durability) -> bool {
        lack.replicas < self.shared.number(durability)
    }

    /// What is lacking now, for the error of a call that has waited long enough.
    pub(super) fn unreplicated(&self, durability: Durability) -> StoreError {
        let wanted = self.shared.number(durability);
        let lack = *self.shared.lack.borrow();
        StoreError::Unreplicated {
            replicas: lack.map_or(0, |lack| lack.replicas.min(wanted)),
            wanted,
        }
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The primary showed this many replicas that are in sync.
    fn saw(&self, replicas: u32) {
        match disabled(Rule::AllNeverShrinks) {
            true => self.most.store(replicas, Ordering::Relaxed),
            false => drop(self.most.fetch_max(replicas, Ordering::Relaxed)),
        }
    }

    fn number(&self, durability: Durability) -> u32 {
        match durability {
            Durability::Local => 0,
            Durability::Replicated(n) => n,
            Durability::All => self.most.load(Ordering::Relaxed).max(1),
        }
    }

    /// One `WAIT` for all of these.
    async fn round(&self, waiters: &[Waiter]) -> Result<Round, StoreError> {
        let all = waiters.iter().any(|waiter| waiter.durability == Durability::All);
        let counts = all && self.is_time_to_count();
        let mut first = redis::cmd(if counts { "INFO" } else { "PING" });
        if counts {
            first.arg("replication");
        }
        let asked = waiters.iter().map(|waiter| self.number(waiter.durability)).max();
        let asked = asked.or(self.lack.borrow().map(|lack| lack.wanted)).unwrap_or(0);
        let wait = Call::plain("WAIT").arg(asked).arg(WAIT.as_millis() as u64).behind(first);
        let (reply, epoch) = self.link.answer(&wait, ROUND).await?;
        let [first, replicas] = <[Reply; 2]>::try_from(reply.into_list()?)
            .map_err(|_| StoreError::odd("an answer to WAIT that is no pair"))?;
        if counts {
            self.saw(in_sync(&first.into_text()?));
        }
        let replicas = u32::try_from(replicas.into_number()?).unwrap_or(0);
        let server = self.link.server_in(epoch);
        let server = server.ok_or_else(|| StoreError::Broken("the connection ended".to_owned()))?;
        Ok(Round { server, asked, replicas })
    }

    fn is_time_to_count(&self) -> bool {
        let (now, mut counted) =
            (Instant::now(), self.counted.lock().unwrap_or_else(PoisonError::into_inner));
        let is_time = counted.is_none_or(|at| now - at >= COUNT_EVERY);
        if is_time {
            *counted = Some(now);
        }
        is_time
    }

    /// Tells those that are covered, or never will be. Returns the others.
    fn release(&self, waiters: Vec<Waiter>, round: &Round) -> Vec<Waiter> {
        let mut rest = Vec::new();
        for waiter in waiters {
            if waiter.server != round.server && !disabled(Rule::WaitAtSameServer) {
                let error = StoreError::Broken("the primary changed meanwhile".to_owned());
                let _ = waiter.tell.send(Err(error));
            } else if round.replicas >= self.number(waiter.durability) {
                let _ = waiter.tell.send(Ok(()));
            } else {
                rest.push(waiter);
            }
        }
        self.note(round);
        rest
    }

    /// Notes whether enough replicas answered.
    fn note(&self, round: &Round) {
        let lacks = round.replicas < round.asked;
        let since = self.lack.borrow().map(|lack| lack.since);
        if lacks && since.is_some_and(|since| since.elapsed() >= DOUBT) {
            self.link.doubt();
        }
        let now = lacks.then(|| Lack {
            replicas: round.replicas,
            wanted: round.asked,
            since: since.unwrap_or_else(Instant::now),
        });
        self.lack.send_if_modified(|lack| std::mem::replace(lack, now) != now);
    }
}

/// Serves all that wait, until nobody does and nothing lacks. If its runtime ends before, they are told.
struct Service {
    shared: Arc<Shared>,
    is_over: bool,
}

impl Service {
    /// In a box, because a call of its own link may wait here, too.
    fn run(mut self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            while let Some(waiters) = self.next() {
                self.serve(waiters).await;
            }
        })
    }

    /// All that wait now. `None` if there is nothing left to do.
    fn next(&mut self) -> Option<Vec<Waiter>> {
        let mut waiting = self.shared.waiting();
        waiting.all.retain(|waiter| !waiter.tell.is_closed());
        // Members that stand still ask for nothing: it must be noticed here when they may go on.
        self.is_over = waiting.all.is_empty() && self.shared.lack.borrow().is_none();
        waiting.is_served = !self.is_over;
        (!self.is_over).then(|| std::mem::take(&mut waiting.all))
    }

    async fn serve(&self, waiters: Vec<Waiter>) {
        let shared = &self.shared;
        let round = tokio::select! {
            round = shared.round(&waiters) => round,
            // What is waited for there cannot come any more.
            () = shared.elsewhere.notified() => {
                shared.link.reset();
                Err(StoreError::Broken("the primary changed meanwhile".to_owned()))
            }
        };
        let rest = match round {
            Ok(round) => shared.release(waiters, &round),
            Err(error) => {
                tracing::debug!(%error, "replicas were not asked");
                if !error.is_passing() {
                    shared.link.reset();
                }
                tokio::time::sleep(PAUSE).await;
                waiters
            }
        };
        shared.waiting().all.extend(rest);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if !self.is_over {
            let mut waiting = self.shared.waiting();
            waiting.is_served = false;
            // Dropping the waiters tells them.
            waiting.all.clear();
        }
    }
}

/// How many replicas are in sync, in an answer to `INFO replication`. One that is still being filled has nothing that counts.
pub(crate) fn in_sync(info: &str) -> u32 {
    let online = (0..)
        .map_while(|n| info_field(info, &format!("slave{n}")))
        .filter(|line| line.split(',').any(|field| field.trim() == "state=online"));
    u32::try_from(online.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use artel_rig::{Kind, Server};

    use super::*;
    use crate::store::{Address, Keys};

    /// A `WAIT` at another server than the one that answered says nothing about the answer.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_another_server_has_covers_nothing() {
        let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
        let primary = Server::start(kind);
        let port = primary.port().to_string();
        let _replica = Server::with(kind, &["--replicaof", "127.0.0.1", &port]);
        let client = Address::new(primary.url()).client().expect("an address");
        let link = Link::new("test", client.of(&Keys::new("f", 0).config()));
        let info = Call::plain("INFO").arg("server").reading(Reply::into_text);
        let info = link.call(&info, ROUND).await.expect("answers");
        let server = info_field(&info, "run_id").expect("a name").trim().to_owned();
        let replication = Replication::new(link);
        let one = Durability::Replicated(1);
        replication.cover(server, one).await.expect("the replica has everything");
        let other = replication.cover("0".repeat(40), one).await;
        assert!(matches!(other, Err(StoreError::Broken(_))), "{other:?}");
    }

    #[test]
    fn only_replicas_in_sync_count() {
        let info = "role:master\r\nconnected_slaves:3\r\n\
            slave0:ip=127.0.0.1,port=1,state=online,offset=14,lag=0\r\n\
            slave1:ip=127.0.0.1,port=2,state=wait_bgsave,offset=0,lag=0\r\n\
            slave2:ip=127.0.0.1,port=3,state=online,offset=14,lag=1\r\n";
        assert_eq!(in_sync(info), 2);
        assert_eq!(in_sync("role:master\r\nconnected_slaves:0\r\n"), 0);
    }
}
