//! Handling the panics of user code.
//!
//! **Invariant:** whatever a panic carries, taking its text and dropping it never panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The text of a panic, or an empty text if it has none.
pub(crate) fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    drop_quietly(panic);
    text.unwrap_or_default()
}

/// Drops a value of user code, which may panic. The value of that panic may panic again, so it is not
/// dropped.
pub(crate) fn drop_quietly<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        std::mem::forget(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics when it is dropped, with another one that does the same.
    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                std::panic::panic_any(Bomb(self.0 - 1));
            }
        }
    }

    #[test]
    fn a_panic_whose_payload_panics_on_drop_is_dropped_quietly() {
        let panic = catch_unwind(|| std::panic::panic_any(Bomb(3))).expect_err("it panics");
        assert_eq!(panic_text(panic), "");
        let panic = catch_unwind(|| panic!("no {}", 7)).expect_err("it panics");
        assert_eq!(panic_text(panic), "no 7");
    }
}
