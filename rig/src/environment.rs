//! The environment of processes that are started here.
//!
//! **Invariant:** nothing that the user of this process has set decides what they do.

use std::ffi::OsString;

/// The variables of this process that a program of ours reads: `ARTEL_*` and `REDIS_URL`.
pub fn own_variables() -> Vec<OsString> {
    let names = std::env::vars_os().map(|(name, _)| name);
    let own = |name: &OsString| name.to_string_lossy().starts_with("ARTEL_") || name == "REDIS_URL";
    names.filter(own).collect()
}
