//! [`Nodes`]: calls to the nodes of a cluster, by their ports on this machine.
//!
//! **Invariant:** it asks the nodes themselves and trusts no memory: which of them owns a slot may change at any moment.

use std::time::Duration;

use redis::{FromRedisValue, RedisResult, Value};

/// All slots of a cluster.
const SLOTS: usize = 16_384;

/// Asks the server at this port.
pub fn ask_port<T: FromRedisValue>(port: u16, words: &[&str]) -> RedisResult<T> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
    connection.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(*word);
    }
    command.query(&mut connection)
}

/// What the server at this port says of its replication; empty if it says nothing.
pub fn replication_of(port: u16) -> String {
    ask_port(port, &["INFO", "replication"]).unwrap_or_default()
}

/// Is the server at this port a replica that has what its primary has?
pub fn is_in_sync(port: u16) -> bool {
    replication_of(port).lines().any(|line| line == "master_link_status:up")
}

/// The nodes of a cluster, by their ports.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// The primaries first, then the replicas of the first one, and so on.
    pub ports: Vec<u16>,
}

impl Nodes {
    /// Gives the first nodes all slots, in equal parts, and introduces all nodes to each other.
    pub fn introduce(&self, primaries: usize) -> RedisResult<()> {
        for (at, port) in self.ports[..primaries].iter().enumerate() {
            let (from, to) = (SLOTS * at / primaries, SLOTS * (at + 1) / primaries - 1);
            let () = ask_port(*port, &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()])?;
            let range = [from, to].map(|slot| slot.to_string());
            let () = ask_port(*port, &["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]])?;
        }
        for port in &self.ports[1..] {
            let bus: Vec<String> = ask_port(*port, &["CONFIG", "GET", "cluster-port"])?;
            let meet = ["CLUSTER", "MEET", "127.0.0.1", &port.to_string(), &bus[1]];
            let () = ask_port(self.ports[0], &meet)?;
        }
        Ok(())
    }

    /// Does every node know all others?
    pub fn know_each_other(&self) -> bool {
        self.ports.iter().all(|port| {
            let known: String = ask_port(*port, &["CLUSTER", "NODES"]).unwrap_or_default();
            known.lines().count() == self.ports.len() && !known.contains("handshake")
        })
    }

    /// Makes each of the other nodes a replica of its primary.
    pub fn follow(&self, primaries: usize, replicas: usize) -> RedisResult<()> {
        for (at, port) in self.ports[primaries..].iter().enumerate() {
            let () = ask_port(*port, &["CLUSTER", "REPLICATE", &self.id(at / replicas)?])?;
        }
        Ok(())
    }

    /// Does every node say that the cluster works, and is every replica in sync?
    pub fn are_whole(&self) -> bool {
        self.ports.iter().all(|port| {
            let replication = replication_of(*port);
            let synced = replication.contains("role:master")
                || replication.contains("master_link_status:up");
            synced && self.works(*port)
        })
    }

    /// Does the node at this port say that the cluster works?
    pub fn works(&self, port: u16) -> bool {
        let info: String = ask_port(port, &["CLUSTER", "INFO"]).unwrap_or_default();
        info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
    }

    /// The name of a node among the others.
    pub fn id(&self, node: usize) -> RedisResult<String> {
        ask_port(self.ports[node], &["CLUSTER", "MYID"])
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> Option<u16> {
        let words = ["CLUSTER", "KEYSLOT", key];
        self.ports.iter().find_map(|port| ask_port(*port, &words).ok())
    }

    /// The node that owns this slot, by its own word.
    pub fn owner(&self, slot: u16) -> Option<usize> {
        self.ports.iter().position(|port| {
            let Ok(nodes) = ask_port::<String>(*port, &["CLUSTER", "NODES"]) else { return false };
            let own = nodes.lines().find(|line| line.contains("myself,master"));
            let ranges = own.into_iter().flat_map(|own| own.split(' ').skip(8));
            ranges.filter(|range| !range.starts_with('[')).any(|range| {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                let bounds = from.parse::<u16>().ok().zip(to.parse::<u16>().ok());
                bounds.is_some_and(|(from, to)| (from..=to).contains(&slot))
            })
        })
    }

    /// Begins to move a slot, key by key: from now on its keys are on either side.
    pub fn open_migration(&self, slot: u16, from: usize, to: usize) -> RedisResult<()> {
        let (slot, ids) = (slot.to_string(), [self.id(from)?, self.id(to)?]);
        let into = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]];
        let () = ask_port(self.ports[to], &into)?;
        ask_port(self.ports[from], &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]])
    }

    /// Moves the keys that are left, and ends what [`open_migration`](Self::open_migration) began.
    pub fn end_migration(&self, slot: u16, from: usize, to: usize) -> RedisResult<()> {
        let (slot, port) = (slot.to_string(), self.ports[to].to_string());
        loop {
            let keys = ["CLUSTER", "GETKEYSINSLOT", &slot, "100"];
            let keys: Vec<String> = ask_port(self.ports[from], &keys)?;
            if keys.is_empty() {
                break;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "20000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            let () = ask_port(self.ports[from], &words)?;
        }
        let node = ["CLUSTER", "SETSLOT", &slot, "NODE", &self.id(to)?];
        let () = ask_port(self.ports[to], &node)?;
        let () = ask_port(self.ports[from], &node)?;
        for port in &self.ports {
            // The others learn it by gossip anyway; this is what tools do.
            let _ = ask_port::<Value>(*port, &node);
        }
        Ok(())
    }

    /// Begins to move a slot in one step. False if the server cannot do that.
    pub fn move_at_once(&self, slot: u16, from: usize, to: usize) -> RedisResult<bool> {
        let (slot, id) = (slot.to_string(), self.id(to)?);
        let words = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &slot, &slot, "NODE", &id];
        Ok(ask_port::<Value>(self.ports[from], &words).is_ok())
    }

    /// Has the owner give a slot up and take it again in one write: it ends all subscriptions to channels of that slot.
    pub fn flip(&self, slot: u16, owner: usize) -> RedisResult<()> {
        let (slot, mut pipe) = (slot.to_string(), redis::pipe());
        pipe.cmd("CLUSTER").arg("DELSLOTS").arg(&slot).ignore();
        pipe.cmd("CLUSTER").arg("ADDSLOTS").arg(&slot).ignore();
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.ports[owner]))?;
        pipe.query(&mut client.get_connection_with_timeout(Duration::from_secs(5))?)
    }

    /// Has a replica begin to take over from its primary, which agrees.
    pub fn hand_over(&self, to: usize) -> RedisResult<()> {
        ask_port(self.ports[to], &["CLUSTER", "FAILOVER"])
    }
}
