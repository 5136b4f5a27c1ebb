//! [`Exchange`]: one round trip with Redis: settle, give back, fetch.
//!
//! **Invariant:** every call has its answer before the next exchange begins, or the session is over.
//! Only a fetch whose answer does not arrive is replaced, by a call that gives back its messages.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::membership::{Instead, Part, Patience, Session};
use crate::outcome::Settled;
use crate::queue::{Fetch, Fetched, Unread};
use crate::store::{Call, Store, StoreError};

/// What Redis answered to one call of an exchange.
pub(super) enum Said {
    /// The answer to the outcomes of this block.
    Settled(u64, Result<Settled, StoreError>),
    /// The answer to giving back this many messages of this block.
    GivenBack {
        n: u64,
        messages: usize,
        answer: Result<(), StoreError>,
    },
    Fetched(Result<Fetched, StoreError>),
    /// The fetch could not be read: its messages are given back.
    Unread(Result<Unread, StoreError>),
}

/// The calls of one round trip.
pub(super) struct Exchange {
    store: Store,
    session: Arc<Session>,
    parts: Vec<Part<Said>>,
}

impl Exchange {
    pub(super) fn new(store: &Store, session: &Arc<Session>) -> Exchange {
        let (store, session) = (store.clone(), session.clone());
        Exchange { store, session, parts: Vec::new() }
    }

    pub(super) fn settle(&mut self, n: u64, call: Call<Settled>) {
        self.parts.push(call.map_read(move |answer| Said::Settled(n, answer)).into());
    }

    pub(super) fn give_back(&mut self, n: u64, messages: usize, call: Call<()>) {
        let said = move |answer| Said::GivenBack { n, messages, answer };
        self.parts.push(call.map_read(said).into());
    }

    /// Adds a fetch, which must be the last call. Its answer may have this many bytes.
    pub(super) fn fetch(&mut self, fetch: &Fetch, bytes: usize) {
        let call = fetch.call(&self.store, &self.session).map_read(Said::Fetched);
        let unread = fetch.unread_call(&self.store, &self.session).map_read(Said::Unread);
        self.parts.push(Part { call, instead: Some(Instead { bytes, call: unread }) });
    }

    /// Begins, if there is a call to send. The future returns `None` if the session is over.
    pub(super) fn begin(self) -> Option<BoxFuture<'static, Option<Vec<Said>>>> {
        if self.parts.is_empty() {
            return None;
        }
        Some(Box::pin(async move {
            let Exchange { store, session, parts } = self;
            session.ask_all(&store.work, Patience::UNTIL_RECORDED, parts).await.ok()
        }))
    }
}
