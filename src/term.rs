//! [`Term`] and [`Token`]: the fencing tokens of the lease and of locks.

use std::fmt;
use std::num::NonZeroU64;

macro_rules! fencing_token {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, serde::Serialize, serde::Deserialize,
        )]
        pub struct $name(NonZeroU64);

        impl $name {
            pub(crate) fn parse(text: &str) -> Option<$name> {
                text.parse().ok().and_then(NonZeroU64::new).map($name)
            }

            /// The token as a number: microseconds of Redis time when it was granted, or more.
            pub fn get(self) -> u64 {
                self.0.get()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

fencing_token! {
    /// A leadership term: the fencing token Redis grants with a lease. A newer term compares
    /// greater, so a stale generator is recognised without asking any clock.
    Term
}

fencing_token! {
    /// The fencing token Redis grants with a lock. A later holder's token compares greater, so a
    /// resource that remembers the highest it has seen can refuse a holder that came too late.
    Token
}
