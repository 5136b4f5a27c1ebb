//! The reasons of errors, for programs that distinguish them.

use std::fmt;

/// Why an address cannot be used.
///
/// ```
/// use artel::{BadAddress, Error, Fleet};
///
/// let error = Fleet::open("redis://user:pass#word@host", "orders").unwrap_err();
/// assert!(matches!(error, Error::Address { why: BadAddress::Hash }));
/// assert_eq!(error.to_string(), "redis must not contain #; in a password it is written %23");
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum BadAddress {
    /// It is not an address of Redis.
    Invalid,
    /// It would switch the check of certificates off.
    Insecure,
    /// It contains `#`, which means something else in an address.
    Hash,
    /// It contains `?`, which does not name a database here.
    QuestionMark,
    /// Certificates are given, but it is not an address for TLS.
    NotTls,
    /// It is an address of sentinels, and does not say which primary is meant.
    NoMaster,
    /// A login for sentinels is given, but it is not an address of sentinels.
    NoSentinels,
    /// Its certificates cannot be used; the text says why.
    Certificates(String),
}

impl fmt::Display for BadAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadAddress::Invalid => "is not a Redis address such as redis://host:port/db",
            BadAddress::Insecure => "must not switch the check of certificates off (#insecure)",
            BadAddress::Hash => "must not contain #; in a password it is written %23",
            BadAddress::QuestionMark => {
                "must not contain ?; a database is written /1, in a password ? is %3F"
            }
            BadAddress::NotTls => "has certificates, so it must begin with rediss://",
            BadAddress::NoMaster => "must end with ?master=NAME, the name that the sentinels know",
            BadAddress::NoSentinels => "has a login for sentinels, but names no sentinels",
            BadAddress::Certificates(problem) => return write!(f, "cannot be used: {problem}"),
        })
    }
}

/// Why a Redis cannot keep the promise, or a key cannot be used.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let fleet = artel::Fleet::connect(url, "orders").await?;
/// use artel::{Error, Unfit};
///
/// # let set = |key: &str| redis::cmd("SET").arg(key).arg("x").exec(&mut server.connect());
/// # set("artel:{orders}:event:stock").expect("set");
/// // Somebody wrote a string to the key of this event.
/// let event = fleet.event("stock")?;
/// match event.is_set().await {
///     Err(Error::Unfit { why: Unfit::Occupied { key }, .. }) => assert!(key.ends_with("event:stock")),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Unfit {
    /// The server is too old.
    TooOld {
        /// Its version.
        version: String,
    },
    /// It may evict its data.
    Evicts {
        /// Its `maxmemory-policy`.
        policy: String,
    },
    /// A key of the fleet has another type.
    WrongType {
        /// The key.
        key: String,
        /// Its type.
        found: String,
        /// The type it should have.
        expected: &'static str,
    },
    /// The key of an event, a lock and so on holds something else.
    Occupied {
        /// The key.
        key: String,
    },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::TooOld { version } => write!(f, "version {version} is older than 7.0"),
            Unfit::Evicts { policy } => write!(
                f,
                "maxmemory-policy {policy} lets it drop messages, or that they were sent, silently; \
                 set noeviction"
            ),
            Unfit::WrongType { key, found, expected } => {
                write!(f, "key {key} holds a {found}, Artel needs a {expected}")
            }
            Unfit::Occupied { key } => write!(f, "key {key} holds something else"),
        }
    }
}

/// What Redis denies.
///
/// ```
/// # let server = artel_rig::Server::any();
/// # let url = server.url();
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{Denial, Error, Fleet};
///
/// # let url = url.replace("redis://", "redis://nobody:wrong@");
/// match Fleet::connect(url, "orders").await {
///     Err(Error::Denied { why, .. }) => assert_eq!(why, Denial::Access),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), artel::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Denial {
    /// The user may not touch the keys of this fleet.
    Keys,
    /// The sentinels want other credentials.
    Sentinel,
    /// Something else: the credentials are wrong, or the user lacks a permission.
    Access,
}

impl Denial {
    pub(crate) fn of(reason: &str) -> Denial {
        match reason {
            _ if reason.contains("keys") => Denial::Keys,
            _ if reason.starts_with("sentinel ") => Denial::Sentinel,
            _ => Denial::Access,
        }
    }
}

/// Why Redis cannot be reached.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use artel::{Error, Fleet, Unreached};
///
/// match Fleet::connect("redis://127.0.0.1:1", "orders").await {
///     Err(Error::Unreachable { why, .. }) => assert_eq!(why, Unreached::Network),
///     other => panic!("{other:?}"),
/// }
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Unreached {
    /// The certificate of the server is signed by an authority that is not trusted here.
    UnknownAuthority,
    /// The certificate of the server is for another name.
    OtherName,
    /// The certificate of the server has expired.
    Expired,
    /// The server asks for a certificate of ours.
    CertificateWanted,
    /// The server does not accept our certificate.
    CertificateRefused,
    /// The address says TLS, but the server does not speak it.
    NoTls,
    /// The address does not say TLS, but the server speaks it.
    OnlyTls,
    /// The server that answers is not Redis.
    NotRedis,
    /// TLS may be the reason.
    PerhapsTls,
    /// What answers is a replica, and it is not followed from there to its primary.
    Replica,
    /// The sentinels know no primary with this name.
    UnknownMaster,
    /// What answers is no node of a cluster, though the address says so.
    NoCluster,
    /// No sentinel answers.
    NoSentinel,
    /// The servers of a cluster name each other as the owner of the slot.
    Circle,
    /// There is no primary: nobody has the slot of this fleet, or nobody took over yet.
    NoPrimary,
    /// No server listens there, or the network does not let us through.
    Network,
}

impl Unreached {
    /// Finds the reason in the text of the network or the server.
    pub(crate) fn of(reason: &str) -> Unreached {
        const WORDS: [(&[&str], Unreached); 15] = [
            (&["unknownissuer", "unknown issuer"], Unreached::UnknownAuthority),
            (&["notvalidforname", "not valid for name"], Unreached::OtherName),
            (&["expired"], Unreached::Expired),
            (&["certificaterequired", "certificate required"], Unreached::CertificateWanted),
            (&["fatal alert"], Unreached::CertificateRefused),
            (&["is a replica"], Unreached::Replica),
            (&["is no node of a cluster"], Unreached::NoCluster),
            (&["sentinels know no primary"], Unreached::UnknownMaster),
            (&["sentinels answers"], Unreached::NoSentinel),
            (&["each other in a circle"], Unreached::Circle),
            (&["no primary: waiting", "primary changed"], Unreached::NoPrimary),
            (&["does not speak tls"], Unreached::NoTls),
            (&["answers there speaks tls"], Unreached::OnlyTls),
            (&["is not redis"], Unreached::NotRedis),
            (&["certificate", "tls", "reset by peer"], Unreached::PerhapsTls),
        ];
        let found = WORDS.iter().find(|(words, _)| words.iter().any(|word| reason.contains(word)));
        found.map_or(Unreached::Network, |(_, why)| *why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_network_says_has_a_reason() {
        for (text, why) in [
            ("invalid peer certificate: unknownissuer", Unreached::UnknownAuthority),
            ("received fatal alert: certificaterequired", Unreached::CertificateWanted),
            ("received fatal alert: badcertificate", Unreached::CertificateRefused),
            ("connection reset by peer", Unreached::PerhapsTls),
            ("connection refused", Unreached::Network),
        ] {
            assert_eq!(Unreached::of(text), why, "{text}");
        }
    }
}
