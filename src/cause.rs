//! [`Cause`]: why a message failed.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a message failed.
///
/// ```
/// use artel::Cause;
///
/// assert_eq!("timeout".parse(), Ok(Cause::Timeout));
/// assert_eq!(Cause::Kind.to_string(), "kind");
/// ```
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Cause {
    /// The handler returned a failure, or panicked.
    Handler,
    /// Too many workers died while they held it.
    Attempts,
    /// It could not be read.
    Decode,
    /// The handler ran too long.
    Timeout,
    /// Several workers could not read it over their links.
    Unread,
    /// There is no handler for its kind.
    Kind,
    /// Its handler asked for a retry once more than allowed.
    Retries,
    /// It expired before its next run started.
    Expired,
}

impl Cause {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Cause::Handler => "handler",
            Cause::Attempts => "attempts",
            Cause::Decode => "decode",
            Cause::Timeout => "timeout",
            Cause::Unread => "unread",
            Cause::Kind => "kind",
            Cause::Retries => "retries",
            Cause::Expired => "expired",
        }
    }
}

impl FromStr for Cause {
    type Err = String;

    fn from_str(text: &str) -> Result<Cause, String> {
        use Cause::*;
        let all = [Handler, Attempts, Decode, Timeout, Unread, Kind, Retries, Expired];
        let found = all.into_iter().find(|cause| cause.as_str() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|cause| cause.as_str()).collect();
            format!("must be one of {}", names.join(", "))
        })
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
