//! Runs a future on a thread: polls it until it is ready, and parks in between.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Records a wake-up. The park token alone is not enough, because code on the thread may consume
/// it.
struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Unpark>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Runs a future on this thread.
pub(crate) fn block_on<R>(future: impl Future<Output = R>) -> R {
    let unpark = Unpark { thread: std::thread::current(), woken: AtomicBool::new(false) };
    let unpark = Arc::new(unpark);
    let waker = Waker::from(unpark.clone());
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(value) => return value,
            Poll::Pending => {
                while !unpark.woken.swap(false, Ordering::Acquire) {
                    std::thread::park();
                }
            }
        }
    }
}
