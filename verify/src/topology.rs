//! [`Servers`]: servers that replace one another, each behind a proxy of its own, and those that decide who is the primary.
//!
//! **Invariant:** whatever is asked of them here has ended, or can be asked whether it has: nothing is assumed from what was
//! asked before.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use artel::Durability;
use artel_rig::{Fault, Nodes, PrivateServer, Proxy, ask_port, is_in_sync, replication_of};
use redis::{RedisResult, Value};
use serde::Serialize;

use crate::member::FLEET;
use crate::options::Trouble;

/// What the sentinels call the primary.
const MASTER: &str = "main";
const SENTINELS: usize = 3;
/// How long a primary is silent before it is called down, ms.
const DOWN_AFTER_MS: &str = "1500";
/// How long everything may take to get ready, and to become whole again.
pub(crate) const READY_MAX: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(50);

/// How many servers hold the fleet, and who decides which of them is the primary.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// One server.
    #[default]
    Single,
    /// A primary with two replicas, and three sentinels.
    Sentinel,
    /// A cluster of three primaries, each with a replica.
    Cluster,
}

impl Topology {
    /// All of them.
    pub const ALL: [Topology; 3] = [Topology::Single, Topology::Sentinel, Topology::Cluster];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Topology::Single => "single",
            Topology::Sentinel => "sentinel",
            Topology::Cluster => "cluster",
        }
    }

    /// In words, behind the name of a server.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Topology::Single => "",
            Topology::Sentinel => " with 2 replicas and 3 sentinels",
            Topology::Cluster => " cluster of 3 primaries with a replica each",
        }
    }

    /// The primaries, and the replicas of each.
    fn size(self) -> (usize, usize) {
        match self {
            Topology::Single => (1, 0),
            Topology::Sentinel => (1, 2),
            Topology::Cluster => (3, 1),
        }
    }

    /// What the processes ask for if nothing else is said: nothing that they are told may be lost.
    pub fn durability(self) -> Durability {
        match self {
            Topology::Single => Durability::Local,
            Topology::Sentinel | Topology::Cluster => Durability::All,
        }
    }

    /// The replicas of each primary.
    pub fn replicas(self) -> usize {
        self.size().1
    }
}

/// A sentinel.
struct Sentinel {
    child: Option<Child>,
    port: u16,
    program: std::path::PathBuf,
    file: std::path::PathBuf,
}

