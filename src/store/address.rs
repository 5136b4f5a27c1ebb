//! [`Address`]: where Redis is, and how both sides prove who they are.
//!
//! **Invariant:** nothing that shows an address (errors, logs, `Debug`) shows a password or a key.

use std::fmt;
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::client::Client;
use super::place::{Spot, Way};
use super::sentinels::Sentinels;
use crate::Error;
use crate::error::BadAddress;

/// Where Redis is.
///
/// | address | means |
/// |---|---|
/// | `redis://user:password@host:port/db`, `unix:/path` | one server, or any node of a cluster |
/// | `redis-cluster://user:password@host:port,host:port` | several nodes of a cluster, in case one of them is away |
/// | `redis-sentinel://user:password@host:port,host:port/db?master=NAME` | the primary that these sentinels name |
///
/// With `rediss` instead of `redis` all connections use TLS. User and password are those of the servers; those of the
/// sentinels are given by [`with_sentinel_login`](Address::with_sentinel_login). A connected process follows the primary:
/// through a failover, and to another node of a cluster.
///
/// A plain string is accepted as an address, too. Certificates are given as PEM:
///
/// ```no_run
/// # let ca_pem: Vec<u8> = Vec::new();
/// let address = artel::Address::new("rediss://redis.example:6380").with_ca(ca_pem);
/// let fleet = artel::Fleet::open(address, "orders")?;
/// # Ok::<(), artel::Error>(())
/// ```
#[derive(Clone)]
pub struct Address {
    url: String,
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
    /// User, and password, of the sentinels.
    sentinel_login: Option<(Option<String>, String)>,
}

/// The parts of an address.
struct Parts {
    way: Way,
    settings: RedisConnectionInfo,
    is_tls: bool,
}

const SENTINEL_PORT: u16 = 26379;

impl Address {
    /// The address as text.
    pub fn new(url: impl Into<String>) -> Address {
        Address { url: url.into(), ca: None, identity: None, sentinel_login: None }
    }

    /// Trusts the certificates this authority (PEM) signed, instead of the system's authorities.
    pub fn with_ca(mut self, ca: impl Into<Vec<u8>>) -> Address {
        self.ca = Some(ca.into());
        self
    }

    /// Shows this certificate (PEM), with its key (PEM), to a server that asks for one.
    pub fn with_identity(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Address {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Logs in at the sentinels with this password, and as this user if they have users. Without it we do not log in
    /// there.
    pub fn with_sentinel_login(
        mut self,
        user: Option<impl Into<String>>,
        password: impl Into<String>,
    ) -> Address {
        self.sentinel_login = Some((user.map(Into::into), password.into()));
        self
    }

    /// Reads the address. It does not connect yet.
    pub(super) fn client(&self) -> Result<Client, Error> {
        let Parts { way, settings, is_tls } = self.parts()?;
        if self.sentinel_login.is_some() && !matches!(way, Way::Sentinels(_)) {
            return Err(bad(BadAddress::NoSentinels));
        }
        let wants_tls = self.ca.is_some() || self.identity.is_some();
        match is_tls {
            true => Ok(Client::new(way, settings, Some(self.tls()?))),
            false if wants_tls => Err(bad(BadAddress::NotTls)),
            false => Ok(Client::new(way, settings, None)),
        }
    }

    fn parts(&self) -> Result<Parts, Error> {
        if self.url.ends_with("#insecure") {
            return Err(bad(BadAddress::Insecure));
        }
        if self.url.contains('#') {
            return Err(bad(BadAddress::Hash));
        }
        let Some((kind, rest)) = self.several() else {
            let info = self.info()?;
            let (spot, is_tls) = spot_of(info.addr())?;
            let settings = info.redis_settings().clone();
            return Ok(Parts { way: Way::One(spot), settings, is_tls });
        };
        let (scheme, is_tls) =
            match self.url.starts_with("rediss") || self.url.starts_with("valkeys") {
                true => ("rediss", true),
                false => ("redis", false),
            };
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, q)| (rest, Some(q)));
        let (rest, database) = rest.split_once('/').map_or((rest, ""), |(rest, db)| (rest, db));
        let (login, hosts) = rest.rsplit_once('@').map_or(("", rest), |(login, h)| (login, h));
        let hosts: Vec<&str> = hosts.split(',').collect();
        // The client reads one address at a time.
        let read = |host: &str| {
            let at = if login.is_empty() { "" } else { "@" };
            let slash = if database.is_empty() { "" } else { "/" };
            read(&format!("{scheme}://{login}{at}{host}{slash}{database}"))
        };
        let mut spots = Vec::new();
        for host in &hosts {
            let (mut spot, _) = spot_of(read(host)?.addr())?;
            if let (Several::Sentinels, Spot::Tcp { port, .. }) = (&kind, &mut spot)
                && !has_port(host)
            {
                *port = SENTINEL_PORT;
            }
            spots.push(spot);
        }
        let settings = read(hosts[0])?.redis_settings().clone();
        let way = match (kind, query) {
            (Several::Nodes, None) => Way::Nodes(spots),
            (Several::Nodes, Some(_)) => return Err(bad(BadAddress::QuestionMark)),
            (Several::Sentinels, query) => {
                let master = query.and_then(|query| query.strip_prefix("master="));
                let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
                let master = master.filter(|name| !name.is_empty() && name.chars().all(is_name));
                let master = master.ok_or(bad(BadAddress::NoMaster))?;
                Way::Sentinels(Sentinels::new(master, spots, self.sentinel_settings()))
            }
        };
        Ok(Parts { way, settings, is_tls })
    }

