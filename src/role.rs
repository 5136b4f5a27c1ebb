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
    /// It has no session, and joins anew.
    Outside,
    /// It handles messages.
    Worker,
    /// It leads, and generates them.
    Generator,
    /// It can lead and has no handler: it waits for its turn.
    Standby,
    /// It neither generates nor handles: it is here for locks, events or to look.
    Observer,
    /// The deadline of its session has passed: it is dead, or late. Only others see a member so.
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
