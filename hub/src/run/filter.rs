//! Filters: which events of its keys a subscriber wants.
//!
//! **Invariant:** filters run in the subscriber's context, in the order in which they were added.
//! Each filter sees only events that passed the filters before it. A failing filter is an error of
//! its subscriber only.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use serde_json::Value;

use crate::event::AnyEvent;
use crate::key::{KeyError, Pattern};
use crate::run::handler::HandlerError;

const DAY: u64 = 86_400;

/// A filter. If a runner hangs, the next runner uses a copy.
trait Check<T>: Send {
    fn ask(&mut self, event: &AnyEvent, payload: &T) -> Answer;
    fn copy(&self) -> Box<dyn Check<T>>;
}

impl<T, F> Check<T> for F
where
    F: FnMut(&AnyEvent, &T) -> Answer + Clone + Send + 'static,
{
    #[inline]
    fn ask(&mut self, event: &AnyEvent, payload: &T) -> Answer {
        self(event, payload)
    }

    fn copy(&self) -> Box<dyn Check<T>> {
        Box::new(self.clone())
    }
}

/// Two filters: the second is asked only if the first accepts.
struct Both<T>(Box<dyn Check<T>>, Box<dyn Check<T>>);

impl<T: 'static> Check<T> for Both<T> {
    fn ask(&mut self, event: &AnyEvent, payload: &T) -> Answer {
        match self.0.ask(event, payload) {
            Answer::Wanted => self.1.ask(event, payload),
            answer => answer,
        }
    }

    fn copy(&self) -> Box<dyn Check<T>> {
        Box::new(Both(self.0.copy(), self.1.copy()))
    }
}

/// The answer of a filter. Not a `Result<bool, _>`, because this fits into registers.
pub(crate) enum Answer {
    Wanted,
    Unwanted,
    Failed(Box<HandlerError>),
}

impl From<bool> for Answer {
    #[inline]
    fn from(wanted: bool) -> Answer {
        if wanted { Answer::Wanted } else { Answer::Unwanted }
    }
}

impl From<Result<bool, HandlerError>> for Answer {
    fn from(result: Result<bool, HandlerError>) -> Answer {
        match result {
            Ok(wanted) => wanted.into(),
            Err(error) => Answer::Failed(Box::new(error)),
        }
    }
}

/// All filters of one subscriber.
pub(crate) struct Filters<T> {
    check: Option<Box<dyn Check<T>>>,
}

impl<T: 'static> Filters<T> {
    pub(crate) fn new() -> Filters<T> {
        Filters { check: None }
    }

    pub(crate) fn add<F>(&mut self, check: F)
    where
        F: FnMut(&AnyEvent, &T) -> Answer + Clone + Send + 'static,
    {
        self.check = Some(match self.check.take() {
            None => Box::new(check),
            Some(first) => Box::new(Both(first, Box::new(check))),
        });
    }

    /// A copy of the filters as they were before the first event.
    pub(crate) fn copy(&self) -> Filters<T> {
        Filters { check: self.check.as_ref().map(|check| check.copy()) }
    }

    pub(crate) fn add_pattern(&mut self, pattern: &str) -> Result<(), KeyError> {
        let pattern = Pattern::new(pattern)?;
        self.add(move |event, _| pattern.matches(event.key()).into());
        Ok(())
    }

    pub(crate) fn add_field(&mut self, path: &str, value: Value) {
        // A name may contain a slash or a tilde, which are special in a JSON pointer.
        let names = path.split('.').map(|name| name.replace('~', "~0").replace('/', "~1"));
        let pointer: String = names.flat_map(|name| ["/".to_string(), name]).collect();
        self.add(move |event, _| match event.json() {
            Some(json) => (json.pointer(&pointer) == Some(&value)).into(),
            None => {
                Answer::Failed(Box::new(HandlerError::skip(match event.meta().channel.codec() {
                    None => "a field filter needs a topic declared with Topic::json",
                    Some(_) => "a field filter needs a payload that can be encoded",
                })))
            }
        });
    }

    pub(crate) fn add_hours(&mut self, hours: Hours) {
        self.add(move |event, _| hours.contain(event.at()).into());
    }

    pub(crate) fn add_rate(&mut self, rate: Rate) {
        let limiter: Arc<DefaultDirectRateLimiter> = Arc::new(RateLimiter::direct(rate.quota));
        self.add(move |_, _| limiter.check().is_ok().into());
    }

    #[inline]
    pub(crate) fn ask(&mut self, event: &AnyEvent, payload: &T) -> Answer {
        match &mut self.check {
            None => Answer::Wanted,
            Some(check) => check.ask(event, payload),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.check.is_none()
    }
}

