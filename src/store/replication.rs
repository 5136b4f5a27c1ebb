//! [`Replication`]: waits until replicas have what the primary did.
//!
//! **Invariant:** a call is released only when as many replicas as it asks for have acknowledged everything that its server
//! did before the answer came, and that server is still the same one with the same history. One `WAIT` serves all that wait.
//! What is asked for never becomes less by itself: of all replicas, those that are gone count, too.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::check::info_field;
use super::link::Link;
use super::{Keys, Reply, Script, StoreError};
use crate::config::Durability;
use crate::mutant::{Rule, disabled};

static MARK: Script = Script::new("mark", include_str!("mark.lua"));

/// How long one `WAIT` waits; and while replicas lack something, so that one who asks for less is not held up.
const WAIT: Duration = Duration::from_secs(1);
const WAIT_SHORT: Duration = Duration::from_millis(50);
/// How long its answer is waited for.
const ROUND: Duration = Duration::from_secs(2);
/// The pause after a round that failed.
const PAUSE: Duration = Duration::from_millis(50);
/// After this time without enough replicas it is asked whether this server is still the primary.
const DOUBT: Duration = Duration::from_secs(3);

/// Too few replicas have what was done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Lack {
    /// What somebody asked for.
    durability: Durability,
    pub(crate) replicas: u32,
    pub(crate) wanted: u32,
    /// Since when.
    pub(crate) since: Instant,
}

/// All clones share one connection, on a thread of its own: neither busy handlers nor the end of a runtime can stop it.
#[derive(Clone)]
pub(crate) struct Replication {
    shared: Arc<Shared>,
    /// Ends the thread with the last clone.
    life: Arc<Mutex<Option<DropGuard>>>,
}

struct Shared {
    link: Link,
    /// The key of the mark.
    mark: String,
    waiting: Mutex<Vec<Waiter>>,
    /// Somebody waits, or waits at another server than the round under way.
    some: Notify,
    elsewhere: Notify,
    /// The most replicas that any primary ever showed in sync.
    most: AtomicU32,
    /// When it was last asked whether this server is still the primary.
    doubted: Mutex<Option<Instant>>,
    /// At which server something lacks, and how far it was when that began.
    lacked: Mutex<Option<(String, u64)>>,
    lack: watch::Sender<Option<Lack>>,
}

/// A call that was answered, and waits for replicas.
struct Waiter {
    /// The server that answered it, and its history.
    server: String,
    durability: Durability,
    /// What the server had done when the first round began after the answer.
    upto: Option<u64>,
    tell: oneshot::Sender<Result<(), StoreError>>,
}

/// What a server says about its replication.
#[derive(Debug, Default)]
struct Said {
    /// Where its history is now.
    offset: u64,
    history: String,
    /// The replicas in sync, by address, and how far each is known to be.
    replicas: Vec<(String, u64)>,
}

impl Said {
    fn read(info: &str) -> Said {
        let field = |name| info_field(info, name).map(str::trim);
        let number = |text: Option<&str>| text.and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut replicas: Vec<(String, u64)> = Vec::new();
        for line in (0..).map_while(|n| info_field(info, &format!("slave{n}"))) {
            let part = |name: &str| {
                line.split(',').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='))
            };
            // One that is still being filled has nothing that counts.
            if part("state") == Some("online")
                && let (Some(ip), Some(port)) = (part("ip"), part("port"))
            {
                let (address, offset) = (format!("{ip}:{port}"), number(part("offset")));
                // After a break the old connection of a replica may be listed beside the new one.
                match replicas.iter_mut().find(|(known, _)| *known == address) {
                    Some((_, known)) => *known = offset.max(*known),
                    None => replicas.push((address, offset)),
                }
            }
        }
        let history = field("master_replid").unwrap_or_default().to_owned();
        Said { offset: number(field("master_repl_offset")), history, replicas }
    }
}

impl Said {
    /// How many replicas have everything up to there.
    fn have(&self, upto: u64) -> u32 {
        self.replicas.iter().filter(|(_, at)| *at >= upto).count() as u32
    }
}

/// How many replicas are in sync, in an answer to `INFO replication`.
pub(crate) fn in_sync(info: &str) -> u32 {
    Said::read(info).replicas.len() as u32
}

/// One `WAIT`, and what the server said before and after it.
struct Round {
    server: String,
    before: Said,
    after: Said,
    /// Those that were waited for did not say in a whole second that they have everything.
    is_late: bool,
}

impl Replication {
    pub(super) fn new(link: Link, keys: &Keys) -> Replication {
        Replication {
            shared: Arc::new(Shared {
                link,
                mark: keys.mark(),
                waiting: Mutex::default(),
                some: Notify::new(),
                elsewhere: Notify::new(),
                most: AtomicU32::new(0),
                doubted: Mutex::default(),
                lacked: Mutex::default(),
                lack: watch::Sender::new(None),
            }),
            life: Arc::default(),
        }
    }

