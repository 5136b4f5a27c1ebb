//! [`HeldBlocks`]: the blocks that a worker knows. They are compared with the blocks in Redis, to find
//! lost data.
//!
//! **Invariant:** a difference counts only if the worker's blocks did not change while Redis was asked.

use std::sync::Mutex;

/// What a worker reports about its blocks.
#[derive(Debug, Default)]
pub(crate) struct HeldBlocks(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    held: usize,
    hi: u64,
    fetching: bool,
    changes: u64,
}

/// What the worker had reported when Redis was asked.
pub(super) struct Asked {
    pub(super) held: usize,
    pub(super) hi: u64,
    mark: Option<u64>,
}

impl HeldBlocks {
    /// Reports how many blocks the worker holds, the highest number it has used, and whether a fetch is
    /// under way.
    pub(crate) fn note(&self, held: usize, hi: u64, fetching: bool) {
        let mut known = self.0.lock().expect("never poisoned");
        let changes = known.changes + 1;
        *known = Known { held, hi, fetching, changes };
    }

    pub(super) fn asked(&self) -> Asked {
        let Known { held, hi, fetching, changes } = *self.0.lock().expect("never poisoned");
        Asked { held, hi, mark: (!fetching).then_some(changes) }
    }

    /// Has nothing changed since then, and was no fetch under way?
    pub(super) fn is_unchanged(&self, asked: &Asked) -> bool {
        asked.mark.is_some() && asked.mark == self.asked().mark
    }
}
