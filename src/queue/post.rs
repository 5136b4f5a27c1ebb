//! Adding messages that wait for a time or have duties.
//!
//! **Invariant:** they are numbered as all others of their sender, and added whole or not at all, once. They travel as
//! envelopes, many in a call, never as a pack.

use crate::lane::Lane;
use crate::message::NewMessage;
use crate::store::{Call, Keys, PROTOCOL, Script};

static POST: Script =
    Script::new("post", include_str!("post.lua")).lasting(&["ok", "already", "duplicate"]);

/// A batch of them.
pub(super) struct Posted<'a> {
    pub(super) messages: &'a [NewMessage],
    pub(super) lane: Lane,
    /// The name of their sender, and the number of the first.
    pub(super) name: &'a str,
    pub(super) first: u64,
    pub(super) ms: u64,
    /// The key under which it is sent, if it is one message that is sent once.
    pub(super) key: Option<&'a str>,
    pub(super) remember_ms: u64,
}

impl Posted<'_> {
    pub(super) fn call(&self, keys: &Keys) -> Call {
        let Posted { name, first, .. } = *self;
        let mut all = keys.jobs();
        all.extend([keys.sent(name), keys.config(), keys.errors()]);
        all.extend(self.key.map(|key| keys.dedup(key)));
        let mut call = POST.call(&all).arg(name).arg(first).arg(PROTOCOL).arg(self.remember_ms);
        let mut envelope = Vec::new();
        for (number, message) in (first..).zip(self.messages) {
            let id = format_args!("s{name}-{number}");
            message.envelope(&mut envelope, self.lane, id, self.ms);
            call.push_arg(&envelope[..]);
            call.push_arg(message.due());
        }
        call
    }
}
