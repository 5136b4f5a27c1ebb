//! [`Trends`]: the counts of a fleet over the last minutes.
//!
//! **Invariant:** they cost Redis one script every [`EVERY`], whoever looks, and what is kept is bounded. A moment at which
//! Redis did not answer is missing, not made up.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use artel::{Fleet, FleetCounts};
use axum::response::Response;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::answer::{Problem, document};
use super::ask::Ask;
use crate::times::since_1970_ms;

const EVERY: Duration = Duration::from_secs(5);
/// Fifteen minutes.
const POINTS: usize = 180;

/// The counts of one fleet, the oldest first.
#[derive(Clone)]
pub(super) struct Trends {
    points: Arc<Mutex<VecDeque<FleetCounts>>>,
}

impl Trends {
    /// Begins to read them, until `over`.
    pub(super) fn start(fleet: Fleet, over: CancellationToken) -> Trends {
        let trends = Trends { points: Arc::default() };
        let kept = trends.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(EVERY);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = over.cancelled() => return,
                }
                if let Ok(Ok(counts)) = tokio::time::timeout(EVERY, fleet.counts()).await {
                    kept.add(counts);
                }
            }
        });
        trends
    }

    fn add(&self, counts: FleetCounts) {
        let mut points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        // The clock of Redis was set back: a line must not run backwards.
        if points.back().is_some_and(|last| last.time >= counts.time) {
            points.clear();
        }
        if points.len() == POINTS {
            points.pop_front();
        }
        points.push_back(counts);
    }

    /// A list for each count, and when they were read.
    fn document(&self) -> Value {
        let points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        let list = |value: &dyn Fn(&FleetCounts) -> u64| -> Value {
            points.iter().map(value).collect::<Vec<u64>>().into()
        };
        json!({
            "v": 1,
            "every_ms": EVERY.as_millis() as u64,
            "time_ms": list(&|point| since_1970_ms(point.time)),
            "generated": list(&|point| point.messages.generated),
            "sent": list(&|point| point.messages.sent),
            "done": list(&|point| point.messages.done),
            "failed": list(&|point| point.messages.failed),
            "waiting": list(&|point| point.messages.waiting),
            "scheduled": list(&|point| point.messages.scheduled),
            "oldest_waiting_ms":
                list(&|point| point.oldest_waiting.unwrap_or_default().as_millis() as u64),
            "members": list(&|point| point.members),
            "stored_errors": list(&|point| point.stored_errors),
        })
    }
}

pub(super) async fn trends(ask: Ask) -> Result<Response, Problem> {
    ask.params.only(&[])?;
    Ok(document(&ask.served().trends.document()))
}