impl Sentinel {
    fn launch(&mut self) -> Result<(), Trouble> {
        let child = Command::new(&self.program)
            .arg(&self.file)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(
                std::fs::File::options()
                    .create(true)
                    .append(true)
                    .open(self.file.with_extension("log"))?,
            )
            .stderr(Stdio::null())
            .spawn()?;
        self.child = Some(child);
        Ok(())
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The port of the primary, by its word.
    fn named(&self) -> Option<u16> {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
        let at: Vec<String> = ask_port(self.port, &words).ok()?;
        at.get(1)?.parse().ok()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.end();
    }
}

/// The servers of a topology.
pub(crate) struct Servers {
    topology: Topology,
    servers: Vec<PrivateServer>,
    proxies: Vec<Proxy>,
    sentinels: Vec<Sentinel>,
    nodes: Nodes,
    slot: u16,
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), Trouble> {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > READY_MAX {
            return Err(Trouble::Server(format!("{what}: not within {} s", READY_MAX.as_secs())));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

impl Servers {
    /// Starts them, and waits until somebody would replace a primary that dies.
    pub(crate) fn start(
        topology: Topology,
        program: &Path,
        dir: &Path,
    ) -> Result<Servers, Trouble> {
        let (primaries, replicas) = topology.size();
        let (mut servers, mut proxies) = (Vec::<PrivateServer>::new(), Vec::<Proxy>::new());
        for number in 0..primaries * (1 + replicas) {
            let dir = dir.join(format!("server-{number}"));
            std::fs::create_dir_all(&dir)?;
            let proxy = Proxy::start(0)?;
            let (announced, bus) = (proxy.port().to_string(), free_bus()?.to_string());
            let first = proxies.first().map_or(0, Proxy::port).to_string();
            let mut args =
                vec!["--appendonly", "yes", "--appendfsync", "no", "--pidfile", "server.pid"];
            args.extend(["--repl-diskless-sync-delay", "0"]);
            match topology {
                Topology::Cluster => args.extend([
                    "--cluster-enabled",
                    "yes",
                    "--cluster-port",
                    &bus,
                    "--cluster-announce-port",
                    &announced,
                    "--cluster-node-timeout",
                    DOWN_AFTER_MS,
                    "--cluster-allow-replica-migration",
                    "no",
                ]),
                Topology::Sentinel | Topology::Single => {
                    args.extend(["--replica-announce-ip", "127.0.0.1"]);
                    args.extend(["--replica-announce-port", &announced]);
                    if number > 0 {
                        args.extend(["--replicaof", "127.0.0.1", &first]);
                    }
                }
            }
            let server = PrivateServer::start_with(program, &dir, &args, None, true)?;
            proxy.retarget(server.port());
            servers.push(server);
            proxies.push(proxy);
        }
        let ports = servers.iter().map(PrivateServer::port).collect();
        let (sentinels, nodes) = (Vec::new(), Nodes { ports });
        let mut all = Servers { topology, servers, proxies, sentinels, nodes, slot: 0 };
        match topology {
            Topology::Cluster => all.form_cluster(primaries, replicas)?,
            Topology::Sentinel | Topology::Single => all.start_sentinels(program, dir)?,
        }
        until("everything to be whole", || all.is_whole())?;
        Ok(all)
    }

    fn form_cluster(&mut self, primaries: usize, replicas: usize) -> Result<(), Trouble> {
        self.nodes.introduce(primaries)?;
        until("all nodes to know each other", || self.nodes.know_each_other())?;
        self.nodes.follow(primaries, replicas)?;
        let slot = self.nodes.slot(&format!("{{{FLEET}}}"));
        self.slot = slot.ok_or_else(|| Trouble::Server("no node answers".to_owned()))?;
        Ok(())
    }

    fn start_sentinels(&mut self, program: &Path, dir: &Path) -> Result<(), Trouble> {
        let first = self.proxies[0].port();
        let servers = &self.servers;
        until("replicas to be in sync", || {
            servers[1..].iter().all(|server| is_in_sync(server.port()))
        })?;
        for number in 0..SENTINELS {
            let dir = dir.join(format!("sentinel-{number}"));
            std::fs::create_dir_all(&dir)?;
            let (port, file) = (free_bus()?, dir.join("sentinel.conf"));
            let text = format!(
                "bind 127.0.0.1\nport {port}\ndir {}\npidfile {}/server.pid\nsentinel monitor {MASTER} 127.0.0.1 \
                 {first} 2\nsentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\nsentinel failover-timeout \
                 {MASTER} 2000\nsentinel parallel-syncs {MASTER} 5\n",
                dir.display(),
                dir.display()
            );
            std::fs::write(&file, text)?;
            let mut sentinel = Sentinel { child: None, port, program: program.to_owned(), file };
            sentinel.launch()?;
            self.sentinels.push(sentinel);
        }
        until("sentinels to know each other", || {
            self.sentinels.iter().all(|sentinel| {
                let known: Vec<String> =
                    ask_port(sentinel.port, &["SENTINEL", "MASTER", MASTER]).unwrap_or_default();
                let says = |name: &str, count: usize| {
                    known.windows(2).any(|pair| pair == [name.to_owned(), count.to_string()])
                };
                says("num-other-sentinels", SENTINELS - 1)
                    && says("num-slaves", self.servers.len() - 1)
            })
        })
    }

    /// The address of the fleet's primary, wherever it is.
    pub(crate) fn url(&self) -> String {
        let hosts = |ports: &mut dyn Iterator<Item = u16>| {
            ports.map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",")
        };
        match self.topology {
            Topology::Cluster => {
                format!("redis-cluster://{}", hosts(&mut self.proxies.iter().map(Proxy::port)))
            }
            Topology::Sentinel | Topology::Single => {
                let ports = &mut self.sentinels.iter().map(|sentinel| sentinel.port);
                format!("redis-sentinel://{}?master={MASTER}", hosts(ports))
            }
        }
    }

    /// The ports of the servers themselves.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.nodes.ports.clone()
    }

    fn role(&self, at: usize) -> String {
        replication_of(self.nodes.ports[at])
    }

    /// The server that is the primary of the fleet, if most sentinels agree on it. One that was at a failover while the next
    /// one happened goes on naming a server that is dead.
    pub(crate) fn primary(&self) -> Option<usize> {
        if self.topology == Topology::Cluster {
            return self.nodes.owner(self.slot);
        }
        let living = self.sentinels.iter().filter(|sentinel| sentinel.child.is_some());
        let named: Vec<u16> = living.filter_map(Sentinel::named).collect();
        let votes = |at: &usize| {
            let port = self.proxies[*at].port();
            named.iter().filter(|named| **named == port).count()
        };
        (0..self.servers.len())
            .find(|at| votes(at) > SENTINELS / 2 && self.role(*at).contains("role:master"))
    }

    /// The replicas of this primary.
    fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let announced = format!("master_port:{}", self.proxies[primary].port());
        let follows = |at: &usize| self.role(*at).lines().any(|line| line == announced);
        (0..self.servers.len()).filter(|at| *at != primary).filter(follows).collect()
    }

