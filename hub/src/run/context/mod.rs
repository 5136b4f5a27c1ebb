//! Where subscribers run.

pub(crate) mod inline;
pub(crate) mod pool;
pub(crate) mod thread;

/// Where a subscriber runs. The [crate documentation](crate#where-subscribers-run) says when to use
/// which; the fourth way, [inline](crate::Subscribe::inline), has no context of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Context {
    /// A task of the tokio runtime. The default.
    #[default]
    Task,
    /// A thread of its own, for handlers that block.
    Thread,
    /// The hub's own threads, shared with its other subscribers there.
    Pool,
}
