//! Shuttle's primitives in the place of the real ones: every use of them is a point where another
//! thread may run.

pub(crate) use shuttle::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use std::sync::Arc;

pub(crate) const SEGMENT: usize = 2;
pub(crate) const STRETCH: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

pub(crate) type MutexGuard<'a, T> = shuttle::sync::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("not poisoned")
    }
}

/// The real thing, behind a flag that shuttle knows.
#[derive(Debug)]
pub(crate) struct Slot<V> {
    set: AtomicBool,
    value: std::sync::OnceLock<V>,
}

impl<V> Slot<V> {
    pub(crate) fn new() -> Slot<V> {
        Slot { set: AtomicBool::new(false), value: std::sync::OnceLock::new() }
    }

    pub(crate) fn set(&self, value: V) {
        let _ = self.value.set(value);
        self.set.store(true, Ordering::Release);
    }

    pub(crate) fn get(&self) -> Option<&V> {
        self.set.load(Ordering::Acquire).then(|| self.value.get())?
    }
}
