//! Flags and environment → what the library wants, once.

use artel::Config;

use crate::args::{Global, RunArgs};
use crate::exit::Failure;

/// Where the fleet is.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) redis: String,
    pub(crate) fleet: String,
}

/// Flag > environment > default.
pub(crate) fn place(global: &Global) -> Result<Place, Failure> {
    let fleet = global.fleet.clone().unwrap_or_else(|| "artel".to_owned());
    let from_parts = global.host.is_some() || global.port.is_some() || global.db.is_some();
    let redis = match &global.redis {
        Some(url) => url.clone(),
        None if from_parts => format!(
            "redis://{}:{}/{}",
            match global.host.as_deref().unwrap_or("127.0.0.1") {
                host if host.contains(':') => format!("[{host}]"), // an IPv6 address
                host => host.to_owned(),
            },
            global.port.unwrap_or(6379),
            global.db.unwrap_or(0)
        ),
        None => ["ARTEL_REDIS_URL", "REDIS_URL"]
            .iter()
            .find_map(|name| std::env::var(name).ok().filter(|url| !url.is_empty()))
            .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned()),
    };
    Ok(Place { redis, fleet })
}

/// The settings of a member.
pub(crate) fn config(args: &RunArgs) -> Config {
    let mut config = Config::default();
    config.lease = args.lease;
    config.messages_max = args.max_messages;
    config.label = args.label.clone().unwrap_or_else(|| format!("artel-{}", std::process::id()));
    if let Some(interval) = args.interval {
        config.interval = interval;
    }
    if let Some(takeover_timeout) = args.takeover_timeout {
        config.takeover_timeout = takeover_timeout;
    }
    if let Some(concurrency) = args.concurrency {
        config.concurrency = concurrency;
    }
    if let Some(ledger) = args.ledger {
        config.ledger = ledger;
    }
    config
}
