//! The error store: failed messages, kept until somebody takes them.
//!
//! **Invariant:** a record is deleted only after its bytes were written out by its taker. Two living
//! takers never share a record; when a taker dies, the page it was printing may be printed again by
//! its heir; nothing is ever lost.
//!
//! A taker moves everything stored to a *drain* of its own, prints page by page, and confirms each
//! page. A drain whose taker stopped refreshing it is inherited by the next one.

use std::time::Duration;

use base64::Engine;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::queue::Message;
use crate::store::{Call, Script, Store, StoreError, list, text};

static TAKE: Script = Script::new("take", include_str!("take.lua"));
static CONFIRM: Script = Script::new("confirm", include_str!("confirm.lua"));

/// Records per page.
const PAGE: usize = 100;
/// A drain that is not refreshed for this long may be inherited.
const DRAIN_LIFE: Duration = Duration::from_secs(5);

/// Why a message failed.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Cause {
    /// The handler said so, or panicked.
    Handler,
    /// Too many workers died while they held it.
    Attempts,
    /// It could not be read.
    Decode,
    /// The handler ran too long.
    Timeout,
}

impl Cause {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Cause::Handler => "handler",
            Cause::Attempts => "attempts",
            Cause::Decode => "decode",
            Cause::Timeout => "timeout",
        }
    }
}

/// A failed message as it is kept.
///
/// Serialized it is the documented record: `v`, `id`, `payload` (or `payload_b64` if it is not
/// UTF-8), `reason`, `cause`, `member`, `label`, `attempt`, `generated_ms`, `failed_ms`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ErrorRecord {
    /// The message's name.
    pub id: String,
    /// What it carried.
    pub payload: Vec<u8>,
    /// Why it failed, in words.
    pub reason: String,
    /// Why it failed.
    pub cause: Cause,
    /// The session that held it.
    pub member: String,
    /// That member's label.
    pub label: String,
    /// The attempt that failed.
    pub attempt: u32,
    /// When it was added, Redis time.
    pub generated_ms: u64,
    /// When it failed, Redis time.
    pub failed_ms: u64,
    /// Where it is stored.
    position: String,
}

impl Serialize for ErrorRecord {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (payload, payload_b64) = match std::str::from_utf8(&self.payload) {
            Ok(text) => (Some(text), None),
            Err(_) => (None, Some(base64::prelude::BASE64_STANDARD.encode(&self.payload))),
        };
        #[derive(Serialize)]
        struct Record<'a> {
            v: u8,
            id: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            payload: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            payload_b64: Option<String>,
            reason: &'a str,
            cause: Cause,
            member: &'a str,
            label: &'a str,
            attempt: u32,
            generated_ms: u64,
            failed_ms: u64,
        }
        Record {
            v: 1,
            id: &self.id,
            payload,
            payload_b64,
            reason: &self.reason,
            cause: self.cause,
            member: &self.member,
            label: &self.label,
            attempt: self.attempt,
            generated_ms: self.generated_ms,
            failed_ms: self.failed_ms,
        }
        .serialize(serializer)
    }
}

/// What stands beside the envelope; unknown fields of later versions are ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Info {
    cause: Option<Cause>,
    reason: String,
    member: String,
    label: String,
}

/// The failed messages of one fleet. Needs no session: it is used by commands, not by members.
#[derive(Clone)]
pub struct ErrorStore {
    store: Store,
}

impl ErrorStore {
    /// Connects to a fleet's error store.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn open(redis: &str, fleet: &str) -> Result<ErrorStore, Error> {
        crate::config::check_fleet_name(fleet)?;
        let store = Store::open(redis, fleet)?;
        store.check().await?;
        Ok(ErrorStore { store })
    }

    /// How many are stored, those being taken included.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn count(&self) -> Result<u64, Error> {
        let mut count = self.len(self.store.keys.errors()).await?;
        for token in self.drains().await? {
            count += self.len(self.store.keys.drain(&token)).await?;
        }
        Ok(count)
    }

    /// Begins to take everything stored.
    pub fn take(&self) -> Taker {
        Taker {
            store: self.store.clone(),
            token: None,
            tried: Vec::new(),
            owner: owner(),
            page: PAGE,
        }
    }

    async fn len(&self, key: String) -> Result<u64, Error> {
        let length = self.store.once(&Call::plain("XLEN").arg(key)).await?;
        crate::store::number(&length)
            .map(|length| length as u64)
            .map_err(|error| self.store.explain(error))
    }

    async fn drains(&self) -> Result<Vec<String>, Error> {
        drains(&self.store).await
    }
}

pub(super) async fn drains(store: &Store) -> Result<Vec<String>, Error> {
    let tokens = store.once(&Call::plain("HKEYS").arg(store.keys.drains())).await?;
    let tokens = list(tokens).and_then(|tokens| tokens.iter().map(text).collect());
    tokens.map_err(|error| store.explain(error))
}

fn owner() -> String {
    format!("pid {}", std::process::id())
}

/// Takes records page by page. Dropped without [`release`](Taker::release), what it has not
/// confirmed is inherited by the next taker a few seconds later.
pub struct Taker {
    store: Store,
    token: Option<String>,
    /// Drains of others that were still refreshed when we asked.
    tried: Vec<String>,
    owner: String,
    /// Records to ask for at a time.
    page: usize,
}

