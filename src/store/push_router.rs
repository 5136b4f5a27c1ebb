//! [`PushRouter`]: passes the pushes of Redis on to their listeners.
//!
//! **Invariant:** it never waits, and it never loses the end of the connection. A message reaches its
//! listener before the next message is read. A message without a listener only makes things faster.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::{Control, Keys};
use crate::mutant::{Rule, disabled};

/// How many hints may wait to be read. More are dropped: nothing depends on them.
const HINTS_MAX: usize = 1024;

/// What the session receives.
#[derive(Debug, PartialEq)]
pub(crate) enum Hint {
    /// A message on one of its channels.
    Control(Control),
    /// The connection is gone, and with it our presence.
    Lost,
}

/// A listener on one route.
pub(crate) trait Listener: Send + Sync {
    /// Called on the thread that reads the connection: must not block.
    fn hear(&self, text: &str);
}

/// Which messages a listener gets.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Route {
    Channel(String),
    /// The message that the lock of this name is free.
    Lock(String),
}

/// The routes of one connection.
pub(crate) struct PushRouter {
    hints: Sender<Hint>,
    /// The session's channels: the channel of the fleet, and the prefix of the members' channels.
    own: [String; 2],
    routes: Mutex<HashMap<Route, Weak<dyn Listener>>>,
    /// The channels that are being given up by us.
    leaving: Mutex<HashMap<String, Vec<Arc<()>>>>,
}

impl PushRouter {
    pub(super) fn new(keys: &Keys) -> (Arc<PushRouter>, Receiver<Hint>) {
        let (hints, received) = mpsc::channel(HINTS_MAX);
        let own = [keys.ctl(), keys.alive()];
        (
            Arc::new(PushRouter {
                hints,
                own,
                routes: Mutex::default(),
                leaving: Mutex::default(),
            }),
            received,
        )
    }

    fn routes(&self) -> MutexGuard<'_, HashMap<Route, Weak<dyn Listener>>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on only `listener` gets the messages of this route.
    pub(crate) fn add(&self, route: Route, listener: Weak<dyn Listener>) {
        self.routes().insert(route, listener);
    }

    /// Removes a route whose listener is gone.
    pub(crate) fn remove(&self, route: &Route) {
        let mut routes = self.routes();
        if routes.get(route).is_some_and(|listener| listener.strong_count() == 0) {
            routes.remove(route);
        }
    }

    fn listener(&self, route: &Route) -> Option<Arc<dyn Listener>> {
        self.routes().get(route).and_then(Weak::upgrade)
    }

    /// From here until the guard is dropped, the end of this subscription was asked for.
    pub(super) fn leave(self: &Arc<PushRouter>, channel: &str) -> Leaving {
        let mark = Arc::new(());
        self.leaving().entry(channel.to_owned()).or_default().push(mark.clone());
        Leaving { router: self.clone(), channel: channel.to_owned(), mark }
    }

    /// One subscription to this channel has ended. Did we ask for that?
    fn left(&self, channel: &str) -> bool {
        let mut leaving = self.leaving();
        let Some(marks) = leaving.get_mut(channel) else { return false };
        marks.pop();
        if marks.is_empty() {
            leaving.remove(channel);
        }
        true
    }

    fn leaving(&self) -> MutexGuard<'_, HashMap<String, Vec<Arc<()>>>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes one push on. Calls `ended` if the push reports the end of the connection, or of a subscription that nobody
    /// asked to end: this server has lost our slot, and the client takes that push for the answer of another call.
    pub(super) fn route(&self, push: PushInfo, ended: impl FnOnce()) {
        match push.kind {
            PushKind::Disconnection => {
                ended();
                let _ = self.hints.try_send(Hint::Lost);
            }
            PushKind::SUnsubscribe if !disabled(Rule::UnaskedUnsubscribe) => {
                let channel = match push.data.first() {
                    Some(Value::BulkString(channel)) => {
                        String::from_utf8_lossy(channel).into_owned()
                    }
                    _ => String::new(),
                };
                if !self.left(&channel) {
                    ended();
                    let _ = self.hints.try_send(Hint::Lost);
                }
            }
            PushKind::SMessage => {
                let [Value::BulkString(channel), Value::BulkString(text), ..] = &push.data[..]
                else {
                    return;
                };
                self.pass_on(&String::from_utf8_lossy(channel), &String::from_utf8_lossy(text));
            }
            _ => {}
        }
    }

