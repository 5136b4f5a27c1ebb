//! What a worker waits for beside its slots.
//!
//! **Invariant:** every wait ends by itself, and costs Redis nothing while it lasts.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::membership::{Session, somebody_idle};
use crate::store::{Call, Store};

/// An idle worker asks Redis at least this often, with or without a token: a frozen worker may have
/// taken the token.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Pause after a wait for a token that failed.
pub(super) const WAIT_RETRY: Duration = Duration::from_millis(100);

/// Is another worker idle?
pub(super) fn seek_idle(store: Store, session: Arc<Session>) -> BoxFuture<'static, bool> {
    Box::pin(async move {
        let timeout = session.trust.call_timeout();
        let found = somebody_idle(&store.work, &store.keys, &session.id, timeout).await;
        found.unwrap_or(false)
    })
}

/// Waits for a wake token, at most a second. A fetch follows in any case: token, time-out or error.
pub(super) fn wait_for_token(store: Store) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let call = Call::plain("BLPOP").arg(store.keys.wake()).arg(IDLE_MAX.as_secs_f64());
        if store.wait.call(&call, IDLE_MAX * 2).await.is_err() {
            tokio::time::sleep(WAIT_RETRY).await;
        }
    })
}

/// Waits for the future, or for ever if there is none.
pub(super) async fn pending_or<T>(future: Option<&mut BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
