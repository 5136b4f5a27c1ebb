//! Times in the documented JSON, and [`TimeLeft`].
//!
//! **Invariant:** a time is milliseconds since 1970 or RFC 3339 in UTC, a span is milliseconds. Numbers
//! from elsewhere that are not a span are refused, and never panic.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How long a session lasts unless it is refreshed, or for how long it has been overdue.
///
/// Serialized, it is a number of milliseconds, negative if it is overdue.
///
/// ```
/// # use std::time::Duration;
/// use artel::TimeLeft;
///
/// let left = TimeLeft::Overdue(Duration::from_millis(40));
/// assert!(left.is_overdue());
/// assert_eq!(left.as_duration(), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TimeLeft {
    /// The session lasts for this long.
    For(Duration),
    /// The session should have been refreshed this long ago: its member is dead, or late.
    Overdue(Duration),
}

impl TimeLeft {
    /// From the current time and a deadline, in milliseconds of Redis time.
    pub(crate) fn between(now_ms: i64, deadline_ms: i64) -> TimeLeft {
        let span = Duration::from_millis(deadline_ms.abs_diff(now_ms));
        if deadline_ms < now_ms { TimeLeft::Overdue(span) } else { TimeLeft::For(span) }
    }

    /// Has the deadline passed?
    pub fn is_overdue(self) -> bool {
        matches!(self, TimeLeft::Overdue(_))
    }

    /// How long the session lasts; zero if it is overdue.
    pub fn as_duration(self) -> Duration {
        match self {
            TimeLeft::For(left) => left,
            TimeLeft::Overdue(_) => Duration::ZERO,
        }
    }
}

impl Serialize for TimeLeft {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ms = |span: &Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        serializer.serialize_i64(match self {
            TimeLeft::For(left) => ms(left),
            TimeLeft::Overdue(since) => -ms(since),
        })
    }
}

/// Redis time in milliseconds as a system time.
pub(crate) fn at_ms(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

/// A time in milliseconds since 1970.
pub(crate) fn since_1970_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A time in RFC 3339.
pub(crate) mod point_text {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&rfc3339(since_1970_ms(*time)))
    }
}

/// A time in both forms: the fields `time` and `time_ms`.
pub(crate) mod point_both {
    use super::*;

    #[derive(Serialize)]
    struct Both {
        time: String,
        time_ms: u64,
    }

    pub(crate) fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        let time_ms = since_1970_ms(*time);
        Both { time: rfc3339(time_ms), time_ms }.serialize(to)
    }
}

/// A span in whole milliseconds.
pub(crate) mod span_ms {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(span.as_millis() as u64)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// A span in whole milliseconds, if there is one.
pub(crate) mod span_ms_option {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(|span| span.as_millis() as u64).serialize(to)
    }
}

/// A span in milliseconds, to the microsecond.
pub(crate) mod fine_ms {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(span.as_micros() as f64 / 1e3)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        f64::deserialize(from).and_then(super::from_fine_ms)
    }
}

/// A span in milliseconds, to the microsecond, if there is one.
pub(crate) mod fine_ms_option {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(|span| span.as_micros() as f64 / 1e3).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Option::<f64>::deserialize(from)?.map(super::from_fine_ms).transpose()
    }
}

fn from_fine_ms<E: serde::de::Error>(ms: f64) -> Result<Duration, E> {
    let micros = Duration::try_from_secs_f64(ms / 1e3).map_err(E::custom)?.as_secs_f64() * 1e6;
    Ok(Duration::from_micros(micros.round() as u64))
}

/// Milliseconds since 1970 as RFC 3339 in UTC.
fn rfc3339(ms: u64) -> String {
    let (days, second) = (ms / 86_400_000, ms / 1000 % 86_400);
    // Days since 0000-03-01, so that the leap day is the last of its year.
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!(
        "{:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        year + era * 400 + carry,
        second / 3600,
        second / 60 % 60,
        second % 60,
        ms % 1000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_people_read_them() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(rfc3339(951_825_600_000), "2000-02-29T12:00:00.000Z");
        assert_eq!(rfc3339(1_794_711_600_000), "2026-11-15T03:00:00.000Z");
    }

    #[test]
    fn spans_from_elsewhere_are_refused_if_they_are_none() {
        let read = from_fine_ms::<serde::de::value::Error>;
        assert_eq!(read(0.125), Ok(Duration::from_micros(125)));
        for odd in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert!(read(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn an_overdue_session_has_no_time_left() {
        assert_eq!(TimeLeft::between(100, 100), TimeLeft::For(Duration::ZERO));
        let overdue = TimeLeft::between(i64::MAX, i64::MIN);
        assert!(overdue.is_overdue() && overdue.as_duration().is_zero());
        let json = |left| serde_json::to_string(&left).expect("a number");
        assert_eq!(json(TimeLeft::between(140, 100)), "-40");
        assert_eq!(json(TimeLeft::between(100, 140)), "40");
    }
}
