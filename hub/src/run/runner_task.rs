//! [`run_to_end`]: the future of a runner, with its end.
//!
//! **Invariant:** it is polled until the runner is done or the subscriber is ordered to stop. Then
//! the runner is dropped, whatever it was waiting for. The subscriber has ended then, unless
//! another runner has replaced this one.

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

/// A handler that blocks a shared thread for longer than this is reported.
const BLOCKING: Duration = Duration::from_millis(100);

pin_project_lite::pin_project! {
    /// A future without inner boxes, as small as possible: there may be very many.
    struct RunnerTask<R> {
        me: Arc<Subscriber>,
        #[pin]
        run: Option<R>,
    }
}

/// Runs a runner until it ends, or until an order to stop interrupts its handler.
pub(crate) fn run_to_end<T, H, F>(runner: Runner<T, F>) -> impl Future<Output = ()> + Send
where
    T: Send + Sync + 'static,
    H: Handler<T>,
    F: FnMut() -> H + Send + 'static,
{
    let me = runner.me.clone();
    // The runner leaves the hub when it is dropped.
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