    fn sentinel_settings(&self) -> RedisConnectionInfo {
        let settings = RedisConnectionInfo::default().set_protocol(redis::ProtocolVersion::RESP3);
        match &self.sentinel_login {
            None => settings,
            Some((None, password)) => settings.set_password(password),
            Some((Some(user), password)) => settings.set_username(user).set_password(password),
        }
    }

    /// Does it name several servers? Then what is behind the scheme.
    fn several(&self) -> Option<(Several, &str)> {
        let (scheme, rest) = self.url.split_once("://")?;
        match scheme {
            "redis-cluster" | "rediss-cluster" | "valkey-cluster" | "valkeys-cluster" => {
                Some((Several::Nodes, rest))
            }
            "redis-sentinel" | "rediss-sentinel" | "valkey-sentinel" | "valkeys-sentinel" => {
                Some((Several::Sentinels, rest))
            }
            _ => None,
        }
    }

    fn info(&self) -> Result<ConnectionInfo, Error> {
        // `?db=1` names the database of a socket. For a host the client would ignore it.
        let socket = ["unix:", "redis+unix:", "valkey+unix:"];
        if self.url.contains('?') && !socket.iter().any(|scheme| self.url.starts_with(scheme)) {
            return Err(bad(BadAddress::QuestionMark));
        }
        read(&self.url)
    }

    /// The database it names.
    pub(super) fn database(&self) -> Result<i64, Error> {
        Ok(self.parts()?.settings.db())
    }

    /// The trusted authorities, and our own certificate.
    fn tls(&self) -> Result<ClientConfig, Error> {
        // If the program has installed a cryptography provider, that one is used.
        let chosen = CryptoProvider::get_default().cloned();
        let provider = chosen.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()));
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().map_err(unusable)?;
        let config = config.with_root_certificates(self.roots()?);
        let Some((certificate, key)) = &self.identity else {
            return Ok(config.with_no_client_auth());
        };
        let chain = certificates(certificate).map_err(unusable)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(unusable)?;
        config.with_client_auth_cert(chain, key).map_err(unusable)
    }

    fn roots(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        let Some(ca) = &self.ca else {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            return match (roots.is_empty(), found.errors.into_iter().next()) {
                (true, Some(error)) => Err(unusable(error)),
                _ => Ok(roots),
            };
        };
        let no_one = |problem: String| Error::Config { field: "tls_ca", problem };
        for certificate in certificates(ca).map_err(|error| no_one(unreadable(error)))? {
            roots.add(certificate).map_err(|error| no_one(unreadable(error)))?;
        }
        // Without a certificate no server would be trusted: report that now.
        match roots.is_empty() {
            true => Err(no_one("holds no certificate in PEM form".to_owned())),
            false => Ok(roots),
        }
    }
}

enum Several {
    Nodes,
    Sentinels,
}

fn read(url: &str) -> Result<ConnectionInfo, Error> {
    let info = url.into_connection_info().map_err(|_| bad(BadAddress::Invalid))?;
    let settings = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(settings))
}

fn spot_of(addr: &ConnectionAddr) -> Result<(Spot, bool), Error> {
    match addr {
        ConnectionAddr::Tcp(host, port) => Ok((Spot::tcp(host.as_str(), *port), false)),
        ConnectionAddr::TcpTls { host, port, .. } => Ok((Spot::tcp(host.as_str(), *port), true)),
        ConnectionAddr::Unix(path) => Ok((Spot::Unix(path.clone()), false)),
        _ => Err(bad(BadAddress::Invalid)),
    }
}

/// Behind an address of IPv6 in brackets, or behind a name.
fn has_port(host: &str) -> bool {
    host.rsplit_once(']').map_or(host, |(_, rest)| rest).contains(':')
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(pem).collect()
}

fn unusable(error: impl fmt::Display) -> Error {
    bad(BadAddress::Certificates(error.to_string()))
}

