//! The synchronization primitives below the log, the queue and the signals. The models replace
//! them.
//!
//! `tests/models` compiles the log, the queue and the modules below them a second time. There, a
//! module of this name provides shuttle's primitives, and the models run under very many schedules.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Events per segment of a log. A reader reads a segment without the lock. Small in the models.
pub(crate) const SEGMENT: usize = 256;
/// How many events a reader takes before it lets others run. Small in the models.
pub(crate) const STRETCH: usize = 1024;

/// A lock without poisoning. User code never runs while it is held.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

pub(crate) type MutexGuard<'a, T> = std::sync::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A cell that is written once and read by many threads without a lock.
#[derive(Debug)]
pub(crate) struct Slot<V>(std::sync::OnceLock<V>);

impl<V> Slot<V> {
    pub(crate) fn new() -> Slot<V> {
        Slot(std::sync::OnceLock::new())
    }

    /// Fills an empty slot. A full slot stays unchanged.
    pub(crate) fn set(&self, value: V) {
        let _ = self.0.set(value);
    }

    pub(crate) fn get(&self) -> Option<&V> {
        self.0.get()
    }
}
