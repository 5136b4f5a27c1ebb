//! Where subscribers run.

pub(crate) mod inline;
pub(crate) mod pool;
pub(crate) mod thread;

/// Where a subscriber runs. The [crate documentation](crate#where-subscribers-run) says when to use
/// which. The fourth way, [inline](crate::Subscribe::inline), needs no context.
///
/// ```
/// use artel_hub::{Context, Delivery, EventHub, Topic};
/// const FILES: Topic<u32> = Topic::new("files");
///
/// let hub = EventHub::new();
/// let (send, received) = std::sync::mpsc::channel();
/// let writer = hub
///     .subscribe(&FILES)
///     .on(Context::Thread) // it may block
///     .spawn(move |_: Delivery<'_, u32>| send.send(std::thread::current().id()))?;
/// hub.blocking_publish(&FILES, 7)?;
/// assert_ne!(received.recv()?, std::thread::current().id());
/// assert_eq!(writer.stats().context, "thread");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Context {
    /// A task of the tokio runtime. The default.
    #[default]
    Task,
    /// Its own thread, for handlers that block.
    Thread,
    /// The hub's own threads, shared with the other subscribers on the pool.
    Pool,
}