    /// Waits until enough replicas have everything that this server did until now. Ends only then, or if it can no longer
    /// be known whether they will.
    pub(super) async fn cover(
        &self,
        server: String,
        durability: Durability,
    ) -> Result<(), StoreError> {
        self.begin()?;
        let (tell, told) = oneshot::channel();
        {
            let link = &self.shared.link;
            if link.history_in(link.epoch()).is_some_and(|now_at| now_at != server) {
                self.shared.elsewhere.notify_one();
            }
            self.shared.waiting().push(Waiter { server, durability, upto: None, tell });
            self.shared.some.notify_one();
        }
        let ended = || StoreError::Broken("nobody waits for replicas any more".to_owned());
        told.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Starts the thread, unless it runs.
    fn begin(&self) -> Result<(), StoreError> {
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        if life.is_some() {
            return Ok(());
        }
        let refused = |error: std::io::Error| StoreError::Broken(format!("no thread: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let (over, shared) = (CancellationToken::new(), self.shared.clone());
        let until = over.clone();
        let service = async move {
            tokio::select! {
                () = until.cancelled() => {}
                () = shared.serve() => {}
            }
        };
        std::thread::Builder::new()
            .name("artel-replicas".to_owned())
            .spawn(move || runtime.block_on(service))
            .map_err(refused)?;
        *life = Some(over.drop_guard());
        Ok(())
    }

    /// What lacks, as of the last time that somebody waited for replicas.
    pub(crate) fn follow(&self) -> watch::Receiver<Option<Lack>> {
        self.shared.lack.subscribe()
    }

    /// Does one who asks for this lack something, too?
    pub(crate) fn is_short(lack: &Lack, durability: Durability) -> bool {
        durability >= lack.durability
    }

    /// What is lacking now, for the error of a call that has waited long enough.
    pub(super) fn unreplicated(&self, durability: Durability) -> StoreError {
        let (wanted, lack) = (self.shared.number(durability), *self.shared.lack.borrow());
        let replicas = lack.map_or(0, |lack| lack.replicas.min(wanted));
        StoreError::Unreplicated { replicas, wanted }
    }

    /// The primary has said this about its replicas.
    pub(super) fn saw(&self, info: &str) {
        self.shared.saw(&Said::read(info));
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Vec<Waiter>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn saw(&self, said: &Said) {
        let there = said.replicas.len() as u32;
        match disabled(Rule::AllNeverShrinks) {
            true => self.most.store(there, Ordering::Relaxed),
            false => drop(self.most.fetch_max(there, Ordering::Relaxed)),
        }
    }

    fn number(&self, durability: Durability) -> u32 {
        let most = self.most.load(Ordering::Relaxed);
        match durability {
            Durability::Local => 0,
            Durability::Replicated(n) => n,
            Durability::All if disabled(Rule::AllNeverShrinks) => most.max(1),
            // Sentinels also know one that the primary does not show at this moment, because it is taking over.
            Durability::All => most.max(self.link.replicas_told()).max(1),
        }
    }

    /// Serves all that wait. While something lacks it goes on without them: members that stand still ask for nothing, and must
    /// notice when they may go on.
    async fn serve(&self) {
        loop {
            let waiters = {
                let mut waiting = self.waiting();
                waiting.retain(|waiter| !waiter.tell.is_closed());
                std::mem::take(&mut *waiting)
            };
            if waiters.is_empty() && self.lack.borrow().is_none() {
                self.some.notified().await;
                continue;
            }
            let round = tokio::select! {
                round = self.round(&waiters) => round,
                // What is waited for there cannot come any more.
                () = self.elsewhere.notified() => {
                    self.link.reset();
                    Err(StoreError::Broken("the primary changed meanwhile".to_owned()))
                }
            };
            let rest = match round {
                Ok(round) => self.release(waiters, &round),
                Err(error) => {
                    tracing::debug!(%error, "replicas were not asked");
                    if !error.is_passing() {
                        self.link.reset();
                    }
                    tokio::time::sleep(PAUSE).await;
                    waiters
                }
            };
            self.waiting().extend(rest);
        }
    }

    /// One `WAIT` for all of these.
    async fn round(&self, waiters: &[Waiter]) -> Result<Round, StoreError> {
        let asked = waiters.iter().map(|waiter| self.number(waiter.durability)).max();
        let lack = *self.lack.borrow();
        let asked = asked.or(lack.map(|lack| lack.wanted)).unwrap_or(0);
        let time = if lack.is_some() { WAIT_SHORT } else { WAIT };
        let (mut info, mut wait) = (redis::cmd("INFO"), redis::cmd("WAIT"));
        info.arg("replication");
        wait.arg(asked).arg(time.as_millis() as u64);
        let mark = MARK.call(std::slice::from_ref(&self.mark)).arg(rand::random::<u32>());
        let call = mark.then(vec![info.clone(), wait, info]);
        let (reply, epoch) = self.link.answer(&call, ROUND).await?;
        let [before, replicas, after] = <[Reply; 3]>::try_from(reply.into_list()?)
            .map_err(|_| StoreError::odd("an answer to WAIT that is not three"))?;
        let [before, after] =
            [before, after].map(|said| said.into_text().map(|said| Said::read(&said)));
        let (before, after) = (before?, after?);
        let have = u32::try_from(replicas.into_number()?).unwrap_or(0);
        let is_late = have < asked && time == WAIT;
        let history = self.link.history_in(epoch);
        let server =
            history.ok_or_else(|| StoreError::Broken("the connection ended".to_owned()))?;
        // A server that was a replica in between has another history.
        if before.history != after.history || !server.ends_with(&before.history) {
            self.link.reset();
            return Err(StoreError::Broken("the history of the server changed".to_owned()));
        }
        self.saw(&after);
        Ok(Round { server, before, after, is_late })
    }

    /// Tells those that are covered, or never will be. Returns the others.
    fn release(&self, waiters: Vec<Waiter>, round: &Round) -> Vec<Waiter> {
        let (mut rest, mut short) = (Vec::new(), None);
        for mut waiter in waiters {
            if waiter.server != round.server && !disabled(Rule::WaitAtSameServer) {
                let error = StoreError::Broken("the primary changed meanwhile".to_owned());
                let _ = waiter.tell.send(Err(error));
                continue;
            }
            let upto = *waiter.upto.get_or_insert(round.before.offset);
            if self.is_covered(waiter.durability, round, upto) {
                let _ = waiter.tell.send(Ok(()));
            } else {
                // A replica that was seen only now is waited for in the next round.
                short = short.max(round.is_late.then_some(waiter.durability));
                rest.push(waiter);
            }
        }
        self.note(short, round);
        rest
    }

    fn is_covered(&self, durability: Durability, round: &Round, upto: u64) -> bool {
        round.after.have(upto) >= self.number(durability)
    }

    /// Notes whether enough replicas answered, also for those that lacked something before and do not wait now: until
    /// replicas have what they lacked then.
    fn note(&self, short: Option<Durability>, round: &Round) {
        let before = *self.lack.borrow();
        let mut lacked = self.lacked.lock().unwrap_or_else(PoisonError::into_inner);
        let now_at = (round.server.clone(), round.before.offset);
        if lacked.as_ref().is_none_or(|(server, _)| *server != round.server) {
            *lacked = Some(now_at);
        }
        let upto = lacked.as_ref().map_or(0, |(_, upto)| *upto);
        let still = before.map(|lack| lack.durability);
        let still = still.filter(|durability| !self.is_covered(*durability, round, upto));
        let now = short.max(still).map(|durability| Lack {
            durability,
            replicas: round.after.have(upto),
            wanted: self.number(durability),
            since: before.map_or_else(Instant::now, |lack| lack.since),
        });
        if now.is_none() {
            *lacked = None;
        }
        let mut doubted = self.doubted.lock().unwrap_or_else(PoisonError::into_inner);
        let doubts = |lack: Lack| doubted.unwrap_or(lack.since).max(lack.since).elapsed() >= DOUBT;
        if now.is_some_and(doubts) {
            *doubted = Some(Instant::now());
            self.link.doubt();
        }
        self.lack.send_if_modified(|lack| std::mem::replace(lack, now) != now);
    }
}

#[cfg(test)]
mod tests {
    use artel_rig::{Kind, Server, eventually};

    use super::*;
    use crate::store::{Address, Call};

    /// A `WAIT` at another server than the one that answered says nothing about the answer.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_another_server_has_covers_nothing() {
        let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
        let primary = Server::start(kind);
        let port = primary.port().to_string();
        let _replica = Server::with(kind, &["--replicaof", "127.0.0.1", &port]);
        let client = Address::new(primary.url()).client().expect("an address");
        let link = Link::new("test", client.of(&Keys::new("f", 0)));
        eventually("the replica to be in sync", || {
            let info = redis::cmd("INFO").arg("replication").query(&mut primary.connect());
            info.is_ok_and(|info: String| in_sync(&info) == 1)
        });
        link.call(&Call::plain("PING"), ROUND).await.expect("answers");
        let server = link.history_in(link.epoch()).expect("connected");
        let replication = Replication::new(link, &Keys::new("f", 0));
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
