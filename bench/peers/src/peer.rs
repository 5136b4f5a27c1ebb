//! The peers, and what each of them can be asked to do.

use std::time::Duration;

use artel_bench::load::{BATCHES, percentiles};
use artel_bench::raw::{self, Push};

use crate::external::{BULLMQ_NODE, CELERY, DRAMATIQ, External, RQ};
use crate::load::{LOOPS, Ran, Result};
use crate::{apalis, artel, bullmq, sidekiq};

/// A queue on Redis.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Peer {
    /// A list, and no promise: what is popped is lost if its worker dies.
    Bare,
    /// A raw loop that leases and fences its batches.
    Fenced,
    Artel,
    Bullmq,
    Apalis,
    Sidekiq,
    External(&'static External),
}

impl Peer {
    /// All of them, in the order of the table.
    pub(crate) const ALL: [Peer; 10] = [
        Peer::Bare,
        Peer::Fenced,
        Peer::Artel,
        Peer::Bullmq,
        Peer::Apalis,
        Peer::Sidekiq,
        Peer::External(&BULLMQ_NODE),
        Peer::External(&CELERY),
        Peer::External(&DRAMATIQ),
        Peer::External(&RQ),
    ];

    /// Its name in arguments and in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Bare => "bare",
            Peer::Fenced => "fenced",
            Peer::Artel => "artel",
            Peer::Bullmq => "bullmq-official",
            Peer::Apalis => "apalis",
            Peer::Sidekiq => "rusty-sidekiq",
            Peer::External(external) => external.name,
        }
    }

    /// The peer with this name.
    pub(crate) fn named(name: &str) -> Option<Peer> {
        Peer::ALL.into_iter().find(|peer| peer.name() == name)
    }

    pub(crate) fn is_installed(self) -> bool {
        match self {
            Peer::External(external) => external.is_installed(),
            _ => true,
        }
    }

    /// Messages per round. Apalis fails above a backlog of about 8,000.
    pub(crate) fn count(self) -> usize {
        match self {
            Peer::Bare | Peer::Fenced | Peer::Artel => 200_000,
            Peer::Bullmq | Peer::Sidekiq => 20_000,
            Peer::Apalis => 5_000,
            Peer::External(external) => external.count,
        }
    }

    /// Adds this many messages.
    pub(crate) async fn fill(self, url: &str, count: usize) -> Result<Ran> {
        let push = |how| raw::push(url, count, BATCHES[0], LOOPS, how);
        let took = match self {
            Peer::Bare => push(Push::Bare).await?,
            Peer::Fenced => push(Push::Fenced).await?,
            Peer::Artel => artel::fill(url, count).await?,
            Peer::Bullmq => bullmq::fill(url, count).await?,
            Peer::Apalis => apalis::fill(url, count).await?,
            Peer::Sidekiq => sidekiq::fill(url, count).await?,
            Peer::External(external) => return external.run("fill", url, count).await,
        };
        Ok(Ran::here(took, count))
    }

    /// Handles all waiting messages, timed since the first handler was called.
    pub(crate) async fn work(self, url: &str, count: usize) -> Result<Ran> {
        let drain = async |how| {
            let took = raw::drain(url, count, BATCHES[0], how).await?;
            Ok(Ran::here(took, count))
        };
        match self {
            Peer::Bare => drain(Push::Bare).await,
            Peer::Fenced => drain(Push::Fenced).await,
            Peer::Artel => artel::work(url, count).await,
            Peer::Bullmq => bullmq::work(url, count).await,
            Peer::Apalis => apalis::work(url, count).await,
            Peer::Sidekiq => sidekiq::work(url, count).await,
            Peer::External(external) => external.run("work", url, count).await,
        }
    }

    /// From just before a send to the start of the handler: p50 and p99, in milliseconds.
    pub(crate) async fn latency(self, url: &str) -> Result<(f64, f64)> {
        let latencies: Vec<Duration> = match self {
            Peer::Bare => raw::bare_latency(url).await?,
            Peer::Fenced => raw::latency(url).await?,
            Peer::Artel => artel::latency(url).await?,
            Peer::Bullmq => bullmq::latency(url).await?,
            Peer::Apalis => apalis::latency(url).await?,
            Peer::Sidekiq => sidekiq::latency(url).await?,
            Peer::External(external) => return external.latency(url).await,
        };
        Ok(percentiles(&latencies))
    }
}