/// Hours of the day, in UTC unless an offset is set. They may include midnight.
///
/// ```
/// use artel_hub::Hours;
///
/// let office = Hours::between((8, 0), (17, 30)).expect("times of day").east_of_utc_minutes(60);
/// let night = Hours::between((22, 0), (6, 0)).expect("times of day");
/// assert!(night.contain(std::time::SystemTime::UNIX_EPOCH)); // midnight
/// assert!(!office.contain(std::time::SystemTime::UNIX_EPOCH));
/// assert!(Hours::between((24, 0), (6, 0)).is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    from: u64,
    until: u64,
    east: i64,
}

impl Hours {
    /// From one (hour, minute) up to another, exclusive. `None` if one of them is not a time of
    /// day. Two equal times mean the whole day.
    pub fn between(from: (u8, u8), until: (u8, u8)) -> Option<Hours> {
        let seconds = |(hour, minute): (u8, u8)| {
            (hour < 24 && minute < 60).then(|| u64::from(hour) * 3600 + u64::from(minute) * 60)
        };
        Some(Hours { from: seconds(from)?, until: seconds(until)?, east: 0 })
    }

    /// For local time that is this many minutes ahead of UTC.
    pub fn east_of_utc_minutes(mut self, minutes: i32) -> Hours {
        self.east = i64::from(minutes) * 60;
        self
    }

    /// Whether this moment is within the hours.
    pub fn contain(&self, at: SystemTime) -> bool {
        let seconds = match at.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => since.as_secs() as i64,
            Err(before) => -(before.duration().as_secs() as i64),
        };
        let time = (seconds + self.east).rem_euclid(DAY as i64) as u64;
        match self.from < self.until {
            true => (self.from..self.until).contains(&time),
            false => time >= self.from || time < self.until,
        }
    }
}

/// How many events a subscriber takes per unit of time. Other events are skipped and counted as
/// filtered.
///
/// ```
/// use artel_hub::{Delivery, EventHub, Rate, Topic};
/// use std::time::Duration;
/// const ALARMS: Topic<u32> = Topic::new("alarms");
///
/// let hub = EventHub::new();
/// let hourly = Rate::one_in(Duration::from_secs(3600)).expect("not zero").burst(2);
/// let pager = hub.subscribe(&ALARMS).rate(hourly).inline(|_: Delivery<'_, u32>| ())?;
/// for alarm in 1..=5 {
///     hub.blocking_publish(&ALARMS, alarm)?;
/// }
/// assert_eq!((pager.stats().processed, pager.stats().filtered), (2, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    quota: Quota,
}

impl Rate {
    /// This many per second, and as many in one burst. 0 counts as 1.
    pub fn per_second(events: u32) -> Rate {
        Rate { quota: Quota::per_second(at_least_one(events)) }
    }

    /// This many per minute, and as many in one burst. 0 counts as 1.
    pub fn per_minute(events: u32) -> Rate {
        Rate { quota: Quota::per_minute(at_least_one(events)) }
    }

    /// One per this duration. `None` if the duration is zero.
    pub fn one_in(time: Duration) -> Option<Rate> {
        Some(Rate { quota: Quota::with_period(time)? })
    }

    /// The maximum number of events in one burst. 0 counts as 1.
    pub fn burst(mut self, events: u32) -> Rate {
        self.quota = self.quota.allow_burst(at_least_one(events));
        self
    }
}

fn at_least_one(events: u32) -> NonZeroU32 {
    NonZeroU32::new(events).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hour: u64, minute: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(20_000 * DAY + hour * 3600 + minute * 60)
    }

    #[test]
    fn hours_may_pass_midnight() {
        let office = Hours::between((8, 0), (17, 30)).expect("hours");
        assert!(office.contain(at(8, 0)) && office.contain(at(17, 29)));
        assert!(!office.contain(at(7, 59)) && !office.contain(at(17, 30)));
        let night = Hours::between((22, 0), (6, 0)).expect("hours");
        assert!(night.contain(at(23, 0)) && night.contain(at(5, 59)) && night.contain(at(0, 0)));
        assert!(!night.contain(at(6, 0)) && !night.contain(at(12, 0)));
        let all = Hours::between((9, 0), (9, 0)).expect("hours");
        assert!(all.contain(at(9, 0)) && all.contain(at(8, 59)));
        assert!(Hours::between((8, 60), (9, 0)).is_none());
    }

    #[test]
    fn hours_are_those_of_the_place() {
        let office = Hours::between((8, 0), (9, 0)).expect("hours").east_of_utc_minutes(120);
        assert!(office.contain(at(6, 30)) && !office.contain(at(8, 30)));
        let west = Hours::between((20, 0), (21, 0)).expect("hours").east_of_utc_minutes(-300);
        assert!(west.contain(at(1, 30)));
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(3600);
        assert!(Hours::between((23, 0), (23, 30)).expect("hours").contain(before));
    }
}
