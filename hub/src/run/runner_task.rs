//! [`run_to_end`]: a runner with an end.
//!
//! **Invariant:** it is polled until its runner is done or its subscriber is told to stop; then the
//! runner is dropped, whatever it was waiting for, and the subscriber is over, unless another runner
//! has taken its place.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::coarse_instant;
use crate::run::handler::Handler;
use crate::run::runner::Runner;
use crate::run::subscriber::{Intake, Subscriber};

/// A handler that keeps a thread of others for longer than this is told of.
const BLOCKING: Duration = Duration::from_millis(100);

pin_project_lite::pin_project! {
    /// One future without a box inside, and as small as can be: there may be very many.
    struct RunnerTask<R> {
        me: Arc<Subscriber>,
        #[pin]
        run: Option<R>,
    }
}

/// Runs it until it ends, or is ended from outside in the middle of what its handler waits for.
pub(crate) fn run_to_end<T, H, F>(runner: Runner<T, F>) -> impl Future<Output = ()> + Send
where
    T: Send + Sync + 'static,
    H: Handler<T>,
    F: FnMut() -> H + Send + 'static,
{
    let me = runner.me.clone();
    // The runner leaves the hub as it is dropped.
    RunnerTask { me, run: Some(runner.run()) }
}

impl<R: Future<Output = ()>> Future for RunnerTask<R> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let polled = poll(this.me, this.run.as_mut(), cx);
        if polled.is_ready()
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| this.run.set(None)))
        {
            std::mem::forget(panic);
        }
        polled
    }
}

fn poll<R>(me: &Subscriber, run: Pin<&mut Option<R>>, cx: &mut Context<'_>) -> Poll<()>
where
    R: Future<Output = ()>,
{
    match &me.intake {
        Intake::Log { cursor, .. } => cursor.load().signal.register(cx.waker()),
        Intake::Queue { queue, .. } => queue.signal.register(cx.waker()),
        Intake::Inline(_) => {}
    }
    let Some(run) = run.as_pin_mut() else { return Poll::Ready(()) };
    if me.life.orders().stop() {
        return Poll::Ready(());
    }
    let begun = me.shares_threads().then(coarse_instant);
    let polled = catch_unwind(AssertUnwindSafe(|| run.poll(cx)));
    let took = begun.map(|begun| coarse_instant().saturating_sub(begun));
    if let Some(took) = took.filter(|took| *took >= BLOCKING) {
        me.has_blocked(took);
    }
    match polled {
        Ok(polled) => polled,
        Err(_) => Poll::Ready(()),
    }
}
