//! Times as people write them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A span of time, in the two largest units that say something.
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

pub(crate) fn span_ms(ms: u64) -> String {
    span(Duration::from_millis(ms))
}

/// A point in time, to the second, in UTC.
pub(crate) fn point(ms: u64) -> String {
    let time: SystemTime = UNIX_EPOCH + Duration::from_millis(ms);
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.replace('T', " ").replace('Z', " UTC")
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
            assert_eq!(span_ms(ms), text);
        }
    }

    #[test]
    fn points_are_dates() {
        assert_eq!(point(1_794_711_600_999), "2026-11-15 03:00:00 UTC");
    }
}
