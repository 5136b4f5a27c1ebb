//! Tools that `artel verify`, the tests and the benchmarks share: private servers, a proxy that
//! injects faults, wall clocks that can be set, and snapshots of all data of a fleet in Redis. This
//! crate knows nothing of the library.
//!
//! The feature `tests` adds: handles to real processes, certificates, waiting for conditions, servers that take requests and mails, and
//! an auditor that finds gaps and duplicates without trusting any counter.

mod clock;
mod duties;
mod environment;
mod nodes;
mod private_server;
mod proxy;
mod snapshot;

pub use clock::{Clock, OFF_MAX, TAKES_EFFECT, off_ms};
pub use duties::{Duties, Open};
pub use environment::own_variables;
pub use nodes::{Nodes, ask_port, is_in_sync, replication_of};
pub use private_server::{PrivateServer, Target};
pub use proxy::{Fault, Proxy};
pub use snapshot::{Settled, Snapshot};

#[cfg(feature = "tests")]
mod audit;
#[cfg(feature = "tests")]
mod catchers;
#[cfg(feature = "tests")]
mod certs;
#[cfg(feature = "tests")]
mod process;
#[cfg(feature = "tests")]
mod scripts;
#[cfg(feature = "tests")]
mod server;
#[cfg(feature = "tests")]
mod topology;
#[cfg(feature = "tests")]
mod wait;

#[cfg(feature = "tests")]
pub use {
    audit::{Audit, Taken},
    catchers::{Catcher, Caught},
    certs::Certs,
    process::{Program, clean_command, python},
    scripts::{script_hash, scripts},
    server::{Kind, Server, each_server, free_port, soak},
    topology::{Cluster, MASTER, Sentinels},
    wait::{DEADLINE, eventually, wait_for},
};
