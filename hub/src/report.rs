//! [`HubReport`]: what the subscribers of a hub did since the last report.
//!
//! **Invariant:** a report is published without waiting, and reporting ends with the hub or when its [`Reporting`] is
//! dropped.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::hub::{EventHub, WeakEventHub};
use crate::stats::SubscriberStats;
use crate::topic::Topic;

/// The topic of the reports that [`EventHub::report`] makes.
///
/// ```
/// assert_eq!(artel_hub::REPORTS.key(), "artel-hub/reports");
/// ```
pub const REPORTS: Topic<HubReport> = Topic::json("artel-hub/reports");

/// The shortest time between two reports.
const EVERY_MIN: Duration = Duration::from_millis(10);

/// One subscriber, since the last report.
///
/// ```
/// let report = artel_hub::SubscriberReport::default();
/// assert_eq!((report.lag, report.dropped), (0, 0));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SubscriberReport {
    /// Its name.
    pub name: String,
    /// Events it handled in a second.
    pub rate: f64,
    /// Events that wait for it now.
    pub lag: u64,
    /// Attempts that failed since the last report.
    pub errors: u64,
    /// New handlers it got since the last report.
    pub restarts: u64,
    /// Events it lost since the last report, because its queue was full.
    pub dropped: u64,
}

/// A summary of a hub, for people.
///
/// ```
/// use artel_hub::{Delivery, EventHub, HubReport, REPORTS};
///
/// let hub = EventHub::new();
/// let (told, heard) = std::sync::mpsc::channel();
/// let _screen = hub.subscribe(&REPORTS).name("screen").inline(
///     move |report: Delivery<'_, HubReport>| drop(told.send(report.get().to_string())),
/// )?;
/// let reporting = hub.report(std::time::Duration::from_millis(20))?;
/// assert!(heard.recv()?.starts_with("screen: "));
/// drop(reporting); // ends it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HubReport {
    /// How long it is about, in seconds.
    pub seconds: f64,
    /// Every subscriber, by name.
    pub subscribers: Vec<SubscriberReport>,
}

impl std::fmt::Display for HubReport {
    /// One line for each subscriber.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, one) in self.subscribers.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            write!(f, "{}: {:.1} events/s, {} wait", one.name, one.rate, one.lag)?;
            for (count, what) in
                [(one.errors, "errors"), (one.restarts, "restarts"), (one.dropped, "dropped")]
            {
                if count > 0 {
                    write!(f, ", {count} {what}")?;
                }
            }
        }
        Ok(())
    }
}

/// Reports go on until this is dropped.
///
/// ```
/// # let hub = artel_hub::EventHub::new();
/// let reporting = hub.report(std::time::Duration::from_secs(10))?;
/// drop(reporting);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "reports end when this is dropped"]
pub struct Reporting {
    _over: Sender<()>,
}

/// What was counted at the last report.
type Before = HashMap<String, [u64; 4]>;

fn counted(one: &SubscriberStats) -> [u64; 4] {
    [one.processed, one.errors, one.restarts, one.dropped]
}

/// The difference between two snapshots. A subscriber that is new began at zero.
fn report(now: &[SubscriberStats], before: &mut Before, took: Duration) -> HubReport {
    let seconds = took.as_secs_f64().max(1e-9);
    let mut last = std::mem::take(before);
    let one = |one: &SubscriberStats| {
        let (counts, known) = (counted(one), last.remove(&one.name).unwrap_or_default());
        let more: [u64; 4] = std::array::from_fn(|at| counts[at].saturating_sub(known[at]));
        before.insert(one.name.clone(), counts);
        let [processed, errors, restarts, dropped] = more;
        let (name, rate) = (one.name.clone(), processed as f64 / seconds);
        SubscriberReport { name, rate, lag: one.lag, errors, restarts, dropped }
    };
    HubReport { seconds, subscribers: now.iter().map(one).collect() }
}

impl EventHub {
    /// Publishes a summary on [`REPORTS`] at this interval, until the hub or the result is dropped.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn report(&self, every: Duration) -> std::io::Result<Reporting> {
        let (over, ended) = channel::<()>();
        let (hub, every): (WeakEventHub, _) = (self.downgrade(), every.max(EVERY_MIN));
        let mut before = Before::new();
        report(&self.stats().subscribers, &mut before, every);
        let mut since = Instant::now();
        std::thread::Builder::new().name("artel-hub-report".into()).spawn(move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let Some(hub) = hub.upgrade().filter(|hub| !hub.is_closed()) else { return };
                let report = report(&hub.stats().subscribers, &mut before, since.elapsed());
                since = Instant::now();
                // A hub that is full of others' events gets the next one.
                let _ = hub.try_publish(&REPORTS, report);
            }
        })?;
        Ok(Reporting { _over: over })
    }
}
