//! [`HeldBlocks`]: the blocks a worker knows of, for the check that Redis has lost none and made none up.
//!
//! **Invariant:** a difference counts only if what the worker knew was valid all the time Redis was asked.

use std::sync::Mutex;

/// What a worker says of its blocks.
#[derive(Debug, Default)]
pub(crate) struct HeldBlocks(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    held: usize,
    hi: u64,
    fetching: bool,
    changes: u64,
}

/// What was known when Redis was asked.
pub(super) struct Asked {
    pub(super) held: usize,
    pub(super) hi: u64,
    mark: Option<u64>,
}

impl HeldBlocks {
    /// The worker holds so many blocks, has used numbers up to `hi`, and has a fetch on its way or not.
    pub(crate) fn note(&self, held: usize, hi: u64, fetching: bool) {
        let mut known = self.0.lock().expect("never poisoned");
        let changes = known.changes + 1;
        *known = Known { held, hi, fetching, changes };
    }

    pub(super) fn asked(&self) -> Asked {
        let Known { held, hi, fetching, changes } = *self.0.lock().expect("never poisoned");
        Asked { held, hi, mark: (!fetching).then_some(changes) }
    }

    /// Is what was known then still what is known, and was it certain?
    pub(super) fn is_unchanged(&self, asked: &Asked) -> bool {
        asked.mark.is_some() && asked.mark == self.asked().mark
    }
}
