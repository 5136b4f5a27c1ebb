//! What Artel's own tests are made of: private servers, a proxy that misbehaves on command, handles
//! on real processes, waiting for conditions, and an auditor that finds gaps and doubles without
//! trusting any counter.

mod audit;
mod certs;
mod process;
mod scripts;
mod server;
mod wait;

pub use artel_verify::{Fault, Proxy};
pub use audit::{Audit, Snapshot};
pub use certs::Certs;
pub use process::{Program, clean_command, python};
pub use scripts::{script_hash, scripts};
pub use server::{Kind, Server, free_port};
pub use wait::{DEADLINE, eventually, wait_for};
