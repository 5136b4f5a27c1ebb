//! [`Client`]: finds the primary of one address, and connects to it.
//!
//! **Invariant:** no connection is handed out before its probe found the primary that owns the slot.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{AsyncConnectionConfig, RedisConnectionInfo, Value};
use rustls::ClientConfig;

use super::check::info_field;
use super::dialer::{Connection, Dialer, extract};
use super::place::{Place, Spot, Way, read_moved};
use super::server_list::ServerList;
use super::{Keys, StoreError};
use crate::mutant::{Rule, disabled};

/// How long the nodes of a cluster are waited for.
const NODES_TIMEOUT: Duration = Duration::from_secs(2);

/// How many times a server may name another one until the primary is found.
const HOPS_MAX: u32 = 3;

/// A parsed address, and what is known about the place of the primary.
#[derive(Clone)]
pub(crate) struct Client {
    dialer: Dialer,
    settings: RedisConnectionInfo,
    place: Arc<Place>,
    /// A key of the fleet: its slot decides where the primary is.
    key: Arc<str>,
    servers: Option<Arc<ServerList>>,
}

/// A connection to the primary.
pub(super) struct Found {
    pub(super) connection: Connection,
    pub(super) spot: Spot,
    /// Which server process it is.
    pub(super) server: String,
    /// Which history it has: one that was a replica in between has another one than before.
    pub(super) history: String,
    /// It is a node of a cluster.
    pub(super) is_cluster: bool,
}

/// What the first answers of a server say about it.
enum Probed {
    Primary {
        server: String,
        history: String,
        is_cluster: bool,
    },
    Replica,
    /// It is no node of a cluster, and should be one.
    Alone,
    /// Another server has the slot.
    Moved(Spot),
}

impl Client {
    pub(super) fn new(
        way: Way,
        settings: RedisConnectionInfo,
        tls: Option<ClientConfig>,
    ) -> Client {
        Client {
            dialer: Dialer::new(tls),
            settings,
            place: Arc::new(Place::new(way)),
            key: Arc::default(),
            servers: None,
        }
    }

    /// The same, for the slot of these keys.
    pub(super) fn of(mut self, keys: &Keys) -> Client {
        self.key = keys.config().into();
        self.servers = Some(Arc::new(ServerList::new(keys)));
        self
    }

    pub(super) fn servers(&self) -> Option<&ServerList> {
        self.servers.as_deref()
    }

    pub(super) fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Connects to the primary, within this time: no other connection is handed out.
    pub(super) async fn connect(
        &self,
        config: AsyncConnectionConfig,
        timeout: Duration,
    ) -> Result<Found, Missed> {
        let (mut seed, mut spot) = (None, None);
        let found = tokio::time::timeout(timeout, self.look(config, &mut seed, &mut spot)).await;
        let error = match found {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => error,
            Err(_) => {
                StoreError::from(redis::RedisError::from(io::Error::from(io::ErrorKind::TimedOut)))
            }
        };
        // Without this the address would be blamed for what another server does.
        let error = match (error, &seed, &spot) {
            (
                StoreError::Broken(reason) | StoreError::Unconnected(reason),
                Some(seed),
                Some(spot),
            ) if seed != spot => {
                let reason = format!("{reason}, at {spot}, which {seed} says is the primary");
                StoreError::Unconnected(reason)
            }
            (error, ..) => error,
        };
        seed.iter().for_each(|seed| self.place.missed(seed));
        spot.iter().for_each(|spot| self.place.lost(spot));
        Err(Missed { error, spot })
    }

    async fn look(
        &self,
        config: AsyncConnectionConfig,
        seed: &mut Option<Spot>,
        at: &mut Option<Spot>,
    ) -> Result<Found, StoreError> {
        let (mut spot, mut version) = self.place.find(&self.dialer).await?;
        *seed = Some(spot.clone());
        for _ in 0..=HOPS_MAX {
            *at = Some(spot.clone());
            let mut connection = self.dialer.dial(&spot, &self.settings, config.clone()).await?;
            let probed = match disabled(Rule::ProbeBeforeUse) {
                true => Probed::Primary {
                    server: String::new(),
                    history: String::new(),
                    is_cluster: false,
                },
                false => self.probe(&mut connection, &spot).await?,
            };
            match probed {
                Probed::Primary { server, history, is_cluster } => {
                    if !self.place.found(&spot, &server, version) {
                        (spot, version) = self.place.find(&self.dialer).await?;
                        continue;
                    }
                    return Ok(Found { connection, spot, server, history, is_cluster });
                }
                Probed::Moved(to) => {
                    self.place.named();
                    spot = to;
                }
                Probed::Alone => {
                    let reason = format!("what answers at {spot} is no node of a cluster");
                    return Err(StoreError::Unconnected(reason));
                }
                Probed::Replica => {
                    let reason = match self.place.has_sentinels() {
                        true => format!("{spot} is a replica still: no primary yet"),
                        false => format!("what answers at {spot} is a replica"),
                    };
                    return Err(StoreError::Unconnected(reason));
                }
            }
        }
        Err(StoreError::Unconnected(format!(
            "the servers name each other in a circle, last {spot}"
        )))
    }

