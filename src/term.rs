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
    /// A leadership term: the fencing token that Redis grants with a lease. A newer term compares
    /// greater, so a stale generator is recognised without a clock.
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # let fleet = artel::Fleet::connect(url, "orders").await?;
    /// use artel::{Role, Tick};
    ///
    /// let member = fleet.join().generate(|tick: Tick| async move { tick.term.to_string() }).start().await?;
    /// while member.role() != Role::Generator {
    ///     tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    /// }
    /// let status = fleet.status().await?;
    /// assert!(status.generator.is_some_and(|leader| leader.term.get() > 0));
    /// # member.shutdown().await;
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Term
}

fencing_token! {
    /// The fencing token that Redis grants with a lock. The token of a later holder compares greater,
    /// so a resource that remembers the highest token it has seen can refuse a holder that comes too
    /// late.
    ///
    /// ```
    /// # let server = artel_rig::Server::any();
    /// # let url = server.url();
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # let fleet = artel::Fleet::connect(url, "orders").await?;
    /// let member = fleet.join().start().await?;
    /// let lock = member.lock("nightly")?;
    /// let guard = lock.acquire().await?;
    /// let first = guard.token();
    /// guard.release().await?;
    /// assert!(lock.acquire().await?.token() > first);
    /// # member.shutdown().await;
    /// # Ok::<(), artel::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Token
}
