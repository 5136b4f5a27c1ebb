//! [`Role`]: what a process does in its fleet.

/// What a process does in its fleet at this moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
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
}
