//! [`Cluster`] and [`Sentinels`]: several private servers that replace one another.
//!
//! **Invariant:** it is ready when it is returned: every node knows every other one, replicas are in sync, and somebody would
//! replace a primary that dies.

use std::fmt::Write;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue, RedisResult};
use tempfile::TempDir;

use crate::{Kind, Server, eventually, free_port, wait_for};

/// How long a node of a cluster may be silent before it is replaced.
const NODE_TIMEOUT_MS: u64 = 2000;
/// How long a primary may be silent before a sentinel calls it down. A replica whose link was down ten times as long is not
/// promoted.
const DOWN_AFTER_MS: u64 = 3000;
/// How long the sentinels may take to agree.
const AGREE_MAX: Duration = Duration::from_secs(120);
/// What the sentinels call the primary.
pub const MASTER: &str = "main";

/// One of them at a time: they are many processes, which take each other for dead where a machine is busy for too long.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_ask<T: FromRedisValue>(port: u16, words: &[&str]) -> RedisResult<T> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
    connection.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(*word);
    }
    command.query(&mut connection)
}

#[track_caller]
fn ask<T: FromRedisValue>(port: u16, words: &[&str]) -> T {
    try_ask(port, words).unwrap_or_else(|error| panic!("{words:?} at {port}: {error}"))
}

fn info(port: u16) -> String {
    try_ask(port, &["INFO", "replication"]).unwrap_or_default()
}

fn in_sync(port: u16) -> bool {
    info(port).lines().any(|line| line == "master_link_status:up")
}

