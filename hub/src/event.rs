//! [`AnyEvent`]: one payload, published once, shared by everybody who reads it.

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

/// Payloads whose `Drop` panicked, in this process.
static DROP_PANICS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn drop_panics() -> u64 {
    DROP_PANICS.load(Ordering::Relaxed)
}

/// A payload. Whoever drops it last must not suffer from what it does then.
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

/// What the hub knows about every event.
#[derive(Debug)]
pub(crate) struct Meta {
    pub(crate) channel: Arc<Channel>,
    pub(crate) sequence: u64,
    pub(crate) at: SystemTime,
    bytes: u64,
    pub(crate) priority: Priority,
    /// How many handlers in a row led to it.
    pub(crate) depth: u16,
    /// Where it was published, if anybody traces.
    pub(crate) span: Option<Box<tracing::Span>>,
    /// Encoded once, for everybody who wants it so.
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

/// An event whose payload may be of any type. Cloning shares it.
#[derive(Clone)]
pub struct AnyEvent {
    event: Arc<Event<dyn Any + Send + Sync>>,
    /// What readers need before they look at the event itself.
    pub(crate) bytes: u32,
    pub(crate) depth: u16,
    pub(crate) lane: u8,
    /// Nobody's handler published it, and nobody traces it.
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

    /// Gives the payload back if nobody else has seen it.
    pub(crate) fn into_payload<T: Send + Sync + 'static>(mut self) -> Option<T> {
        let event = Arc::get_mut(&mut self.event)?;
        (&mut event.payload as &mut dyn Any).downcast_mut::<Payload<T>>()?.0.take()
    }

    /// Which event this is, for as long as somebody has it.
    #[inline]
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.event).addr()
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.event.meta
    }

    /// What `T` a subscriber of `T` looks at: the payload, or the whole event.
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

    /// Its number under this key. One publisher's numbers grow; a publish that failed leaves a gap.
    pub fn sequence(&self) -> u64 {
        self.meta().sequence
    }

    /// When it was published, to within some milliseconds.
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

    /// The payload as JSON, if its topic can be [encoded](crate::Topic::json). It is encoded once,
    /// however many ask.
    pub fn json(&self) -> Option<&Value> {
        let encode = self.meta().channel.codec()?.encode;
        self.meta().json.get_or_init(|| encode(self).map(Box::new)).as_deref()
    }
}

impl std::fmt::Debug for AnyEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut event = f.debug_struct("AnyEvent");
        event.field("key", &self.key()).field("sequence", &self.sequence()).finish_non_exhaustive()
    }
}
