//! [`Address`]: where Redis is, and how both sides prove who they are.
//!
//! **Invariant:** nothing that shows an address (errors, logs, `Debug`) shows a password or a key.

use std::fmt;
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::client::Client;
use crate::Error;
use crate::error::BadAddress;

/// Where Redis is: `redis://user:password@host:port/db`, `rediss://…` for TLS, or `unix:/path`.
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
}

impl Address {
    /// The address as text.
    pub fn new(url: impl Into<String>) -> Address {
        Address { url: url.into(), ca: None, identity: None }
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

    /// Reads the address. It does not connect yet.
    pub(super) fn client(&self) -> Result<Client, Error> {
        let info = self.info()?;
        let wants_tls = self.ca.is_some() || self.identity.is_some();
        match info.addr() {
            ConnectionAddr::TcpTls { .. } => Ok(Client::new(info, Some(self.tls()?))),
            _ if wants_tls => Err(bad(BadAddress::NotTls)),
            _ => Ok(Client::new(info, None)),
        }
    }

    fn info(&self) -> Result<ConnectionInfo, Error> {
        if self.url.ends_with("#insecure") {
            return Err(bad(BadAddress::Insecure));
        }
        if self.url.contains('#') {
            return Err(bad(BadAddress::Hash));
        }
        // `?db=1` names the database of a socket. For a host the client would ignore it.
        let socket = ["unix:", "redis+unix:", "valkey+unix:"];
        if self.url.contains('?') && !socket.iter().any(|scheme| self.url.starts_with(scheme)) {
            return Err(bad(BadAddress::QuestionMark));
        }
        let info = self.url.as_str().into_connection_info();
        let info = info.map_err(|_| bad(BadAddress::Invalid))?;
        let settings = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
        Ok(info.set_redis_settings(settings))
    }

    /// The database it names.
    pub(super) fn database(&self) -> Result<i64, Error> {
        Ok(self.info()?.redis_settings().db())
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
        let Ok(info) = self.info() else { return f.pad("an unreadable address") };
        match info.addr() {
            ConnectionAddr::Unix(path) => f.pad(&format!("unix:{}", path.display())),
            addr @ ConnectionAddr::TcpTls { .. } => f.pad(&format!("rediss://{addr}")),
            addr => f.pad(&format!("redis://{addr}")),
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
        ] {
            let address = Address::new(url);
            assert!(!format!("{address} {address:?}").contains("hunter2"), "{address:?}");
        }
        assert_eq!(Address::new("rediss://:x@h:1/3").to_string(), "rediss://h:1");
        assert_eq!(Address::new("unix:///tmp/a.sock").to_string(), "unix:/tmp/a.sock");
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