/// A cluster: primaries that share the slots evenly, each with replicas.
#[derive(Debug)]
pub struct Cluster {
    /// The primaries first, then the replicas of the first one, and so on.
    pub nodes: Vec<Server>,
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
        let cluster = Cluster { nodes, _alone: alone };
        let ports = cluster.ports();
        let slots = 16384;
        for (at, port) in ports[..primaries].iter().enumerate() {
            let (from, to) = (slots * at / primaries, slots * (at + 1) / primaries - 1);
            let () = ask(*port, &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
            let () = ask(*port, &["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()]);
        }
        for node in &cluster.nodes[1..] {
            let bus: Vec<String> = ask(node.port(), &["CONFIG", "GET", "cluster-port"]);
            let (port, bus) = (node.port().to_string(), bus[1].clone());
            let () = ask(ports[0], &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        eventually("all nodes to know each other", || {
            ports.iter().all(|port| {
                let known: String = ask(*port, &["CLUSTER", "NODES"]);
                known.lines().count() == ports.len() && !known.contains("handshake")
            })
        });
        for (at, port) in ports[primaries..].iter().enumerate() {
            let of = cluster.id(at / replicas);
            let () = ask(*port, &["CLUSTER", "REPLICATE", &of]);
        }
        eventually("replicas to be in sync, and the cluster to be whole", || {
            ports[primaries..].iter().all(|port| in_sync(*port)) && cluster.is_whole()
        });
        cluster
    }

    fn is_whole(&self) -> bool {
        self.ports().into_iter().all(|port| {
            let info: String = try_ask(port, &["CLUSTER", "INFO"]).unwrap_or_default();
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        })
    }

    /// The ports of all nodes.
    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(Server::port).collect()
    }

    /// The name of a node among the others.
    pub fn id(&self, node: usize) -> String {
        ask(self.nodes[node].port(), &["CLUSTER", "MYID"])
    }

    /// An address with all nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        let living = self.owners().next().expect("a primary").1;
        ask(self.nodes[living].port(), &["CLUSTER", "KEYSLOT", key])
    }

    /// The slots that each living primary owns, by its own word: `(slot, slot)` and the node.
    fn owners(&self) -> impl Iterator<Item = ((u16, u16), usize)> {
        let mut all = Vec::new();
        for (at, port) in self.ports().into_iter().enumerate() {
            let Ok(nodes) = try_ask::<String>(port, &["CLUSTER", "NODES"]) else { continue };
            let Some(own) = nodes.lines().find(|line| line.contains("myself,master")) else {
                continue;
            };
            for range in own.split(' ').skip(8).filter(|range| !range.starts_with('[')) {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                if let (Ok(from), Ok(to)) = (from.parse(), to.parse()) {
                    all.push(((from, to), at));
                }
            }
        }
        all.into_iter()
    }

    /// The node that owns this slot, as soon as one does.
    #[track_caller]
    pub fn owner(&self, slot: u16) -> usize {
        wait_for("an owner of the slot", || {
            let mut owners = self.owners().filter(|((from, to), _)| (*from..=*to).contains(&slot));
            owners.next().map(|(_, node)| node)
        })
    }

    /// A connection to the owner of this slot.
    #[track_caller]
    pub fn connect(&self, slot: u16) -> Connection {
        self.nodes[self.owner(slot)].connect()
    }

    /// Begins to move a slot, key by key: from now on its keys are on either side.
    pub fn open_migration(&self, slot: u16, to: usize) {
        let (from, text) = (self.owner(slot), slot.to_string());
        let (source, target) = (self.nodes[from].port(), self.nodes[to].port());
        let () = ask(target, &["CLUSTER", "SETSLOT", &text, "IMPORTING", &self.id(from)]);
        let () = ask(source, &["CLUSTER", "SETSLOT", &text, "MIGRATING", &self.id(to)]);
    }

    /// Moves the keys that are left, and ends what [`open_migration`](Self::open_migration) began.
    pub fn end_migration(&self, slot: u16, to: usize) {
        let (from, text) = (self.owner(slot), slot.to_string());
        let (source, target) = (self.nodes[from].port(), self.nodes[to].port());
        let port = target.to_string();
        loop {
            let keys: Vec<String> = ask(source, &["CLUSTER", "GETKEYSINSLOT", &text, "100"]);
            if keys.is_empty() {
                break;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "20000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            let () = ask(source, &words);
        }
        let id = self.id(to);
        let () = ask(target, &["CLUSTER", "SETSLOT", &text, "NODE", &id]);
        let () = ask(source, &["CLUSTER", "SETSLOT", &text, "NODE", &id]);
        for port in self.ports() {
            // The others learn it by gossip anyway; this is what tools do.
            let _ = try_ask::<redis::Value>(port, &["CLUSTER", "SETSLOT", &text, "NODE", &id]);
        }
    }

    /// Moves a slot in one step, if the server can do that.
    pub fn move_at_once(&self, slot: u16, to: usize) -> bool {
        let (from, text) = (self.owner(slot), slot.to_string());
        let words = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &text, &text, "NODE", &self.id(to)];
        if try_ask::<redis::Value>(self.nodes[from].port(), &words).is_err() {
            return false;
        }
        eventually("the slot to be there", || self.owner(slot) == to);
        true
    }

    /// Does the owner of this slot say that the cluster works?
    pub fn works(&self, slot: u16) -> bool {
        let port = self.nodes[self.owner(slot)].port();
        let info: String = try_ask(port, &["CLUSTER", "INFO"]).unwrap_or_default();
        info.contains("cluster_state:ok")
    }

    /// Is this node a replica that has what its primary has?
    pub fn is_in_sync(&self, node: usize) -> bool {
        in_sync(self.nodes[node].port())
    }

    /// Gives a slot up and takes it again in one write: the server ends all subscriptions to channels of that slot.
    pub fn flip(&self, slot: u16) {
        let text = slot.to_string();
        let mut pipe = redis::pipe();
        pipe.cmd("CLUSTER").arg("DELSLOTS").arg(&text).ignore();
        pipe.cmd("CLUSTER").arg("ADDSLOTS").arg(&text).ignore();
        let () = pipe.query(&mut self.connect(slot)).expect("flipped");
    }

    /// A replica takes over from its primary, which agrees.
    pub fn hand_over(&self, to: usize) {
        let () = ask(self.nodes[to].port(), &["CLUSTER", "FAILOVER"]);
        eventually("it to be the primary", || info(self.nodes[to].port()).contains("role:master"));
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
            servers[1..].iter().all(|server| in_sync(server.port()))
        });
        let sentinels = (0..3).map(|_| Sentinel::start(kind, &port)).collect();
        let all = Sentinels { servers, sentinels, _alone: alone };
        let (others, replicas) = (all.sentinels.len() - 1, all.servers.len() - 1);
        eventually("sentinels to know each other and the replicas", || {
            all.sentinels.iter().all(|sentinel| {
                let known: Vec<String> =
                    try_ask(sentinel.port, &["SENTINEL", "MASTER", MASTER]).unwrap_or_default();
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

    /// The server that is the primary, as soon as the sentinels agree and it says so itself. On a busy machine they may need
    /// several attempts, each of which they allow only after a while.
    #[track_caller]
    pub fn primary(&self) -> usize {
        let begun = Instant::now();
        loop {
            let named: Vec<Option<u16>> = self.sentinels.iter().map(Sentinel::named).collect();
            let agreed = named[0].filter(|port| named.iter().all(|other| *other == Some(*port)));
            let found = agreed.filter(|port| info(*port).contains("role:master"));
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
            let said = info(server.port());
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
            try_ask::<redis::Value>(port, &["SENTINEL", "FAILOVER", MASTER]).is_ok()
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
            let _ = try_ask::<redis::Value>(primary, &["CLIENT", "KILL", "TYPE", "replica"]);
            info(primary).contains("connected_slaves:0")
        });
    }

    /// Waits until every server but the primary is a replica that is in sync.
    #[track_caller]
    pub fn in_sync(&self) {
        eventually("replicas to be in sync", || {
            let primary = self.primary();
            let others = self.servers.iter().enumerate().filter(|(at, _)| *at != primary);
            others.into_iter().all(|(_, server)| in_sync(server.port()))
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
        eventually("a sentinel to answer", || try_ask::<String>(port, &["PING"]).is_ok());
        sentinel
    }

    /// The port of the primary, by its word.
    fn named(&self) -> Option<u16> {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
        let at: Vec<String> = try_ask(self.port, &words).ok()?;
        at.get(1)?.parse().ok()
    }
}
