//! A fleet of identical processes on nothing but Redis or Valkey: one elected **generator** makes
//! messages, all the others are **workers**, and every message is completed exactly once.
//!
//! *Completed exactly once* means: exactly one outcome is recorded per message. A handler may start
//! again if its process dies or is cut off; its late outcome is refused. Effects committed with the
//! outcome ([`Outcome::with`]) happen exactly once, too.
//!
//! Data goes one way through the stages:
//!
//! | stage | module | takes | hands on |
//! |---|---|---|---|
//! | 0 who is here | `membership` | | a session |
//! | 1 who leads | `election` | a session | a lease with its [`Term`] |
//! | 2 what is made | `generator` | a lease | [`NewMessage`] |
//! | 3 where it waits | `queue` | a lease or a [`Sender`], [`NewMessage`] | a claim on a [`Message`] |
//! | 4 who handles it | `worker` | a claim | [`Outcome`] |
//! | 5 how it ended | `outcome` | a claim, [`Outcome`] | |
//!
//! There is one entry point. [`Fleet`] is a client: it sends messages, sets events, and reads errors
//! and the status. It needs no membership. [`Fleet::join`] makes this process a [`Member`], which owns
//! every task. A member reports what happens to [`Notices`], and to an [`EventHub`](hub::EventHub)
//! ([`Member::hub`]).
//!
//! In addition to the stages, on the same sessions and the same connection, there are
//! [`DistributedEvent`], [`Lock`], [`Semaphore`], [`CountDownLatch`] and [`Barrier`], across processes
//! and machines.
//!
//! ```
//! # let server = artel_rig::Server::any();
//! # let redis = server.url();
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! use artel::{Context, Fleet, Message, Outcome, Tick};
//!
//! let fleet = Fleet::connect(redis, "orders").await?;
//! let member = || {
//!     fleet
//!         .join()
//!         .generate(|tick: Tick| async move { format!("order {}", tick.seq) })
//!         .handle(|message: Message, _: Context| async move {
//!             if message.payload().is_empty() {
//!                 return Outcome::failed("an empty order");
//!             }
//!             Outcome::done()
//!         })
//!         .start()
//! };
//! // Two copies, here in one process: one of them leads, the other works.
//! let (one, two) = (member().await?, member().await?);
//! while fleet.status().await?.messages.done == 0 {
//!     tokio::time::sleep(std::time::Duration::from_millis(50)).await;
//! }
//! one.shutdown().await;
//! two.shutdown().await;
//! # Ok::<(), artel::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod alerts;
mod backoff;
mod cause;
mod clock;
mod config;
mod duties;
mod election;
mod error;
mod feed;
mod fleet;
mod generator;
mod history;
mod id;
mod inspect;
mod json_time;
mod lane;
mod member;
mod membership;
mod message;
mod meter;
mod metrics;
mod mutant;
mod notice;
mod orders;
mod outcome;
mod panic;
mod process;
mod queue;
mod role;
mod schedule;
mod shutdown;
mod stages;
mod stats;
mod store;
mod sync;
mod tenure;
mod term;
mod timings;
pub mod trace;
mod watch;
mod worker;

pub mod testing;

/// The reasons for the design.
#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}

/// The event hub inside the process, on which a member publishes its notices. It is a crate of its own.
pub use alerts::{AlertRule, Alerting, Alerts, BadRule};
pub use artel_hub as hub;
pub use backoff::Backoff;
pub use cause::Cause;
pub use config::{Config, Durability, LaneWeights, LeaderWorks, Ledger};
pub use error::{BadAddress, Denial, Error, Unfit, Unreached};
pub use feed::{MessageRecord, Step};
pub use fleet::{Fleet, FleetInfo};
pub use generator::{Batch, BoxError, Generate, IntoBatch, Tick};
pub use history::{History, LogEntry};
pub use id::{MemberId, MessageId};
pub use inspect::{Data, Finding, Level, ListCursor, Listed, MessageState, WaitingIn};
pub use json_time::TimeLeft;
pub use lane::Lane;
pub use member::{Member, MemberBuilder, Readiness, Roles};
pub use message::{Message, NewMessage};
pub use metrics::MetricsSource;
pub use notice::{Notice, Notices};
pub use orders::{About, Order};
pub use outcome::{
    Cursor, Effect, ErrorRecord, ErrorStore, ErrorsStatus, FleetCounts, GeneratorStatus,
    IntoOutcome, LaneLengths, Loss, MemberStatus, MessageCounts, Outcome, RedisStatus, Requeued,
    Requeuer, Status, Taker, Trouble,
};
pub use queue::{PutBack, Sender, Sent};
pub use role::Role;
pub use schedule::{CatchUp, Cron, CronEntry, CronSet, Crons, Schedule, ScheduleCursor, Scheduled};
pub use stats::{FleetStats, HubSubscriber, MemberStats, MissingMember, StatsTotals};
pub use store::Address;
pub use sync::{
    Barrier, CountDownLatch, DistributedEvent, EventState, EventStatus, GuardedScript, Lock,
    LockGuard, LockStatus, Permit, Semaphore,
};
pub use term::{Term, Token};
pub use worker::{Context, FromMessage, Handle, HandledBy, Json, Kind, json};
