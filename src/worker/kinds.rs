//! A handler and a policy for each kind of message.
//!
//! **Invariant:** a message goes to the handler of its kind, or else to the handler for the rest. If
//! there is neither, it ends with the cause `kind`, and the policy has it wait ten times before it fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::kind::Route;
use super::policy::Policy;
use super::{Context, DynHandle, Handle};
use crate::cause::Cause;
use crate::config::Config;
use crate::message::Message;
use crate::outcome::Outcome;

/// How messages are handled, by their kind.
#[derive(Clone)]
pub(crate) struct Routing {
    /// Calls the handler of a message's kind.
    pub(crate) handler: Arc<dyn DynHandle>,
    pub(crate) policies: Arc<Policies>,
}

/// The policy of each kind.
pub(crate) struct Policies {
    kinds: BTreeMap<String, Policy>,
    rest: Policy,
    /// How many kinds have a number.
    pub(super) count: usize,
}

impl Policies {
    pub(super) fn of(&self, kind: Option<&str>) -> &Policy {
        kind.and_then(|kind| self.kinds.get(kind)).unwrap_or(&self.rest)
    }
}

struct ByKind {
    kinds: BTreeMap<String, Arc<dyn DynHandle>>,
    rest: Option<Arc<dyn DynHandle>>,
}

impl Routing {
    /// Puts handlers together. `None` if there is none.
    pub(crate) fn new(
        routes: Vec<Route>,
        rest: Option<Arc<dyn DynHandle>>,
        config: &Config,
    ) -> Option<Routing> {
        let (mut kinds, mut policies, count) = (BTreeMap::new(), BTreeMap::new(), routes.len());
        for (number, Route { name, options, handler }) in routes.into_iter().enumerate() {
            policies.insert(name.clone(), options.policy(config, number));
            kinds.insert(name, handler);
        }
        let handler = match kinds.is_empty() {
            true => rest?,
            false => Arc::new(ByKind { kinds, rest }),
        };
        let policies = Policies { kinds: policies, rest: Policy::rest(config), count };
        Some(Routing { handler, policies: Arc::new(policies) })
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
