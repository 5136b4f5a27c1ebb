//! A handler for each kind of message.
//!
//! **Invariant:** a message goes to the handler of its kind, or else to the handler for the rest. If
//! there is neither, it fails with the cause `kind`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Context, DynHandle, Handle};
use crate::cause::Cause;
use crate::message::Message;
use crate::outcome::Outcome;

struct ByKind {
    kinds: BTreeMap<String, Arc<dyn DynHandle>>,
    rest: Option<Arc<dyn DynHandle>>,
}

/// One handler for all messages: it calls the handler of their kind, or the one for the rest. `None` if
/// there is no handler.
pub(crate) fn by_kind(
    kinds: BTreeMap<String, Arc<dyn DynHandle>>,
    rest: Option<Arc<dyn DynHandle>>,
) -> Option<Arc<dyn DynHandle>> {
    match kinds.is_empty() {
        true => rest,
        false => Some(Arc::new(ByKind { kinds, rest })),
    }
}

impl Handle for ByKind {
    async fn handle(&self, message: Message, context: Context) -> Outcome {
        let kind = message.kind();
        match kind.and_then(|kind| self.kinds.get(kind)).or(self.rest.as_ref()) {
            Some(handler) => handler.handle(message, context).await,
            None => {
                let known: Vec<&str> = self.kinds.keys().map(String::as_str).collect();
                let known = known.join(", ");
                let reason = match kind {
                    Some(kind) => format!("no handler for the kind {kind:?}: only for {known}"),
                    None => format!("no handler for a message without a kind: only for {known}"),
                };
                Outcome::failed_by(Cause::Kind, reason)
            }
        }
    }
}
