//! [`Ear`]: the connection that listens, on a thread of its own.
//!
//! **Invariant:** everything that is sent on it is sent from its own small runtime, so neither busy
//! handlers nor a runtime that ends can make it deaf. One per process and fleet: the session, all
//! events and all locks share it.

use std::future::Future;
use std::sync::{Arc, Mutex};

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Client, Hint, Keys, Link, Switchboard};
use crate::Error;

pub(crate) struct Ear {
    pub(crate) link: Arc<Link>,
    pub(crate) switchboard: Arc<Switchboard>,
    hints: Mutex<Option<Receiver<Hint>>>,
    handle: Handle,
    over: CancellationToken,
}

impl Ear {
    /// Starts the thread; connects when something is sent.
    pub(super) fn open(client: Client, keys: &Keys) -> Result<Ear, Error> {
        let refused = |error: std::io::Error| Error::Config {
            field: "threads",
            problem: format!("cannot be started: {error}"),
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let (switchboard, hints) = Switchboard::new(keys);
        let link = Arc::new(Link::hearing("session", client, switchboard.clone()));
        let (handle, over) = (runtime.handle().clone(), CancellationToken::new());
        let until = over.clone();
        std::thread::Builder::new()
            .name("artel-session".to_owned())
            .spawn(move || runtime.block_on(until.cancelled()))
            .map_err(refused)?;
        Ok(Ear { link, switchboard, hints: Mutex::new(Some(hints)), handle, over })
    }

    /// Runs a task on the thread; it ends with the ear.
    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.handle.spawn(task)
    }

    /// What nobody listens to in particular: for the session, of which there is one.
    pub(crate) fn hints(&self) -> Option<Receiver<Hint>> {
        self.hints.lock().expect("never poisoned").take()
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.over.cancel();
    }
}
