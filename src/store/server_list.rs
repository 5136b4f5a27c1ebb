//! [`ServerList`]: a server is on the list of servers before anything is done there.
//!
//! **Invariant:** a process that makes, sends or finishes messages does so on no server before the list there has it, with the
//! steps that the server had until then. Otherwise what it has forgotten could not be told from what came later. Who may not
//! list it is not stopped: the next heartbeat of a member lists it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Call, Keys, PROTOCOL, Script};
use crate::mutant::{Rule, disabled};

static ENLIST: Script = Script::new("enlist", include_str!("enlist.lua"));

/// What one process knows of that list.
pub(super) struct ServerList {
    keys: [String; 4],
    /// Does this process take steps that are counted?
    steps: AtomicBool,
    /// The last server that it has listed, and its history.
    last: Mutex<String>,
}

impl ServerList {
    pub(super) fn new(keys: &Keys) -> ServerList {
        let keys = [keys.counts(), keys.servers(), keys.notices(), keys.config()];
        ServerList { keys, steps: AtomicBool::new(false), last: Mutex::default() }
    }

    /// From now on this process takes steps that are counted.
    pub(super) fn begin(&self) {
        self.steps.store(true, Ordering::Release);
    }

    pub(super) fn is_needed(&self) -> bool {
        self.steps.load(Ordering::Acquire) && !disabled(Rule::ListFirst)
    }

    /// The call that comes before any other one at this server, which is given with its history: one that was a replica in
    /// between has another one. `None` if it is listed.
    pub(super) fn first(&self, server: &str) -> Option<Call> {
        let id = server.split(' ').next().filter(|id| !id.is_empty())?;
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        (*last != server).then(|| ENLIST.call(&self.keys).arg(id).arg(PROTOCOL))
    }

    /// That call was answered.
    pub(super) fn has(&self, server: &str) {
        server.clone_into(&mut self.last.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
