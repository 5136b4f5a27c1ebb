//! [`AnyEvent`]: one payload, published once, shared by all its readers.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use serde_json::Value;

use crate::topic::Channel;
use crate::wait::lane::Priority;

/// An event with its payload, in one allocation.
struct Event<P: ?Sized> {
    meta: Meta,
    payload: P,
}

/// How many payloads panicked in `Drop`, in this process.
static DROP_PANICS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn drop_panics() -> u64 {
    DROP_PANICS.load(Ordering::Relaxed)
}

/// A payload. A panic in its `Drop` must not hurt the thread that drops it last.
struct Payload<T>(Option<T>);

impl<T> Drop for Payload<T> {
    fn drop(&mut self) {
        let Some(payload) = self.0.take() else { return };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(panic); // its drop might panic as well
            DROP_PANICS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What the hub stores about every event.
#[derive(Debug)]
pub(crate) struct Meta {
    pub(crate) channel: Arc<Channel>,
    pub(crate) sequence: u64,
    pub(crate) at: SystemTime,
    bytes: u64,
    pub(crate) priority: Priority,
    /// How many handlers in a row led to it.
    pub(crate) depth: u16,
    /// The span of the publish, if tracing is enabled.
    pub(crate) span: Option<Box<tracing::Span>>,
    /// Encoded at most once, for all readers.
    json: OnceLock<Option<Box<Value>>>,
}

impl Meta {
    pub(crate) fn new(
        channel: Arc<Channel>,
        at: SystemTime,
        bytes: u64,
        priority: Priority,
    ) -> Meta {
        let json = OnceLock::new();
        Meta { channel, sequence: 0, at, bytes, priority, depth: 0, span: None, json }
    }
}

/// An event with a payload of any type. Clones share it. Subscribers to
/// [`Keys::any`](crate::Keys::any) receive it.
///
/// ```
/// use artel_hub::{AnyEvent, Delivery, EventHub, Keys, Topic};
/// const TEMPERATURE: Topic<f64> = Topic::json("sensors/temperature");
///
/// let hub = EventHub::new();
/// let (send, received) = std::sync::mpsc::channel();
/// let _all = hub
///     .subscribe(Keys::any(["sensors/**"])?)
///     .inline(move |event: Delivery<'_, AnyEvent>| send.send(event.get().clone()))?;
/// hub.blocking_publish(&TEMPERATURE, 21.5)?;
/// let event = received.recv()?;
/// assert_eq!((event.key(), event.sequence()), ("sensors/temperature", 1));
/// assert_eq!(event.payload::<f64>(), Some(&21.5));
/// assert_eq!(event.json(), Some(&serde_json::json!(21.5)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AnyEvent {
    event: Arc<Event<dyn Any + Send + Sync>>,
    /// Copies for readers, so that they need not load the event itself.
    pub(crate) bytes: u32,
    pub(crate) depth: u16,
    pub(crate) lane: u8,
    /// It was not published by a handler, and it has no tracing span.
    pub(crate) plain: bool,
}

impl AnyEvent {
    #[inline]
    pub(crate) fn new<T: Send + Sync + 'static>(meta: Meta, payload: T) -> AnyEvent {
        let bytes = u32::try_from(meta.bytes).unwrap_or(u32::MAX);
        let (depth, lane) = (meta.depth, meta.priority as u8);
        let plain = depth == 0 && meta.span.is_none();
        let event = Arc::new(Event { meta, payload: Payload(Some(payload)) });
        AnyEvent { event, bytes, depth, lane, plain }
    }

    /// Returns the payload if no other clone of the event exists.
    pub(crate) fn into_payload<T: Send + Sync + 'static>(mut self) -> Option<T> {
        let event = Arc::get_mut(&mut self.event)?;
        (&mut event.payload as &mut dyn Any).downcast_mut::<Payload<T>>()?.0.take()
    }

    /// Identifies this event for as long as a clone of it exists.
    #[inline]
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.event).addr()
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.event.meta
    }

    /// The event as a `T` for a subscriber of `T`: the payload, or the whole event.
    #[inline]
    pub(crate) fn view<T: 'static>(&self) -> Option<&T> {
        if let Some(whole) = (self as &dyn Any).downcast_ref::<T>() {
            return Some(whole);
        }
        self.payload()
    }

    /// The key it was published under.
    pub fn key(&self) -> &str {
        self.meta().channel.key()
    }

    /// Its sequence number under this key. The numbers of one publisher grow. A failed publish
    /// leaves a gap.
    pub fn sequence(&self) -> u64 {
        self.meta().sequence
    }

    /// When it was published, exact to some milliseconds.
    pub fn at(&self) -> SystemTime {
        self.meta().at
    }

    /// How urgent it is.
    pub fn priority(&self) -> Priority {
        self.meta().priority
    }

    /// The payload, if it is a `T`.
    #[inline]
    pub fn payload<T: 'static>(&self) -> Option<&T> {
        (&self.event.payload as &dyn Any).downcast_ref::<Payload<T>>()?.0.as_ref()
    }

    /// The payload as JSON, if its topic can be [encoded](crate::Topic::json). It is encoded at
    /// most once, also for many readers.
    pub fn json(&self) -> Option<&Value> {
        let encode = self.meta().channel.codec()?.encode;
        self.meta().json.get_or_init(|| encode(self).map(Box::new)).as_deref()
    }

    /// The same, for a reader that keeps it: it is encoded for this reader, unless somebody needed it before.
    pub(crate) fn own_json(&self) -> Option<Value> {
        match self.meta().json.get() {
            Some(known) => known.as_deref().cloned(),
            None => (self.meta().channel.codec()?.encode)(self),
        }
    }
}

impl std::fmt::Debug for AnyEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut event = f.debug_struct("AnyEvent");
        event.field("key", &self.key()).field("sequence", &self.sequence()).finish_non_exhaustive()
    }
}
