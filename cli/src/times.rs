//! Times for people to read.
//!
//! **Invariant:** every time can be written, wherever it comes from.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A span of time, in its two largest units.
pub(crate) fn span(time: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let (ms, seconds) = (time.as_millis() as u64, time.as_secs());
    match ms {
        0 => return "0 s".to_owned(),
        1..1000 => return format!("{ms} ms"),
        1000..10_000 => return format!("{:.1} s", ms as f64 / 1e3),
        _ => {}
    }
    let largest = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let (mut left, mut text) = (seconds, String::new());
    for (unit, name) in UNITS.iter().skip(largest).take(2) {
        let count = left / unit;
        left %= unit;
        if count > 0 {
            let blank = if text.is_empty() { "" } else { " " };
            text.push_str(&format!("{blank}{count} {name}"));
        }
    }
    text
}

/// A point in time, to the second, in UTC.
pub(crate) fn point(time: SystemTime) -> String {
    let mut text = String::new();
    match write!(text, "{}", humantime::format_rfc3339_seconds(time)) {
        Ok(()) => text.replace('T', " ").replace('Z', " UTC"),
        Err(_) => "after the year 9999".to_owned(),
    }
}

/// A point in time, to the second, as the clocks of this zone show it.
pub(crate) fn point_in(time: SystemTime, zone: &str) -> String {
    let there = Timestamp::try_from(time).ok().zip(TimeZone::get(zone).ok());
    match there {
        Some((time, zone)) if zone != TimeZone::UTC => {
            time.to_zoned(zone).strftime("%F %T %:z").to_string()
        }
        _ => point(time),
    }
}

/// A point in time, and how long ago it was.
pub(crate) fn point_ago(time: SystemTime, now: SystemTime) -> String {
    format!("{} ({} ago)", point(time), span(now.duration_since(time).unwrap_or_default()))
}

/// A point in time as it is written in JSON.
pub(crate) fn since_1970_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_like_speech() {
        for (ms, text) in [
            (0, "0 s"),
            (340, "340 ms"),
            (2_940, "2.9 s"),
            (42_000, "42 s"),
            (250_000, "4 min 10 s"),
            (240_999, "4 min"),
            (11_100_000, "3 h 5 min"),
            (183_600_000, "2 d 3 h"),
            (172_805_000, "2 d"),
        ] {
            assert_eq!(span(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn points_are_dates() {
        let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
        assert_eq!(point(at(1_794_711_600_999)), "2026-11-15 03:00:00 UTC");
        assert_eq!(point_ago(at(1000), at(3500)), "1970-01-01 00:00:01 UTC (2.5 s ago)");
        assert_eq!(point(at(u64::MAX)), "after the year 9999");
        assert_eq!(point_in(at(1_794_711_600_999), "Europe/Berlin"), "2026-11-15 04:00:00 +01:00");
        for zone in ["UTC", "Mars/Base"] {
            assert_eq!(point_in(at(1_794_711_600_999), zone), "2026-11-15 03:00:00 UTC");
        }
        assert_eq!(point_in(at(u64::MAX), "Europe/Berlin"), "after the year 9999");
    }
}
