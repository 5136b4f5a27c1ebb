//! [`Cron`]: a periodic entry, as code declares it and as Redis keeps it.
//!
//! **Invariant:** equal declarations have equal texts, so a fleet of forty that declares its entries at its start writes them
//! once. What an operator paused stays paused when it is declared again.

use std::time::Duration;

use base64::Engine;
use serde::{Deserialize, Serialize};

use super::times::Times;
use crate::Error;
use crate::lane::Lane;
use crate::message::NewMessage;

/// The longest text of an entry in Redis.
pub(super) const BYTES_MAX: usize = 64 << 10;

/// What happens to times at which nobody was there to fire.
///
/// ```
/// use artel::{CatchUp, Cron};
///
/// let report = Cron::new("0 * * * *").catch_up(CatchUp::All);
/// # let _ = report;
/// ```
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CatchUp {
    /// The latest one is made up for.
    #[default]
    Once,
    /// None is made up for.
    Skip,
    /// Each is made up for, the oldest first, but only the latest 1,000.
    All,
}

impl CatchUp {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            CatchUp::Once => "once",
            CatchUp::Skip => "skip",
            CatchUp::All => "all",
        }
    }
}

impl std::str::FromStr for CatchUp {
    type Err = String;

    fn from_str(text: &str) -> Result<CatchUp, String> {
        let all = [CatchUp::Once, CatchUp::Skip, CatchUp::All];
        let found = all.into_iter().find(|one| one.name() == text);
        found.ok_or_else(|| "must be once, skip or all".to_owned())
    }
}

/// A message that is sent again and again, at certain times.
///
/// Times are five fields (minute, hour, day of month, month, day of week), `@hourly`, `@daily`, `@weekly`, `@monthly`, or
/// `every 90s`, counted since 1970. Where clocks go forward, a time that does not exist is the first instant after the
/// gap; where they go back, a time that exists twice is its first. Entries whose hour is `*` or a step of it go by elapsed
/// time.
///
/// ```
/// use artel::{Cron, NewMessage};
///
/// let nightly = Cron::new("0 2 * * *")
///     .tz("Europe/Berlin")
///     .no_overlap()
///     .message(NewMessage::from("all customers").with_kind("report"));
/// # let _ = nightly;
/// ```
#[derive(Clone, Debug)]
pub struct Cron {
    spec: String,
    tz: String,
    catch_up: CatchUp,
    overlap: bool,
    lane: Lane,
    message: NewMessage,
}

impl Cron {
    /// An entry that is due at these times, with an empty message.
    pub fn new(spec: impl Into<String>) -> Cron {
        Cron {
            spec: spec.into(),
            tz: UTC.to_owned(),
            catch_up: CatchUp::Once,
            overlap: true,
            lane: Lane::Normal,
            message: NewMessage::from(""),
        }
    }

    /// The time zone, by its IANA name (default UTC).
    pub fn tz(mut self, tz: impl Into<String>) -> Cron {
        self.tz = tz.into();
        self
    }

    /// What happens to times at which nobody was there to fire (default: the latest one is made up for).
    pub fn catch_up(mut self, catch_up: CatchUp) -> Cron {
        self.catch_up = catch_up;
        self
    }

    /// A time is skipped while the message of an earlier time is not over.
    pub fn no_overlap(mut self) -> Cron {
        self.overlap = false;
        self
    }

    /// The lane of its message (default `normal`).
    pub fn lane(mut self, lane: Lane) -> Cron {
        self.lane = lane;
        self
    }

    /// The message that is sent.
    pub fn message(mut self, message: impl Into<NewMessage>) -> Cron {
        self.message = message.into();
        self
    }

    /// Checks it. The error names what is wrong.
    pub(crate) fn check(&self, name: &str) -> Result<(), Error> {
        check_name(name)?;
        let bad = |field, problem: &str| Err(Error::Config { field, problem: problem.to_owned() });
        self.lane.check_open()?;
        self.message.check(BYTES_MAX)?;
        if self.message.waits() {
            return bad("cron", "its message cannot wait for a time of its own");
        }
        if let Err(why) = Times::parse(&self.spec, &self.tz) {
            return bad("cron", &why);
        }
        let bytes = self.stored("").text().len();
        if bytes > BYTES_MAX {
            return bad(
                "cron",
                &format!("has {bytes} bytes with its message, more than {BYTES_MAX}"),
            );
        }
        Ok(())
    }

