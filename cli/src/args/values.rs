//! Parsers for the values of options.

use std::time::{Duration, SystemTime};

use artel::{Backoff, Durability, Error, LaneWeights, Ledger};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::watch::Since;

/// A time such as `500ms`. A bare `0` is a time, too; an option that needs more than zero refuses
/// it later.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    if text.trim_start().starts_with('-') {
        return Err("a time cannot be negative".to_owned());
    }
    humantime::parse_duration(text).map_err(|error| match text.parse::<f64>() {
        Ok(_) => format!("a time needs a unit: try `{text}ms` or `{text}s`"),
        Err(_) => format!("not a time ({error}): try `500ms` or `2s`"),
    })
}

/// When what is told counts as done.
pub(super) fn durability(text: &str) -> Result<Durability, String> {
    text.parse().map_err(|error| match error {
        Error::Config { problem, .. } => problem,
        error => error.to_string(),
    })
}

/// A point in time such as `2026-12-24T18:00:00+01:00`. Without a zone it is UTC.
pub(super) fn point(text: &str) -> Result<SystemTime, String> {
    // As the program prints it.
    let printed =
        text.strip_suffix(" UTC").map(|time| format!("{}Z", time.trim().replacen(' ', "T", 1)));
    let text = printed.as_deref().unwrap_or(text);
    let zoned = text.parse::<Zoned>().map(|time| time.timestamp());
    let time = zoned.or_else(|_| text.parse::<Timestamp>());
    let time = time.or_else(|_| text.parse::<DateTime>()?.to_zoned(TimeZone::UTC).map(Into::into));
    time.map(SystemTime::from).map_err(|error| {
        format!("not a time ({error}): try `2026-12-24T18:00:00Z`, or `--in 10m` for a span")
    })
}

/// A time until now such as `1h`, or a point in time.
pub(super) fn since(text: &str) -> Result<Since, String> {
    match time(text) {
        Ok(time) => Ok(Since::Ago(time)),
        Err(error) => point(text)
            .map(Since::At)
            .map_err(|_| format!("{error}, or a point in time such as `2026-12-24T18:00:00Z`")),
    }
}

/// A back-off such as `5s..1h`, or one time for a fixed one.
pub(super) fn backoff(text: &str) -> Result<Backoff, String> {
    match text.split_once("..") {
        Some((first, most)) => Ok(Backoff::exponential(time(first)?, time(most)?)),
        None => Ok(Backoff::fixed(time(text)?)),
    }
}

pub(super) fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "true" | "1" => Ok(true),
        "no" | "false" | "0" => Ok(false),
        _ => Err("must be yes, no, true, false, 1 or 0".to_owned()),
    }
}

pub(super) fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        Ok(_) => Err("must be between 0 and 1, such as 0.05 for 5 %".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn at_least_one(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("not a whole number".to_owned()),
    }
}

/// A number of bytes such as `10MB`, `512 KiB` or `4096`.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("KB", 1_000),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let text = text.trim();
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(unit));
    let (digits, factor) = match unit {
        Some((unit, factor)) => (text.trim_end_matches(unit).trim(), *factor),
        None => (text, 1),
    };
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)) {
        Some(0) => Err("must be at least 1 byte".to_owned()),
        Some(bytes) => Ok(bytes),
        None => Err("not a size: try `10MB` or `512KiB`".to_owned()),
    }
}

pub(super) fn ledger(text: &str) -> Result<Ledger, String> {
    match text {
        "off" => Ok(Ledger::Off),
        "all" => Ok(Ledger::All),
        _ => match text.parse::<u64>() {
            Ok(n @ 1..=1_000_000_000) => Ok(Ledger::Last(n)),
            _ => Err("must be off, all, or a number of entries".to_owned()),
        },
    }
}

/// Weights such as `high=10,low=2`. Lanes that are not named keep their default weight.
pub(super) fn weights(text: &str) -> Result<LaneWeights, String> {
    let mut weights = LaneWeights::default();
    for part in text.split(',') {
        let (lane, weight) = part.split_once('=').unwrap_or((part, ""));
        let slot = match lane.trim() {
            "high" => &mut weights.high,
            "generated" => &mut weights.generated,
            "normal" => &mut weights.normal,
            "low" => &mut weights.low,
            _ => return Err("must name high, generated, normal or low: try `low=2`".to_owned()),
        };
        *slot = weight.trim().parse().map_err(|_| format!("{lane} needs a number: `{lane}=2`"))?;
    }
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_units_and_say_so() {
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("0"), Ok(Duration::ZERO));
        assert!(time("5").expect_err("no unit").contains("5ms"));
        assert!(time("-1s").expect_err("negative").contains("negative"));
    }

    #[test]
    fn a_point_in_time_may_have_an_offset_or_a_zone() {
        let utc = point("2026-12-24T17:00:00Z").expect("a time");
        for same in [
            "2026-12-24T18:00:00+01:00",
            "2026-12-24 17:00:00 UTC",
            "2026-12-24T11:30:00-05:30",
            "2026-12-24 17:00:00",
            "2026-12-24 17:00Z",
            "2026-12-24T18:00[Europe/Berlin]",
        ] {
            assert_eq!(point(same), Ok(utc), "{same}");
        }
        for wrong in ["", "tomorrow", "18:00", "2026-12-24T18:00:00+1x", "2026-12-24T25:00:00Z"] {
            assert!(point(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn weights_that_are_not_named_stay() {
        let expected = LaneWeights { low: 4, ..LaneWeights::default() };
        assert_eq!(weights("low=4"), Ok(expected));
        assert!(weights("slow=4").is_err() && weights("low").is_err());
    }
}
