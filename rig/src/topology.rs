//! [`Cluster`] and [`Sentinels`]: several private servers that replace one another.
//!
//! **Invariant:** it is ready when it is returned: every node knows every other one, replicas are in sync, and somebody would
//! replace a primary that dies.

use std::fmt::Write;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::Connection;
use tempfile::TempDir;

use crate::{
    Kind, Nodes, Server, ask_port, eventually, free_port, is_in_sync, replication_of, wait_for,
};

/// How long a node of a cluster may be silent before it is replaced.
const NODE_TIMEOUT_MS: u64 = 2000;
/// How long a primary may be silent before a sentinel calls it down. A replica whose link was down ten times as long is not
/// promoted.
const DOWN_AFTER_MS: u64 = 3000;
/// How long the sentinels may take to agree.
const AGREE_MAX: Duration = Duration::from_secs(120);
/// How long a primary waits for the one that is to take over.
const HAND_OVER_MAX: Duration = Duration::from_secs(6);
/// What the sentinels call the primary.
pub const MASTER: &str = "main";

/// One of them at a time: they are many processes, which take each other for dead where a machine is busy for too long.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A cluster: primaries that share the slots evenly, each with replicas.
#[derive(Debug)]
pub struct Cluster {
    /// The primaries first, then the replicas of the first one, and so on.
    pub nodes: Vec<Server>,
    calls: Nodes,
    _alone: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Starts this number of primaries, each with this number of replicas.
    pub fn start(kind: Kind, primaries: usize, replicas: usize) -> Cluster {
        let alone = alone();
        let timeout = NODE_TIMEOUT_MS.to_string();
        let start = |_| {
            let bus = free_port().to_string();
            Server::with(
                kind,
                &[
                    "--cluster-enabled",
                    "yes",
                    "--cluster-port",
                    &bus,
                    "--cluster-node-timeout",
                    &timeout,
                    "--repl-diskless-sync-delay",
                    "0",
                    "--cluster-allow-replica-migration",
                    "no",
                ],
            )
        };
        let nodes: Vec<Server> = (0..primaries * (1 + replicas)).map(start).collect();
        let calls = Nodes { ports: nodes.iter().map(Server::port).collect() };
        let cluster = Cluster { nodes, calls, _alone: alone };
        cluster.calls.introduce(primaries).expect("introduced");
        eventually("all nodes to know each other", || cluster.calls.know_each_other());
        cluster.calls.follow(primaries, replicas).expect("replicas");
        eventually("replicas to be in sync, and the cluster to be whole", || {
            cluster.calls.ports[primaries..].iter().all(|port| is_in_sync(*port))
                && cluster.calls.are_whole()
        });
        cluster
    }

    /// The ports of all nodes.
    pub fn ports(&self) -> Vec<u16> {
        self.calls.ports.clone()
    }

    /// The name of a node among the others.
    pub fn id(&self, node: usize) -> String {
        self.calls.id(node).expect("a name")
    }

