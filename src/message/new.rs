//! [`NewMessage`]: a message that is not added yet, and when it is due.
//!
//! **Invariant:** it is checked before it is sent, and what does not fit is refused with the name of the field.

use std::fmt;
use std::io::Write;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::VERSION;
use super::headers::{HeaderFlag, Headers};
use crate::Error;
use crate::json_time::since_1970_ms;
use crate::lane::Lane;

/// The longest time a message may wait for.
pub(crate) const AHEAD_MAX: Duration = Duration::from_secs(366 * 86_400);

/// When a new message is due. Redis's clock decides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Due {
    /// This long after Redis got it.
    After(Duration),
    At(SystemTime),
}

/// A message that is not added yet.
///
/// ```
/// # use artel::NewMessage;
/// let text = NewMessage::from("hello");
/// let json = NewMessage::json(&serde_json::json!({"order": 7}))?.with_kind("order");
/// assert_eq!(json.payload(), br#"{"order":7}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NewMessage {
    payload: Vec<u8>,
    headers: Option<Box<Headers>>,
    /// `None` if it is due at once.
    due: Option<Box<Due>>,
}

impl NewMessage {
    fn new(payload: Vec<u8>) -> NewMessage {
        NewMessage { payload, headers: None, due: None }
    }

    /// A message whose payload is this value as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<NewMessage, serde_json::Error> {
        serde_json::to_vec(value).map(NewMessage::new)
    }

    /// Sets its kind. A member can have a handler for each kind.
    pub fn with_kind(mut self, kind: impl Into<String>) -> NewMessage {
        self.headers.get_or_insert_default().kind = Some(kind.into());
        self
    }

    /// Sets the W3C trace context of its maker.
    pub fn with_traceparent(mut self, traceparent: impl Into<String>) -> NewMessage {
        self.headers.get_or_insert_default().traceparent = Some(traceparent.into());
        self
    }

    /// Has it carry this trace context, unless it carries one already.
    pub(crate) fn carry(&mut self, traceparent: &str) {
        let headers = self.headers.get_or_insert_default();
        headers.traceparent.get_or_insert_with(|| traceparent.into());
    }

    /// Has it wait for this long before it may start, by Redis's clock. At most 366 days.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use artel::NewMessage;
    /// let reminder = NewMessage::from("pay invoice 7").after(Duration::from_secs(86_400));
    /// assert!(reminder.waits());
    /// ```
    pub fn after(mut self, time: Duration) -> NewMessage {
        self.due = Some(Box::new(Due::After(time)));
        self
    }

    /// Has it wait until this time before it may start, by Redis's clock. A time in the past is now; at most
    /// 366 days ahead.
    pub fn at(mut self, time: SystemTime) -> NewMessage {
        self.due = Some(Box::new(Due::At(time)));
        self
    }

    /// No run starts later than this after it was sent, not even a retry: then it fails with the cause `expired`.
    pub fn expires_in(mut self, time: Duration) -> NewMessage {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.headers.get_or_insert_default().expires = Some(ms);
        self
    }

    /// How often it may be retried, in place of the number of its kind.
    pub fn retries(mut self, most: u32) -> NewMessage {
        self.headers.get_or_insert_default().retries = Some(most);
        self
    }

    /// Only one message of this name is open at a time.
    pub(crate) fn unique(mut self, name: String) -> NewMessage {
        self.headers.get_or_insert_default().unique = Some(name);
        self
    }

    /// Does it wait for a time?
    pub fn waits(&self) -> bool {
        self.due.is_some()
    }

    /// Its payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Must it be added one by one, by the script that knows times and duties?
    pub(crate) fn is_posted(&self) -> bool {
        self.waits() || self.flag() == HeaderFlag::Duties
    }

    /// When it is due, as scripts read it.
    pub(crate) fn due(&self) -> String {
        match self.due.as_deref() {
            None => String::new(),
            Some(Due::After(time)) => format!("+{}", time.as_millis()),
            Some(Due::At(time)) => since_1970_ms(*time).to_string(),
        }
    }

    /// Refuses a payload that is too large, and headers that are not allowed.
    pub(crate) fn check(&self, payload_bytes_max: usize) -> Result<(), Error> {
        if self.payload.len() > payload_bytes_max {
            return Err(Error::PayloadTooLarge {
                bytes: self.payload.len(),
                max: payload_bytes_max,
            });
        }
        // A little more than Redis allows: its clock decides about the last second.
        let ahead = match self.due.as_deref() {
            None => Duration::ZERO,
            Some(Due::After(time)) => *time,
            Some(Due::At(time)) => time
                .duration_since(SystemTime::now())
                .unwrap_or_default()
                .saturating_sub(Duration::from_secs(60)),
        };
        if ahead > AHEAD_MAX {
            let problem = "must be at most 366 days ahead".to_owned();
            return Err(Error::Config { field: "due", problem });
        }
        if let (Some(Due::After(time)), Some(expires)) = (self.due.as_deref(), self.expires_after())
            && expires <= *time
        {
            let problem = format!("is {expires:?}, so it would be over before its time, {time:?}");
            return Err(Error::Config { field: "expires", problem });
        }
        self.headers.as_deref().map_or(Ok(()), Headers::check)
    }

    /// Writes its envelope into `buffer`, in place of the old content: one buffer serves a whole push.
    pub(crate) fn envelope(
        &self,
        buffer: &mut Vec<u8>,
        lane: Lane,
        id: impl fmt::Display,
        ms: u64,
    ) {
        buffer.clear();
        NewMessage::head(buffer, lane, self.flag(), id, ms);
        if self.has_headers() {
            self.write_headers(buffer, ms);
        }
        buffer.extend_from_slice(&self.payload);
    }

    /// Writes the head of an envelope or of a pack.
    pub(crate) fn head(
        buffer: &mut Vec<u8>,
        lane: Lane,
        flag: HeaderFlag,
        id: impl fmt::Display,
        ms: u64,
    ) {
        let flags = flag.letter();
        // Writing to a vector cannot fail.
        let _ = write!(buffer, "{}{}{flags}|{id}|1|{ms}|", VERSION as char, lane.letter());
    }

    pub(crate) fn has_headers(&self) -> bool {
        self.headers.is_some()
    }

    fn flag(&self) -> HeaderFlag {
        self.headers.as_deref().map_or(HeaderFlag::Bare, Headers::flag)
    }

    /// Writes its headers as they are for a message that was made at this time, with their length before them.
    pub(crate) fn write_headers(&self, buffer: &mut Vec<u8>, ms: u64) {
        match &self.headers {
            Some(headers) => headers.write(buffer, ms),
            None => buffer.extend_from_slice(b"2:{}"),
        }
    }

    pub(crate) fn kind(&self) -> Option<&str> {
        self.headers.as_deref()?.kind.as_deref()
    }

    pub(crate) fn retries_max(&self) -> Option<u32> {
        self.headers.as_deref()?.retries
    }

    /// After how long it expires.
    pub(crate) fn expires_after(&self) -> Option<Duration> {
        self.headers.as_deref()?.expires.map(Duration::from_millis)
    }

    /// Its payload and its headers.
    pub(super) fn into_parts(self) -> (Vec<u8>, Option<Box<Headers>>) {
        (self.payload, self.headers)
    }
}

impl From<Vec<u8>> for NewMessage {
    fn from(payload: Vec<u8>) -> NewMessage {
        NewMessage::new(payload)
    }
}

impl From<String> for NewMessage {
    fn from(text: String) -> NewMessage {
        NewMessage::new(text.into_bytes())
    }
}

impl From<&str> for NewMessage {
    fn from(text: &str) -> NewMessage {
        NewMessage::new(text.as_bytes().to_vec())
    }
}
