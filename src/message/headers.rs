//! The headers of a message, and the flag that says what they hold.
//!
//! **Invariant:** the flag of an envelope tells a script without reading the headers whether the end of the message
//! means something to others. Fields of later versions are ignored here, and scripts leave them as they are.

use std::io::Write;

use serde::{Deserialize, Serialize};

use crate::Error;

/// The most bytes of one header.
const HEADER_BYTES_MAX: usize = 200;
/// The most retries a message can ask for.
pub(crate) const RETRIES_MAX: u32 = 1000;

/// What stands before the payload, beside the payload's own length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HeaderFlag {
    /// No headers.
    Bare,
    /// Headers, and no duties.
    Headers,
    /// Headers with duties at its end: its outcome must be named, even if it is simply done.
    Duties,
}

impl HeaderFlag {
    /// Reads it from an envelope; `None` if it is not one of ours. `k` and `s` are messages with a key.
    pub(super) fn read(flag: u8) -> Option<HeaderFlag> {
        match flag {
            b'-' => Some(HeaderFlag::Bare),
            b'h' => Some(HeaderFlag::Headers),
            b'j' | b'k' | b's' => Some(HeaderFlag::Duties),
            _ => None,
        }
    }

    pub(super) fn letter(self) -> char {
        match self {
            HeaderFlag::Bare => '-',
            HeaderFlag::Headers => 'h',
            HeaderFlag::Duties => 'j',
        }
    }
}

/// The headers of a message.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Headers {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) traceparent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<String>,
    /// Only one message of this name is open at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unique: Option<String>,
    /// How often it may be retried, in place of its kind's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retries: Option<u32>,
    /// When it is no longer worth a run, Redis ms. In a new message: how many ms after it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires: Option<u64>,
}

impl Headers {
    pub(super) fn flag(&self) -> HeaderFlag {
        if self.unique.is_some() { HeaderFlag::Duties } else { HeaderFlag::Headers }
    }

    /// Refuses headers that are not allowed.
    pub(super) fn check(&self) -> Result<(), Error> {
        let texts =
            [("kind", &self.kind), ("traceparent", &self.traceparent), ("unique", &self.unique)];
        for (field, value) in texts {
            let odd = |value: &String| {
                value.len() > HEADER_BYTES_MAX || value.chars().any(char::is_control)
            };
            if value.as_ref().is_some_and(odd) {
                let problem =
                    format!("must have at most {HEADER_BYTES_MAX} bytes and no control characters");
                return Err(Error::Config { field, problem });
            }
        }
        if self.retries.is_some_and(|retries| retries > RETRIES_MAX) {
            let problem = format!("must be at most {RETRIES_MAX}");
            return Err(Error::Config { field: "retries", problem });
        }
        Ok(())
    }

    /// Writes them for a message that was made at this time, with their length before them.
    pub(super) fn write(&self, buffer: &mut Vec<u8>, made_ms: u64) {
        let json = match self.expires {
            None => serde_json::to_vec(self),
            Some(ms) => {
                let expires = Some(made_ms.saturating_add(ms));
                serde_json::to_vec(&Headers { expires, ..self.clone() })
            }
        };
        let json = json.unwrap_or_else(|_| b"{}".to_vec());
        // Writing to a vector cannot fail.
        let _ = write!(buffer, "{}:", json.len());
        buffer.extend_from_slice(&json);
    }
}

/// The headers at the beginning of a body, and where the payload begins.
pub(super) fn split_headers(body: &[u8]) -> Option<(Option<Box<Headers>>, usize)> {
    let colon = body.iter().position(|&byte| byte == b':')?;
    let length: usize = std::str::from_utf8(&body[..colon]).ok()?.parse().ok()?;
    let (json, payload) = body[colon + 1..].split_at_checked(length)?;
    Some((serde_json::from_slice(json).ok(), body.len() - payload.len()))
}