    /// Is there a primary, with all of its replicas in sync?
    pub(crate) fn is_whole(&self) -> bool {
        let Some(primary) = self.primary() else { return false };
        let online = self.role(primary).matches("state=online").count();
        let works = self.topology != Topology::Cluster || self.nodes.are_whole();
        works && online == self.topology.replicas()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self, at: usize) {
        self.servers[at].kill();
    }

    /// Starts a server again that was replaced, or makes one that can be reached again a replica.
    pub(crate) fn rejoin(&mut self, at: usize) -> Result<(), Trouble> {
        if self.servers[at].pid().is_none() {
            let torn = self.servers[at].restart();
            torn.map_err(|error| Trouble::Server(error.to_string()))?;
        }
        self.proxies[at].set(Fault::Pass);
        if self.topology == Topology::Sentinel
            && let Some(primary) = self.primary().filter(|primary| *primary != at)
        {
            let port = self.proxies[primary].port().to_string();
            let _ = ask_port::<Value>(self.nodes.ports[at], &["REPLICAOF", "127.0.0.1", &port]);
        }
        Ok(())
    }

    /// Begins a failover that the primary agrees to.
    pub(crate) fn hand_over(&self) -> bool {
        let Some(primary) = self.primary() else { return false };
        match self.topology {
            Topology::Cluster => self
                .replicas_of(primary)
                .first()
                .is_some_and(|replica| self.nodes.hand_over(*replica).is_ok()),
            Topology::Sentinel | Topology::Single => {
                let words = ["SENTINEL", "FAILOVER", MASTER];
                ask_port::<Value>(self.sentinels[0].port, &words).is_ok()
            }
        }
    }

    /// What passes to and from this server.
    pub(crate) fn network(&self, at: usize, fault: Fault) {
        self.proxies[at].set(fault);
    }

    /// Freezes this replica, and has the primary give it up. (A replica that is frozen alone loses nothing: its socket holds
    /// what was sent.)
    fn cut_replication(&self, primary: usize, replica: usize) {
        self.servers[replica].freeze();
        let _ =
            ask_port::<Value>(self.nodes.ports[primary], &["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Cuts one replica of the fleet's primary off, or all of them. Returns the primary and those that were cut off.
    pub(crate) fn cut_replicas(&self, all: bool) -> Option<(usize, Vec<usize>)> {
        let primary = self.primary()?;
        let mut replicas = self.replicas_of(primary);
        replicas.truncate(if all { usize::MAX } else { 1 });
        replicas.iter().for_each(|replica| self.cut_replication(primary, *replica));
        (!replicas.is_empty()).then_some((primary, replicas))
    }

    /// Nobody is frozen any more.
    pub(crate) fn thaw(&self) {
        self.servers.iter().for_each(PrivateServer::thaw);
    }

    pub(crate) fn end_sentinel(&mut self, number: usize) {
        let number = number % self.sentinels.len().max(1);
        self.sentinels[number].end();
    }

    /// Starts the sentinels that were ended.
    pub(crate) fn start_all_sentinels(&mut self) -> Result<(), Trouble> {
        let ended = self.sentinels.iter_mut().filter(|sentinel| sentinel.child.is_none());
        ended.into_iter().try_for_each(Sentinel::launch)
    }

    /// The primary of the fleet's slot, and another one.
    fn both_primaries(&self) -> Option<(usize, usize)> {
        let owner = self.primary()?;
        let other = (0..self.servers.len())
            .find(|at| *at != owner && self.role(*at).contains("role:master"))?;
        Some((owner, other))
    }

    /// Ends all subscriptions to channels of the fleet, unasked.
    pub(crate) fn flip(&self) -> bool {
        self.primary().is_some_and(|owner| self.nodes.flip(self.slot, owner).is_ok())
    }

    /// Moves the slot to another primary, at once if the server can do that.
    pub(crate) fn move_slot(&self, at_once: bool) -> RedisResult<bool> {
        let Some((from, to)) = self.both_primaries() else { return Ok(false) };
        if at_once && self.nodes.move_at_once(self.slot, from, to)? {
            return Ok(true);
        }
        self.nodes.open_migration(self.slot, from, to)?;
        self.nodes.end_migration(self.slot, from, to)?;
        Ok(true)
    }

    /// Begins to move the slot. Returns from where and to where.
    pub(crate) fn open_slot(&self) -> Option<(usize, usize)> {
        let (from, to) = self.both_primaries()?;
        self.nodes.open_migration(self.slot, from, to).ok()?;
        Some((from, to))
    }

    /// Ends what [`open_slot`](Self::open_slot) began.
    pub(crate) fn close_slot(&self, from: usize, to: usize) -> bool {
        self.nodes.end_migration(self.slot, from, to).is_ok()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // A frozen server is killed, too, but its children are not.
        self.thaw();
    }
}

/// A port for the bus of a node, or for a sentinel.
fn free_bus() -> Result<u16, Trouble> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
