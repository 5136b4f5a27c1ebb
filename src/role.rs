//! [`Role`]: what a process does in its fleet.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a process does in its fleet at this moment.
///
/// Written out, and in JSON, it is one lower-case word.
///
/// ```
/// assert_eq!(artel::Role::Generator.to_string(), "generator");
/// ```
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// It has no session, and joins again.
    Outside,
    /// It handles messages.
    Worker,
    /// It leads, and generates messages.
    Generator,
    /// It can lead and has no handler. It waits for its turn.
    Standby,
    /// It neither generates nor handles. It uses locks and events, or only reads.
    Observer,
    /// The deadline of its session has passed: it is dead, or late. Only other members see this role.
    Overdue,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Role::Outside => "outside",
            Role::Worker => "worker",
            Role::Generator => "generator",
            Role::Standby => "standby",
            Role::Observer => "observer",
            Role::Overdue => "overdue",
        })
    }
}
