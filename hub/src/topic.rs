//! [`Topic`]: a key with the type of its payloads. `Channel`: what the hub stores about one key.
//!
//! **Invariant:** a key has one payload type for as long as its channel is in use.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::event::{AnyEvent, Meta};
use crate::key::PayloadType;
use crate::publish::route::Routes;

/// Reads a payload from JSON and makes an event of it.
type Decode = fn(Meta, Value) -> Result<AnyEvent, serde_json::Error>;

/// How payloads of one type are written as JSON and, if possible, read back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codec {
    pub(crate) encode: fn(&AnyEvent) -> Option<Value>,
    pub(crate) decode: Option<Decode>,
}

/// A key and the type of the payloads published under it.
///
/// Topics are usually constants. The key is checked when it is used.
///
/// ```
/// use artel_hub::Topic;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Order {
///     total: u64,
/// }
///
/// /// New orders. They can be archived, filtered by field and stored as dead letters.
/// const ORDERS: Topic<Order> = Topic::json("orders/created");
/// /// Any type that is `Send + Sync` can be published. Without serde it stays in memory.
/// const TICKS: Topic<std::time::Instant> = Topic::new("ticks");
/// assert_eq!((ORDERS.key(), TICKS.key()), ("orders/created", "ticks"));
/// ```
pub struct Topic<T> {
    key: Cow<'static, str>,
    pub(crate) codec: Option<Codec>,
    pub(crate) weigh: Option<fn(&T) -> usize>,
    payload: PhantomData<fn() -> T>,
}

impl<T: Send + Sync + 'static> Topic<T> {
    /// A topic whose payloads stay in memory.
    pub const fn new(key: &'static str) -> Topic<T> {
        Topic { key: Cow::Borrowed(key), codec: None, weigh: None, payload: PhantomData }
    }

    /// A topic whose payloads can be written as JSON and read back.
    pub const fn json(key: &'static str) -> Topic<T>
    where
        T: Serialize + DeserializeOwned,
    {
        let codec = Codec { encode: encode::<T>, decode: Some(decode::<T>) };
        Topic { key: Cow::Borrowed(key), codec: Some(codec), weigh: None, payload: PhantomData }
    }

    /// A topic whose payloads can be written as JSON but not read back. They can be archived and
    /// filtered by field. Dead letters that were stored on disk cannot be delivered again.
    pub const fn json_to_read(key: &'static str) -> Topic<T>
    where
        T: Serialize,
    {
        let codec = Codec { encode: encode::<T>, decode: None };
        Topic { key: Cow::Borrowed(key), codec: Some(codec), weigh: None, payload: PhantomData }
    }

    /// The same topic under another key.
    pub fn at(&self, key: impl Into<String>) -> Topic<T> {
        Topic { key: Cow::Owned(key.into()), ..*self }
    }

    /// The same topic one level deeper: `orders/created` and `eu` give `orders/created/eu`.
    pub fn child(&self, level: &str) -> Topic<T> {
        self.at(format!("{}/{level}", self.key))
    }

    /// Sets the function that returns the weight of a payload in bytes. Queues that are bounded by
    /// bytes use it, and so does the hub's limit for payloads. The default weight is the `size_of`
    /// the payload.
    pub const fn weighed(mut self, weigh: fn(&T) -> usize) -> Topic<T> {
        self.weigh = Some(weigh);
        self
    }

    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl<T> Clone for Topic<T> {
    fn clone(&self) -> Topic<T> {
        Topic { key: self.key.clone(), ..*self }
    }
}

impl<T> std::fmt::Debug for Topic<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Topic").field(&self.key).finish()
    }
}

fn encode<T: Serialize + 'static>(event: &AnyEvent) -> Option<Value> {
    serde_json::to_value(event.payload::<T>()?).ok()
}

fn decode<T>(meta: Meta, value: Value) -> Result<AnyEvent, serde_json::Error>
where
    T: DeserializeOwned + Send + Sync + 'static,
{
    Ok(AnyEvent::new::<T>(meta, serde_json::from_value(value)?))
}

/// What the hub stores about one key.
#[derive(Debug)]
pub(crate) struct Channel {
    key: Box<str>,
    pub(crate) payload: PayloadType,
    codec: OnceLock<Codec>,
    sequence: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) routes: ArcSwap<Routes>,
}

impl Channel {
    pub(crate) fn new<T: 'static>(key: &str, first: u64) -> Channel {
        Channel {
            key: key.into(),
            payload: PayloadType::of::<T>(),
            codec: OnceLock::new(),
            sequence: AtomicU64::new(first),
            dropped: AtomicU64::new(0),
            routes: ArcSwap::from_pointee(Routes::default()),
        }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn codec(&self) -> Option<&Codec> {
        self.codec.get()
    }

    pub(crate) fn learn(&self, codec: Option<Codec>) {
        if let Some(codec) = codec {
            let _ = self.codec.set(codec);
        }
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The sequence number of the last publish, including refused ones.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }
}