    /// An address with all nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        self.calls.slot(key).expect("a node that lives")
    }

    /// The node that owns this slot, as soon as one does.
    #[track_caller]
    pub fn owner(&self, slot: u16) -> usize {
        wait_for("an owner of the slot", || self.calls.owner(slot))
    }

    /// A connection to the owner of this slot.
    #[track_caller]
    pub fn connect(&self, slot: u16) -> Connection {
        self.nodes[self.owner(slot)].connect()
    }

    /// Begins to move a slot, key by key: from now on its keys are on either side.
    pub fn open_migration(&self, slot: u16, to: usize) {
        self.calls.open_migration(slot, self.owner(slot), to).expect("begun");
    }

    /// Moves the keys that are left, and ends what [`open_migration`](Self::open_migration) began.
    pub fn end_migration(&self, slot: u16, to: usize) {
        self.calls.end_migration(slot, self.owner(slot), to).expect("moved");
    }

    /// Moves a slot in one step, if the server can do that.
    pub fn move_at_once(&self, slot: u16, to: usize) -> bool {
        let can = self.calls.move_at_once(slot, self.owner(slot), to).expect("answers");
        if can {
            eventually("the slot to be there", || self.owner(slot) == to);
        }
        can
    }

    /// Does the owner of this slot say that the cluster works?
    pub fn works(&self, slot: u16) -> bool {
        let port = self.nodes[self.owner(slot)].port();
        let info: String = ask_port(port, &["CLUSTER", "INFO"]).unwrap_or_default();
        info.contains("cluster_state:ok")
    }

    /// Is this node a replica that has what its primary has?
    pub fn is_in_sync(&self, node: usize) -> bool {
        is_in_sync(self.nodes[node].port())
    }

    /// Gives a slot up and takes it again in one write: the server ends all subscriptions to channels of that slot.
    pub fn flip(&self, slot: u16) {
        self.calls.flip(slot, self.owner(slot)).expect("flipped");
    }

    /// A replica takes over from its primary, which agrees.
    pub fn hand_over(&self, to: usize) {
        let port = self.nodes[to].port();
        let mut asked: Option<Instant> = None;
        eventually("it to be the primary", || {
            // On a busy machine the primary may not wait long enough: then it is asked again.
            if asked.is_none_or(|at| at.elapsed() > HAND_OVER_MAX) {
                asked = Some(Instant::now());
                let _ = self.calls.hand_over(to);
            }
            replication_of(port).contains("role:master")
        });
    }
}

/// A primary with replicas, and sentinels that replace it.
#[derive(Debug)]
pub struct Sentinels {
    /// The servers; which of them is the primary changes.
    pub servers: Vec<Server>,
    sentinels: Vec<Sentinel>,
    _alone: MutexGuard<'static, ()>,
}

#[derive(Debug)]
struct Sentinel {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Sentinels {
    /// Starts this number of servers, and three sentinels, two of which must agree.
    pub fn start(kind: Kind, servers: usize) -> Sentinels {
        let alone = alone();
        let common =
            ["--appendonly", "yes", "--appendfsync", "no", "--repl-diskless-sync-delay", "0"];
        let first = Server::with(kind, &common);
        let port = first.port().to_string();
        let replica = |_| {
            let of = ["--replicaof", "127.0.0.1", &port];
            Server::with(kind, &[&common[..], &of].concat())
        };
        let servers: Vec<Server> =
            std::iter::once(first).chain((1..servers).map(replica)).collect();
        eventually("replicas to be in sync", || {
            servers[1..].iter().all(|server| is_in_sync(server.port()))
        });
        let sentinels = (0..3).map(|_| Sentinel::start(kind, &port)).collect();
        let all = Sentinels { servers, sentinels, _alone: alone };
        let (others, replicas) = (all.sentinels.len() - 1, all.servers.len() - 1);
        eventually("sentinels to know each other and the replicas", || {
            all.sentinels.iter().all(|sentinel| {
                let known: Vec<String> =
                    ask_port(sentinel.port, &["SENTINEL", "MASTER", MASTER]).unwrap_or_default();
                let says = |name: &str, count: usize| {
                    known.windows(2).any(|pair| pair == [name.to_owned(), count.to_string()])
                };
                says("num-other-sentinels", others) && says("num-slaves", replicas)
            })
        });
        all
    }

    /// The address of the primary that they name.
    pub fn url(&self) -> String {
        let mut hosts = String::new();
        for (at, sentinel) in self.sentinels.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let _ = write!(hosts, "{comma}127.0.0.1:{}", sentinel.port);
        }
        format!("redis-sentinel://{hosts}?master={MASTER}")
    }

    /// The ports of the sentinels.
    pub fn ports(&self) -> Vec<u16> {
        self.sentinels.iter().map(|sentinel| sentinel.port).collect()
    }