impl Taker {
    /// The next page, up to 100 records; empty when nothing is left that could be taken.
    ///
    /// # Cancel safety
    ///
    /// Safe: records are only deleted by [`confirm`](Taker::confirm).
    pub async fn page(&mut self) -> Result<Vec<ErrorRecord>, Error> {
        loop {
            let token = match &self.token {
                Some(token) => token.clone(),
                None => match self.next_drain().await? {
                    Some(token) => self.token.insert(token).clone(),
                    None => return Ok(Vec::new()),
                },
            };
            let call = Call::plain("XRANGE").arg(self.store.keys.drain(&token));
            let call = call.arg("-").arg("+").arg("COUNT").arg(self.page);
            let entries = match self.store.once(&call).await {
                Ok(entries) => list(entries),
                // Large records over a slow link: ask for fewer at a time.
                Err(Error::NoAnswer { .. }) if self.page > 1 => {
                    self.page /= 2;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let records: Result<Vec<_>, _> =
                entries.and_then(|entries| entries.into_iter().map(record).collect());
            let records = records.map_err(|error| self.store.explain(error))?;
            if !records.is_empty() {
                return Ok(records);
            }
            self.token = None;
        }
    }

    /// Deletes a page whose bytes were written out. False: another taker has inherited the rest.
    ///
    /// # Cancel safety
    ///
    /// Safe to repeat: deleting twice deletes once.
    pub async fn confirm(&mut self, page: &[ErrorRecord]) -> Result<bool, Error> {
        let ids: Vec<&str> = page.iter().map(|record| record.position.as_str()).collect();
        self.touch(DRAIN_LIFE, &ids).await
    }

    /// Says that this taker still lives, while writing a page takes long.
    ///
    /// # Cancel safety
    ///
    /// Safe to repeat.
    pub async fn keep_alive(&mut self) -> Result<bool, Error> {
        self.touch(DRAIN_LIFE, &[]).await
    }

    /// Stops early: whoever comes next may take the rest at once.
    ///
    /// # Cancel safety
    ///
    /// Safe to repeat.
    pub async fn release(mut self) -> Result<(), Error> {
        self.touch(Duration::ZERO, &[]).await.map(|_| ())
    }

    /// How many drains other living takers hold.
    pub fn held_by_others(&self) -> usize {
        self.tried.len()
    }

    async fn touch(&mut self, life: Duration, ids: &[&str]) -> Result<bool, Error> {
        // Without a drain there is nothing to keep alive; what was on a page is somebody else's now.
        let Some(token) = self.token.clone() else { return Ok(ids.is_empty()) };
        let keys = &self.store.keys;
        let mut call = CONFIRM
            .call(&[keys.drains(), keys.drain(&token), keys.counts()])
            .arg(&token)
            .arg(&self.owner)
            .arg(life.as_millis() as u64);
        for id in ids {
            call.push_arg(id);
        }
        let reply = self.repeat(&call).await?;
        if reply == "gone" {
            self.token = None;
        }
        Ok(reply != "gone")
    }

    /// Sends a call that is safe to repeat until it is answered, a few times.
    async fn repeat(&self, call: &Call) -> Result<String, Error> {
        let mut tries = 0;
        loop {
            match self.store.once_reply(call).await {
                Ok(reply) => return Ok(reply.tag),
                Err(error) if error.is_retryable() && tries < 5 => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Our own drain: of the stored errors, else of a taker that stopped.
    async fn next_drain(&mut self) -> Result<Option<String>, Error> {
        let fresh = self.drain_from("").await?;
        if fresh.is_some() {
            return Ok(fresh);
        }
        self.tried.clear();
        for from in drains(&self.store).await? {
            if let Some(token) = self.drain_from(&from).await? {
                return Ok(Some(token));
            }
        }
        Ok(None)
    }

    async fn drain_from(&mut self, from: &str) -> Result<Option<String>, Error> {
        let token = format!("{:016x}", rand::random::<u64>());
        let keys = &self.store.keys;
        let mut all = vec![keys.errors(), keys.drains(), keys.drain(&token)];
        if !from.is_empty() {
            all.push(keys.drain(from));
        }
        let call = TAKE
            .call(&all)
            .arg(&token)
            .arg(&self.owner)
            .arg(DRAIN_LIFE.as_millis() as u64)
            .arg(from);
        match self.repeat(&call).await?.as_str() {
            "ok" | "same" => Ok(Some(token)),
            "alive" => {
                self.tried.push(from.to_owned());
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

fn record(entry: redis::Value) -> Result<ErrorRecord, StoreError> {
    let mut entry = list(entry)?.into_iter();
    let position = text(&entry.next().unwrap_or(redis::Value::Nil))?;
    let fields = list(entry.next().unwrap_or(redis::Value::Nil))?;
    let (mut envelope, mut info) = (Vec::new(), Info::default());
    let mut fields = fields.into_iter();
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        match (text(&name)?.as_str(), value) {
            ("m", redis::Value::BulkString(bytes)) => envelope = bytes,
            ("e", redis::Value::BulkString(bytes)) => {
                info = serde_json::from_slice(&bytes).unwrap_or_default();
            }
            _ => {}
        }
    }
    let message = Message::parse(envelope).unwrap_or_else(Message::unreadable);
    let failed_ms = position.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(0);
    Ok(ErrorRecord {
        id: message.id().to_string(),
        attempt: message.attempt(),
        generated_ms: message.generated_ms(),
        payload: message.into_payload(),
        reason: info.reason,
        cause: info.cause.unwrap_or(Cause::Handler),
        member: info.member,
        label: info.label,
        failed_ms,
        position,
    })
}
