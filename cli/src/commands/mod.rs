//! One file per verb.

pub(crate) mod clean;
pub(crate) mod errors;
pub(crate) mod run;
pub(crate) mod status;