    fn pass_on(&self, channel: &str, text: &str) {
        if let Some(listener) = self.listener(&Route::Channel(channel.to_owned())) {
            return listener.hear(text);
        }
        if channel != self.own[0] && !channel.starts_with(&self.own[1]) {
            return;
        }
        let Some(control) = Control::parse(text) else { return };
        if let Control::Unlocked(name) = &control
            && let Some(listener) = self.listener(&Route::Lock(name.clone()))
        {
            return listener.hear(text);
        }
        // If too many hints wait, this one is dropped, and its effect comes a little later.
        let _ = self.hints.try_send(Hint::Control(control));
    }
}

/// A subscription is being given up until this is dropped.
pub(super) struct Leaving {
    router: Arc<PushRouter>,
    channel: String,
    mark: Arc<()>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut leaving = self.router.leaving();
        if let Some(marks) = leaving.get_mut(&self.channel) {
            marks.retain(|mark| !Arc::ptr_eq(mark, &self.mark));
            if marks.is_empty() {
                leaving.remove(&self.channel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    impl Listener for Heard {
        fn hear(&self, text: &str) {
            self.0.lock().expect("never poisoned").push(text.to_owned());
        }
    }

    fn message(channel: &str, text: &str) -> PushInfo {
        let data = [channel, text].map(|part| Value::BulkString(part.as_bytes().to_vec()));
        PushInfo { kind: PushKind::SMessage, data: data.to_vec() }
    }

    #[test]
    fn a_message_reaches_its_listener_and_what_nobody_listens_to_is_a_hint() {
        let (router, mut hints) = PushRouter::new(&Keys::new("f", 0));
        let (heard, event) = (Arc::new(Heard::default()), Route::Channel("event".to_owned()));
        let listener: Weak<dyn Listener> = Arc::downgrade(&(heard.clone() as Arc<dyn Listener>));
        router.add(event.clone(), listener.clone());
        router.add(Route::Lock("a|b".to_owned()), listener);
        for (channel, text) in [
            ("event", "7"),
            ("artel:{f}:@0:alive:me", "lock|a|b"),
            ("artel:{f}:@0:event:of-before", "lead|x|9"),
            ("artel:{f}:@1:ctl", "free|y"),
            ("artel:{f}:@0:ctl", "free|x"),
        ] {
            router.route(message(channel, text), || panic!("nothing ended"));
        }
        assert_eq!(*heard.0.lock().expect("never poisoned"), ["7", "lock|a|b"]);
        assert_eq!(hints.try_recv(), Ok(Hint::Control(Control::parse("free|x").expect("one"))));
        router.remove(&event);
        assert_eq!(router.routes().len(), 2, "somebody listens");
        drop(heard);
        router.remove(&event);
        assert_eq!(router.routes().len(), 1);
    }

    #[test]
    fn a_subscription_that_ends_unasked_ends_the_connection() {
        let (router, mut hints) = PushRouter::new(&Keys::new("f", 0));
        let data = vec![Value::BulkString(b"event".to_vec()), Value::Int(0)];
        let push = || PushInfo { kind: PushKind::SUnsubscribe, data: data.clone() };
        let asked = router.leave("event");
        router.route(push(), || panic!("it was asked for"));
        let mut ended = false;
        router.route(push(), || ended = true);
        assert!(ended && hints.try_recv() == Ok(Hint::Lost), "it was asked for once");
        drop(asked);
        let unheard = router.leave("event");
        drop(unheard);
        ended = false;
        router.route(push(), || ended = true);
        assert!(ended, "nobody waits for it any more");
    }

    #[test]
    fn the_end_of_the_connection_is_told_even_when_nobody_hears_hints() {
        let (router, hints) = PushRouter::new(&Keys::new("f", 0));
        drop(hints);
        let mut ended = false;
        router.route(PushInfo { kind: PushKind::Disconnection, data: vec![] }, || ended = true);
        assert!(ended);
    }
}