    pub(super) fn stored(&self, by: &str) -> Stored {
        let (payload, payload_b64) = match std::str::from_utf8(self.message.payload()) {
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(base64::prelude::BASE64_STANDARD.encode(self.message.payload()))),
        };
        Stored {
            v: 1,
            spec: self.spec.clone(),
            tz: self.tz.clone(),
            catch_up: self.catch_up,
            overlap: self.overlap,
            lane: self.lane.name().to_owned(),
            kind: self.message.kind().map(str::to_owned),
            retries: self.message.retries_max(),
            expires_ms: self.message.expires_after().map(|time| time.as_millis() as u64),
            payload,
            payload_b64,
            by: by.to_owned(),
            paused: false,
        }
    }
}

const UTC: &str = "UTC";

/// Checks the name of an entry: it is part of ids and of shell commands.
pub(super) fn check_name(name: &str) -> Result<(), Error> {
    let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(known) {
        let problem = format!(
            "must have 1 to 64 lower-case letters, digits, `_` and `-`, and is {name:.80?}"
        );
        return Err(Error::Config { field: "entry", problem });
    }
    Ok(())
}

/// An entry as Redis keeps it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Stored {
    pub(super) v: u8,
    pub(super) spec: String,
    pub(super) tz: String,
    pub(super) catch_up: CatchUp,
    pub(super) overlap: bool,
    pub(super) lane: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) retries: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) payload: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) payload_b64: Option<String>,
    /// Who declared it.
    #[serde(default)]
    pub(super) by: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) paused: bool,
}

impl Stored {
    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what Redis has.
    pub(super) fn read(text: &str) -> Option<Stored> {
        serde_json::from_str(text).ok()
    }

    pub(super) fn times(&self) -> Result<Times, String> {
        Times::parse(&self.spec, &self.tz)
    }

    pub(super) fn lane(&self) -> Lane {
        self.lane.parse().unwrap_or(Lane::Normal)
    }

    /// The message that it sends.
    pub(super) fn message(&self) -> NewMessage {
        let payload = match (&self.payload, &self.payload_b64) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(base64)) => {
                base64::prelude::BASE64_STANDARD.decode(base64).unwrap_or_default()
            }
            (None, None) => Vec::new(),
        };
        let mut message = NewMessage::from(payload);
        if let Some(kind) = &self.kind {
            message = message.with_kind(kind.as_str());
        }
        if let Some(retries) = self.retries {
            message = message.retries(retries);
        }
        if let Some(ms) = self.expires_ms {
            message = message.expires_in(Duration::from_millis(ms));
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_gives_back_what_was_declared() {
        let message = NewMessage::from(b"\xff\x00".to_vec()).with_kind("report").retries(3);
        let cron =
            Cron::new("0 2 * * *").tz("Europe/Berlin").lane(Lane::Low).message(message.clone());
        cron.check("nightly").expect("a good one");
        let stored = Stored::read(&cron.stored("shop").text()).expect("readable");
        assert_eq!((stored.message(), stored.lane()), (message, Lane::Low));
        assert!(stored.times().is_ok() && stored.overlap && !stored.paused);
        assert_eq!(cron.stored("shop").text(), cron.stored("shop").text());
    }

    #[test]
    fn what_cannot_be_declared_is_refused_with_its_reason() {
        let problem = |cron: Cron| cron.check("nightly").expect_err("refused").to_string();
        assert!(
            problem(Cron::new("0 0 30 2 *")).contains("never"),
            "{}",
            problem(Cron::new("0 0 30 2 *"))
        );
        assert!(problem(Cron::new("@daily").tz("Mars/Olympus")).contains("Mars/Olympus"));
        let waits = NewMessage::from("x").after(Duration::from_secs(1));
        assert!(problem(Cron::new("@daily").message(waits)).contains("wait"));
        let large = NewMessage::from("x".repeat(BYTES_MAX - 10));
        assert!(problem(Cron::new("@daily").message(large)).contains("bytes"));
        assert!(problem(Cron::new("@daily").lane(Lane::Generated)).contains("generated"));
        for name in ["", "A", "a b", "ü", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name("nightly-2_eu").is_ok());
    }
}