    /// Is this the primary that owns the slot? Commands without a key are answered by any server, so this is asked first.
    async fn probe(&self, connection: &mut Connection, spot: &Spot) -> Result<Probed, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("INFO").arg("server").cmd("INFO").arg("replication");
        let answers = connection.send_all(&pipe, 2).await?;
        let mut info = String::new();
        for answer in answers {
            match extract(answer) {
                Ok(Value::BulkString(bytes)) => info += &String::from_utf8_lossy(&bytes),
                Ok(Value::VerbatimString { text, .. }) => info += &text,
                Ok(_) => {}
                // Who may not ask is told by the first call what is missing.
                Err(error) if error.code() == Some("NOPERM") => {}
                Err(error) => return Err(error.into()),
            }
            info.push('\n');
        }
        let field = |name| info_field(&info, name).map(str::trim);
        let server = field("run_id").unwrap_or_default().to_owned();
        let history = field("master_replid").unwrap_or_default().to_owned();
        let mode = field("redis_mode").or(field("server_mode"));
        let is_cluster = mode == Some("cluster");
        let is_alone = mode.is_some() && !is_cluster;
        if is_alone && self.place.is_of_cluster() {
            return Ok(Probed::Alone);
        }
        // A replica of a cluster says below who has the slot.
        if !is_cluster && field("role").is_some_and(|role| role != "master") {
            return Ok(Probed::Replica);
        }
        if is_alone || self.key.is_empty() {
            return Ok(Probed::Primary { server, history, is_cluster });
        }
        let mut exists = redis::cmd("EXISTS");
        exists.arg(&*self.key);
        match connection.send(&exists).await {
            Ok(_) => Ok(Probed::Primary { server, history, is_cluster }),
            Err(error) => match (error.code(), error.detail()) {
                (Some("MOVED"), Some(detail)) => read_moved(detail, spot)
                    .map(Probed::Moved)
                    .ok_or_else(|| StoreError::odd("an answer MOVED without a place")),
                // It owns the slot, which is being moved.
                (Some("ASK" | "TRYAGAIN" | "NOPERM"), _) => {
                    Ok(Probed::Primary { server, history, is_cluster })
                }
                _ => Err(error.into()),
            },
        }
    }

    /// Asks for the other nodes of the cluster now and then, if that is allowed. Nobody waits for the answer.
    pub(super) fn learn_nodes(&self, found: &Found) {
        if !found.is_cluster || !self.place.wants_nodes() {
            return;
        }
        let (mut connection, from) = (found.connection.clone(), found.spot.clone());
        let place = self.place.clone();
        tokio::spawn(async move {
            let mut slots = redis::cmd("CLUSTER");
            slots.arg("SLOTS");
            let asked = tokio::time::timeout(NODES_TIMEOUT, connection.send(&slots)).await;
            if let Ok(Ok(Value::Array(ranges))) = asked {
                place.learn(nodes_of(&ranges, &from));
            }
        });
    }
}

/// Why there is no connection to the primary, and where it was looked for last.
pub(super) struct Missed {
    pub(super) error: StoreError,
    pub(super) spot: Option<Spot>,
}

/// The nodes in an answer to `CLUSTER SLOTS`: ranges of slots, each with its nodes, each with host and port.
fn nodes_of(ranges: &[Value], from: &Spot) -> Vec<Spot> {
    let mut nodes = Vec::new();
    for range in ranges {
        let Value::Array(parts) = range else { continue };
        for node in parts.iter().skip(2) {
            let Value::Array(node) = node else { continue };
            let host = match node.first() {
                Some(Value::BulkString(host)) => String::from_utf8_lossy(host).into_owned(),
                _ => String::new(),
            };
            let Some(Value::Int(port)) = node.get(1) else { continue };
            if let Some(spot) = Spot::read(&format!("{host}:{port}"), from)
                && !nodes.contains(&spot)
            {
                nodes.push(spot);
            }
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use artel_rig::{Kind, Server};

    use super::*;
    use crate::store::{Address, Keys};

    /// It would answer what has no key, and what it answers may be old.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_replica_is_not_handed_out() {
        let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
        let primary = Server::start(kind);
        let port = primary.port().to_string();
        let replica = Server::with(kind, &["--replicaof", "127.0.0.1", &port]);
        let connected = async |server: &Server| {
            let client = Address::new(server.url()).client().expect("an address");
            let client = client.of(&Keys::new("f", 0));
            client.connect(AsyncConnectionConfig::new(), NODES_TIMEOUT).await.is_ok()
        };
        assert!(connected(&primary).await && !connected(&replica).await);
    }
}
