//! The primitives below the log, the queue and the signals: what the models replace.
//!
//! `tests/models` compiles the log, the queue and what is below them again, with a
//! module of this name made of shuttle's primitives, and runs them under very many schedules.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Events per segment of a log: what a reader reads without the lock. Small in the models.
pub(crate) const SEGMENT: usize = 256;
/// Events a reader takes before it lets others run. Small in the models.
pub(crate) const STRETCH: usize = 1024;

/// A lock without poisoning: no user code ever runs while one is held.
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

/// A place that is written once and read by many without a lock.
#[derive(Debug)]
pub(crate) struct Slot<V>(std::sync::OnceLock<V>);

impl<V> Slot<V> {
    pub(crate) fn new() -> Slot<V> {
        Slot(std::sync::OnceLock::new())
    }

    /// Fills an empty slot; a full one stays as it is.
    pub(crate) fn set(&self, value: V) {
        let _ = self.0.set(value);
    }

    pub(crate) fn get(&self) -> Option<&V> {
        self.0.get()
    }
}
