//! Blocks that a process of the random schedule holds, as envelopes or as packs.

use crate::lab::Answer;
use crate::pack_calls::places;
use crate::schedule::{Process, World};

/// An open block.
#[derive(Clone, Default)]
pub(super) struct Held {
    pub(super) stamp: String,
    /// Per position, whether it is still to be settled.
    pub(super) open: Vec<bool>,
    /// The first id of its pack, and where each message stands in it; empty if it came as envelopes.
    pub(super) first: String,
    pub(super) places: Vec<(u64, u64)>,
    /// Its envelopes, if it came as envelopes.
    pub(super) messages: Vec<String>,
}

impl Held {
    /// Must one of its outcomes be named, even if it is simply done?
    pub(super) fn has_duties(&self) -> bool {
        let open = self.messages.iter().zip(&self.open).filter(|(_, open)| **open);
        open.into_iter().any(|(message, _)| !["-", "h"].contains(&message.get(2..3).unwrap_or("-")))
    }
}

impl World<'_> {
    /// Reads the packs that a fetch promised. Between the two anything may have happened.
    pub(super) fn take_pack(&mut self, at: usize, me: &str, n: u64, answer: &Answer) {
        if self.pick(10) == 0
            && let Some(other) =
                self.processes.iter().find_map(|other| other.id.clone()).filter(|id| id != me)
        {
            self.lab.reap(me);
            let chunk = 1 + self.pick(3);
            let adopt = self.lab.adopt_call(&other, me, n, chunk);
            self.exec(&adopt);
            self.note("adopted before the pack was read");
        }
        let count: usize = answer.at(2).parse().expect("a number");
        let mut blocks = Vec::new();
        for (n, index) in (n..).zip(4..4 + count) {
            let packed: usize = answer.at(index).parse().expect("a number");
            let pack = self.lab.pack(me, n);
            let (first, places) = pack.map(|pack| places(&pack)).unwrap_or_default();
            if places.len() != packed {
                return self.end_session(at, me);
            }
            let (stamp, open) = (answer.at(1).to_owned(), vec![true; packed]);
            blocks.push((n, Held { stamp, open, first, places, messages: Vec::new() }));
        }
        self.note(if count > 1 { "several packs read" } else { "pack read" });
        let process = &mut self.processes[at];
        process.next = n + count as u64;
        process.blocks.extend(blocks);
    }
}

/// Notes that these positions are settled or given back.
pub(super) fn forget(process: &mut Process, n: u64, positions: &[usize], closing: bool) {
    if let Some(Held { open, .. }) = process.blocks.get_mut(&n) {
        for &position in positions {
            open[position] = false;
        }
        if closing || open.iter().all(|open| !open) {
            process.blocks.remove(&n);
        }
    }
}
