//! EventHub
#![forbid(unsafe_code)]

mod attempt;
mod context;
mod current;
mod cursor;
mod dead_letter;
mod error;
mod event;
mod filter;
mod group;
mod handler;
mod heart;
mod history;
mod hub;
mod inbox;
mod key;
mod lane;
mod life;
mod lived;
mod log;
mod notice;
pub mod notify;
mod overflow;
mod publish;
mod queue;
mod restart;
mod route;
mod runner;
mod signal;
mod stats;
mod subscribe;
mod subscriber;
mod subscription;
mod sync;
mod timer;
mod topic;
mod work;

pub use context::Context;
#[cfg(feature = "sqlite")]
pub use dead_letter::SqliteLetters;
pub use dead_letter::{
    DeadLetters, JsonLinesLetters, Letter, LetterError, LetterFilter, LetterStore, Redelivered,
};
pub use error::{PublishError, Refusal, StopError, SubscribeError};
pub use event::AnyEvent;
pub use filter::{Hours, Rate};
pub use group::Share;
pub use handler::{Delivery, Handler, HandlerError, IntoOutcome, Severity};
#[cfg(feature = "sqlite")]
pub use history::SqliteArchive;
pub use history::{ArchiveError, ArchiveStore, History, JsonLinesArchive, Query, Record};
pub use hub::{BuildError, EventHub, EventHubBuilder, Shutdown};
pub use key::{IntoKeys, KEY_BYTES_MAX, KEYS_MAX, KeyError, Keys};
pub use lane::Priority;
pub use notice::{HubNotice, NOTICES};
pub use overflow::{Overflow, Queue};
pub use publish::{Publisher, Receipt};
pub use restart::{Backoff, Restart};
pub use stats::{HandlerTimes, State, Stats, SubscriberStats, TopicStats};
pub use subscribe::Subscribe;
pub use subscription::{Stopped, Subscription};
pub use topic::Topic;
