//! What `artel verify`, the tests and the benchmarks share: private servers, a proxy that misbehaves on command, wall
//! clocks that can be set, and snapshots of all that a fleet has in Redis. It knows nothing of the library.
//!
//! With the feature `tests` also: handles on real processes, certificates, waiting for conditions, and an auditor that
//! finds gaps and doubles without trusting any counter.

mod clock;
mod private_server;
mod proxy;
mod snapshot;

pub use clock::{Clock, OFF_MAX, TAKES_EFFECT, off_ms};
pub use private_server::PrivateServer;
pub use proxy::{Fault, Proxy};
pub use snapshot::{Settled, Snapshot};

#[cfg(feature = "tests")]
mod audit;
#[cfg(feature = "tests")]
mod certs;
#[cfg(feature = "tests")]
mod process;
#[cfg(feature = "tests")]
mod scripts;
#[cfg(feature = "tests")]
mod server;
#[cfg(feature = "tests")]
mod wait;

#[cfg(feature = "tests")]
pub use {
    audit::{Audit, Taken},
    certs::Certs,
    process::{Program, clean_command, python},
    scripts::{script_hash, scripts},
    server::{Kind, Server, each_server, free_port, soak},
    wait::{DEADLINE, eventually, wait_for},
};
