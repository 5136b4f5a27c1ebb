//! [`SessionLink`]: the connection with the subscriptions, on a thread of its own.
//!
//! **Invariant:** everything that is sent on it is sent from its own small runtime, so neither busy
//! handlers nor the end of another runtime can stop it. There is one per process and fleet: the
//! session, all events and all locks share it.

use std::future::Future;
use std::sync::{Arc, Mutex};

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Client, Hint, Keys, Link, PushRouter};
use crate::Error;

pub(crate) struct SessionLink {
    pub(crate) link: Arc<Link>,
    pub(crate) router: Arc<PushRouter>,
    hints: Mutex<Option<Receiver<Hint>>>,
    handle: Handle,
    over: CancellationToken,
}

impl SessionLink {
    /// Starts the thread. The first call connects.
    pub(super) fn open(client: Client, keys: &Keys) -> Result<SessionLink, Error> {
        let refused = |error: std::io::Error| Error::Config {
            field: "threads",
            problem: format!("cannot be started: {error}"),
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let (router, hints) = PushRouter::new(keys);
        let link = Arc::new(Link::hearing("session", client, router.clone()));
        let (handle, over) = (runtime.handle().clone(), CancellationToken::new());
        let until = over.clone();
        std::thread::Builder::new()
            .name("artel-session".to_owned())
            .spawn(move || runtime.block_on(until.cancelled()))
            .map_err(refused)?;
        Ok(SessionLink { link, router, hints: Mutex::new(Some(hints)), handle, over })
    }

    /// Runs a task on the thread. The task ends when this link is dropped.
    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.handle.spawn(task)
    }

    /// The hints. Only one session at a time may read them. `None` if a session has them already.
    pub(crate) fn claim(self: &Arc<SessionLink>) -> Option<Hints> {
        let mut received = self.hints.lock().expect("never poisoned").take()?;
        while received.try_recv().is_ok() {} // for the session before
        Some(Hints { link: self.clone(), received: Some(received) })
    }
}

/// The hints of one session. When this is dropped, another session may claim them.
pub(crate) struct Hints {
    pub(crate) link: Arc<SessionLink>,
    received: Option<Receiver<Hint>>,
}

impl Hints {
    pub(crate) async fn recv(&mut self) -> Option<Hint> {
        self.received.as_mut()?.recv().await
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        *self.link.hints.lock().expect("never poisoned") = self.received.take();
    }
}

impl Drop for SessionLink {
    fn drop(&mut self) {
        self.over.cancel();
    }
}