fn unreadable(error: impl fmt::Display) -> String {
    format!("cannot be read: {error}")
}

fn bad(why: BadAddress) -> Error {
    Error::Address { why }
}

impl From<&str> for Address {
    fn from(url: &str) -> Address {
        Address::new(url)
    }
}

impl From<String> for Address {
    fn from(url: String) -> Address {
        Address::new(url)
    }
}

impl From<&String> for Address {
    fn from(url: &String) -> Address {
        Address::new(url.as_str())
    }
}

impl From<&Address> for Address {
    fn from(address: &Address) -> Address {
        address.clone()
    }
}

/// Shows the address without its secrets.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(Parts { way, is_tls, .. }) = self.parts() else {
            return f.pad("an unreadable address");
        };
        let scheme = if is_tls { "rediss" } else { "redis" };
        let joined = |spots: &[Spot]| {
            spots.iter().map(ToString::to_string).collect::<Vec<String>>().join(",")
        };
        match &way {
            Way::One(Spot::Unix(path)) => f.pad(&format!("unix:{}", path.display())),
            Way::One(spot) => f.pad(&format!("{scheme}://{spot}")),
            Way::Nodes(spots) => f.pad(&format!("{scheme}-cluster://{}", joined(spots))),
            Way::Sentinels(sentinels) => {
                let (spots, master) = (joined(&sentinels.known()), sentinels.master());
                f.pad(&format!("{scheme}-sentinel://{spots}?master={master}"))
            }
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for url in [
            "redis://me:hunter2@h:1/2",
            "rediss://:hunter2@h:1",
            "hunter2",
            "redis://me:hunter2#x@h",
            "redis-cluster://me:hunter2#x@h",
            "redis-sentinel://me:hunter2#x@h?master=m",
        ] {
            let address = Address::new(url);
            assert!(!format!("{address} {address:?}").contains("hunter2"), "{address:?}");
        }
        assert_eq!(Address::new("rediss://:x@h:1/3").to_string(), "rediss://h:1");
        assert_eq!(Address::new("unix:///tmp/a.sock").to_string(), "unix:/tmp/a.sock");
    }

    #[test]
    fn an_address_may_name_several_servers() {
        for (url, shown) in [
            ("redis-cluster://me:hunter2@a:1,b,[::1]:3", "redis-cluster://a:1,b:6379,[::1]:3"),
            ("rediss-cluster://a:1,b:2", "rediss-cluster://a:1,b:2"),
            (
                "redis-sentinel://:hunter2@a,b:2,[::1]/3?master=main",
                "redis-sentinel://a:26379,b:2,[::1]:26379?master=main",
            ),
            ("rediss-sentinel://a?master=my.main-1", "rediss-sentinel://a:26379?master=my.main-1"),
        ] {
            let address = Address::new(url);
            assert_eq!((address.to_string().as_str(), address.client().is_ok()), (shown, true));
        }
        let sentinel = Address::new("redis-sentinel://a/3?master=m");
        assert_eq!(sentinel.database().expect("an address"), 3);
        for (url, words) in [
            ("redis-sentinel://a", "?master="),
            ("redis-sentinel://a?master=", "?master="),
            ("redis-sentinel://a?master=m&x=1", "?master="),
            ("redis-sentinel://?master=m", "is not a Redis address"),
            ("redis-cluster://a:1,", "is not a Redis address"),
            ("redis-cluster://a:1,b:x", "is not a Redis address"),
            ("redis-cluster://a:1?db=1", "a database is written /1"),
        ] {
            let error = Address::new(url).client().map(|_| ()).expect_err("refused").to_string();
            assert!(error.contains(words), "{url}: {error}");
        }
        let login = Address::new("redis://h").with_sentinel_login(None::<String>, "x");
        let error = login.client().map(|_| ()).expect_err("refused").to_string();
        assert!(error.contains("no sentinels"), "{error}");
    }

    #[test]
    fn the_database_of_an_address_is_the_one_that_is_used() {
        for (url, database) in
            [("redis://h:1", 0), ("redis://h:1/3", 3), ("unix:///tmp/a.sock?db=2", 2)]
        {
            assert_eq!(Address::new(url).database().expect("an address"), database, "{url}");
        }
    }

    #[test]
    fn certificates_are_checked_and_belong_to_tls() {
        for (address, words) in [
            (Address::new("rediss://h:1#insecure"), "switch the check"),
            (Address::new("redis://h:1?db=1"), "a database is written /1"),
            (Address::new("valkey://h:1?db=1"), "a database is written /1"),
            (Address::new("redis://h:1").with_ca("x"), "must begin with rediss://"),
            (Address::new("rediss://h:1").with_identity("x", "y"), "cannot be used"),
        ] {
            let error = address.client().map(|_| ()).expect_err("refused").to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