    /// The server that is the primary, as soon as the sentinels agree and it says so itself. On a busy machine they may need
    /// several attempts, each of which they allow only after a while.
    #[track_caller]
    pub fn primary(&self) -> usize {
        let begun = Instant::now();
        loop {
            let named: Vec<Option<u16>> = self.sentinels.iter().map(Sentinel::named).collect();
            let agreed = named[0].filter(|port| named.iter().all(|other| *other == Some(*port)));
            let found = agreed.filter(|port| replication_of(*port).contains("role:master"));
            if let Some(at) =
                found.and_then(|port| self.servers.iter().position(|server| server.port() == port))
            {
                return at;
            }
            assert!(
                begun.elapsed() < AGREE_MAX,
                "no primary: sentinels name {named:?}; {}",
                self.roles()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What each server says about itself.
    fn roles(&self) -> String {
        let role = |server: &Server| {
            let said = replication_of(server.port());
            let lines: Vec<&str> = said
                .lines()
                .filter(|line| line.starts_with("role") || line.starts_with("master_"))
                .collect();
            format!("{}: {}", server.port(), lines.join(" "))
        };
        self.servers.iter().map(role).collect::<Vec<String>>().join("; ")
    }

    /// A replica takes over from the primary, which agrees.
    #[track_caller]
    pub fn hand_over(&self) {
        let before = self.primary();
        let port = self.sentinels[0].port;
        eventually("a failover to begin", || {
            ask_port::<redis::Value>(port, &["SENTINEL", "FAILOVER", MASTER]).is_ok()
        });
        eventually("another primary", || self.primary() != before);
    }

    /// Freezes a replica, and has the primary give it up: what is written from now on only the primary has. (A replica that is
    /// frozen alone loses nothing: its socket holds what was sent.)
    #[track_caller]
    pub fn cut_replication(&self, replica: usize) {
        let primary = self.servers[self.primary()].port();
        self.servers[replica].freeze();
        eventually("the primary to be alone", || {
            let _ = ask_port::<redis::Value>(primary, &["CLIENT", "KILL", "TYPE", "replica"]);
            replication_of(primary).contains("connected_slaves:0")
        });
    }

    /// Waits until every server but the primary is a replica that is in sync.
    #[track_caller]
    pub fn in_sync(&self) {
        eventually("replicas to be in sync", || {
            let primary = self.primary();
            let others = self.servers.iter().enumerate().filter(|(at, _)| *at != primary);
            others.into_iter().all(|(_, server)| is_in_sync(server.port()))
        });
    }

    /// Ends a sentinel.
    pub fn kill_sentinel(&mut self, at: usize) {
        drop(self.sentinels.remove(at));
    }
}

impl Sentinel {
    fn start(kind: Kind, of: &str) -> Sentinel {
        let dir = tempfile::Builder::new().prefix("artel-test-").tempdir().expect("a temp dir");
        let (port, file) = (free_port(), dir.path().join("sentinel.conf"));
        let text = format!(
            "bind 127.0.0.1\nport {port}\ndir {}\nsentinel monitor {MASTER} 127.0.0.1 {of} 2\n\
             sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {MASTER} 2000\nsentinel parallel-syncs {MASTER} 5\n",
            dir.path().display()
        );
        std::fs::write(&file, text).expect("written");
        let log = std::fs::File::create(dir.path().join("sentinel.log")).expect("a file");
        let child = Command::new(kind.program().expect("a server"))
            .arg(&file)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .expect("a sentinel");
        let sentinel = Sentinel { child, port, _dir: dir };
        eventually("a sentinel to answer", || ask_port::<String>(port, &["PING"]).is_ok());
        sentinel
    }

    /// The port of the primary, by its word.
    fn named(&self) -> Option<u16> {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
        let at: Vec<String> = ask_port(self.port, &words).ok()?;
        at.get(1)?.parse().ok()
    }
}
