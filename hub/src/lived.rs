//! [`Lived`]: a runner with an end.
//!
//! **Invariant:** it is polled until its runner is done or its subscriber is told to stop; then the
//! runner is dropped, whatever it was waiting for, and the subscriber is over.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::coarse_instant;
use crate::subscriber::{Post, Subscriber};
use crate::work::discard;

/// A handler that keeps a thread of others for longer than this is told of.
const BLOCKING: Duration = Duration::from_millis(100);

/// A runner that can be ended from outside, in the middle of what its handler waits for.
pub(crate) struct Lived {
    pub(crate) me: Arc<Subscriber>,
    pub(crate) runner: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Future for Lived {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        match &this.me.post {
            Post::Log { cursor, .. } => cursor.signal.register(cx.waker()),
            Post::Queue(queue) => queue.signal.register(cx.waker()),
            Post::Inline(_) => {}
        }
        let Some(runner) = &mut this.runner else { return Poll::Ready(()) };
        if !this.me.life.orders().stop() {
            let begun = this.me.shares_threads().then(coarse_instant);
            let polled = catch_unwind(AssertUnwindSafe(|| runner.as_mut().poll(cx)));
            let took = begun.map(|begun| coarse_instant().saturating_sub(begun));
            if let Some(took) = took.filter(|took| *took >= BLOCKING) {
                this.me.has_blocked(took);
            }
            if matches!(polled, Ok(Poll::Pending)) {
                return Poll::Pending;
            }
        }
        this.end();
        Poll::Ready(())
    }
}

impl Lived {
    fn end(&mut self) {
        discard(self.runner.take()); // the runner leaves the hub as it is dropped
        self.me.life.end();
    }
}

impl Drop for Lived {
    fn drop(&mut self) {
        self.end();
    }
}
