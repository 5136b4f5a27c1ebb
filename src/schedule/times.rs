//! When a periodic entry is due: five cron fields, four nicknames, and fixed intervals.
//!
//! **Invariant:** an entry has one fixed, strictly increasing sequence of due times. It depends
//! on the text, the time zone and the bundled zone database, and on nothing else: not on the
//! machine's clock, not on its zone files, and not on the point from which a caller looks.
//! `after` is the only place that knows the sequence. `latest` and `missed` ask it, and the
//! number of times they ask does not grow with the number of due times they pass over.
//!
//! The five fields are minute, hour, day of month, month and day of week. A field is a list of
//! `*`, `5`, `10-40`, `*/15` and `10-40/5`. Months and weekdays also have names. 0 and 7 are
//! Sunday, and `FRI-SUN` is `5-7`. `5/15` is refused, because cron programs disagree about it:
//! some read `5`, some read `5-59/15`, some report an error.
//!
//! A day must match both day fields if one of them begins with `*` (so `*/2` with `MON` is a
//! Monday with an odd date). If neither does, a match of one is enough.
//!
//! An hour field that begins with `*` goes by elapsed time: the entry is due at each instant
//! whose wall-clock time matches. Any other hour field goes by the calendar: each wall-clock
//! time is due once. One that is repeated is due the first time, and one that is skipped is due
//! at the first instant after the gap.

use jiff::civil::{Date, date};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// The longest text of an entry, in bytes.
const MOST_BYTES: usize = 200;
const MOST_INTERVAL_S: u64 = 366 * 86_400;
const MINUTE_MS: i64 = 60_000;
const DAY_MINUTES: i64 = 24 * 60;
/// More than any zone sets its clock back by.
const LONGEST_REPEAT_MS: i64 = 2 * DAY_MINUTES * MINUTE_MS;
const EPOCH: Date = date(1970, 1, 1);
/// The days of each month in a leap year.
const MONTH_DAYS: [u32; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// When a periodic entry is due.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Times(Rule);

#[derive(Clone, Debug, PartialEq)]
enum Rule {
    /// Multiples of this many milliseconds since 1970.
    Interval(u64),
    Calendar(Calendar),
}

/// The parsed fields. Each set has bit n for value n.
#[derive(Clone, Debug, PartialEq)]
struct Calendar {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Neither day field begins with `*`, so a match of one is enough.
    either_day: bool,
    /// The hour field begins with `*`, so the entry goes by elapsed time.
    elapsed: bool,
    zone: TimeZone,
}

impl Times {
    /// Reads an entry. The zone is an IANA name; an empty one is UTC.
    ///
    /// The error is a sentence without a final stop.
    pub(crate) fn parse(spec: &str, tz: &str) -> Result<Times, String> {
        if spec.len() > MOST_BYTES {
            return Err(format!("the times are longer than {MOST_BYTES} bytes; shorten them"));
        }
        if spec.contains(char::is_control) {
            return Err("the times contain a control character; separate fields with spaces".into());
        }
        let zone = find_zone(tz)?;
        let spec = spec.trim_matches(' ');
        let fields = match spec {
            "@hourly" => "0 * * * *",
            "@daily" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            _ => spec,
        };
        if fields.starts_with('@') {
            return Err(format!(
                "{spec:?} is not known; use @hourly, @daily, @weekly or @monthly, or five fields \
                 such as \"0 0 1 1 *\""
            ));
        }
        match fields.strip_prefix("every ") {
            Some(_) if zone != TimeZone::UTC => Err(format!(
                "an interval counts from 1970-01-01T00:00Z and has no time zone, but {tz:?} was \
                 given; leave the time zone out, or use five fields"
            )),
            Some(length) => Ok(Times(Rule::Interval(parse_interval(length.trim_matches(' '))?))),
            None => Ok(Times(Rule::Calendar(Calendar::parse(fields, zone)?))),
        }
    }

    /// The first due time after `last_ms`, in milliseconds since 1970.
    ///
    /// `None` means never: the next one is beyond the year 9999.
    pub(crate) fn after(&self, last_ms: u64) -> Option<u64> {
        let from = last_ms.checked_add(1)?;
        let due = match &self.0 {
            Rule::Interval(ms) => from.div_ceil(*ms).checked_mul(*ms)?,
            Rule::Calendar(entry) => entry.first_from(from.try_into().ok()?)?.try_into().ok()?,
        };
        (due <= Timestamp::MAX.as_millisecond().unsigned_abs()).then_some(due)
    }

    /// The latest due time after `last_ms` and not after `now_ms`.
    ///
    /// It looks back from `now_ms` in steps that double, and then halves what is left.
    pub(crate) fn latest(&self, last_ms: u64, now_ms: u64) -> Option<u64> {
        let due_after = |ms: u64| self.after(ms).filter(|&due| due <= now_ms);
        // There is no due time from here (exclusive) to now.
        let mut high = now_ms;
        let mut width = 1_000_u64;
        let mut found = loop {
            let low = now_ms.saturating_sub(width).max(last_ms);
            if let Some(due) = due_after(low) {
                break due;
            }
            if low == last_ms {
                return None;
            }
            high = low;
            width = width.saturating_mul(2);
        };
        while let Some(next) = due_after(found) {
            let middle = next + (high - next) / 2;
            match due_after(middle) {
                Some(due) => found = due,
                None => (found, high) = (next, middle),
            }
        }
        Some(found)
    }

    /// The last `most` due times after `last_ms` and not after `now_ms`, oldest first, and
    /// whether there are older ones. The work grows with `most`.
    pub(crate) fn missed(&self, last_ms: u64, now_ms: u64, most: usize) -> (Vec<u64>, bool) {
        // Mostly they are few. Forwards each costs one step, backwards about ten.
        let due = |last: &u64| self.after(*last).filter(|due| *due <= now_ms);
        let few: Vec<u64> =
            std::iter::successors(due(&last_ms), due).take(most.saturating_add(1)).collect();
        if few.len() <= most {
            return (few, false);
        }
        let mut times = Vec::new();
        let mut until = now_ms;
        while times.len() < most {
            let Some(due) = self.latest(last_ms, until) else { break };
            times.push(due);
            until = due - 1;
        }
        times.reverse();
        let more = self.after(last_ms).is_some_and(|due| due <= until);
        (times, more)
    }
}

impl Calendar {
    fn parse(spec: &str, zone: TimeZone) -> Result<Calendar, String> {
        let texts: Vec<&str> = spec.split(' ').filter(|text| !text.is_empty()).collect();
        let &[minute, hour, day, month, weekday] = texts.as_slice() else {
            return Err(format!(
                "five fields are needed (minute, hour, day of month, month, day of week), or \
                 @hourly, @daily, @weekly, @monthly, or an interval such as \"every 90s\", but \
                 this has {}",
                texts.len()
            ));
        };
        let weekdays = WEEKDAY.parse(weekday)?;
        let calendar = Calendar {
            minutes: MINUTE.parse(minute)?,
            hours: HOUR.parse(hour)?,
            days: DAY.parse(day)?,
            months: MONTH.parse(month)?,
            weekdays: (weekdays | weekdays >> 7) & 0x7f,
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
            elapsed: hour.starts_with('*'),
            zone,
        };
        let day_exists = (1..).zip(MONTH_DAYS).any(|(month, last)| {
            has(calendar.months, month) && (1..=last).any(|day| has(calendar.days, day))
        });
        if !day_exists && !calendar.either_day {
            return Err(format!(
                "{spec:?} is never due, because no month it names has a day it names; choose \
                 another day of month or month"
            ));
        }
        Ok(calendar)
    }

    /// The first due time at or after `from`, in milliseconds.
    ///
    /// It goes from one change of the zone's offset to the next. Between two changes the wall
    /// clock runs evenly, so a wall-clock time is an instant plus a constant.
    fn first_from(&self, mut from: i64) -> Option<i64> {
        let mut searched = self.first_wall_minute(from)?;
        let mut found = self.next_match(searched)?;
        loop {
            // A skipped wall-clock time lies before the change, and is due at the change.
            let due = (found * MINUTE_MS - self.offset_ms(from)?).max(from);
            let change = self.zone.following(Timestamp::from_millisecond(from).ok()?).next();
            match change.map(|change| change.timestamp().as_millisecond()) {
                Some(change) if change <= due => from = change,
                _ => return Some(due),
            }
            let wall = self.first_wall_minute(from)?;
            if !(searched..=found).contains(&wall) {
                (searched, found) = (wall, self.next_match(wall)?);
            }
        }
    }

    /// The first whole minute of the wall clock that counts at or after `from`, in minutes since
    /// 1970-01-01T00:00 of the wall clock.
    ///
    /// By elapsed time this is what the wall clock shows. By the calendar, the count goes on
    /// from the highest time before: a repeated time is left out and a skipped one is kept.
    fn first_wall_minute(&self, from: i64) -> Option<i64> {
        let mut first = from + self.offset_ms(if self.elapsed { from } else { from - 1 })?;
        if !self.elapsed {
            // `preceding` of jiff 0.2.39 leaves out some changes; `following` has them all.
            let start = Timestamp::from_millisecond(from - LONGEST_REPEAT_MS).ok()?;
            let changes = self.zone.following(start).map(|change| change.timestamp());
            for change in changes.map(Timestamp::as_millisecond).take_while(|&at| at < from) {
                first = first.max(change + self.offset_ms(change - 1)?);
            }
        }
        Some((first + MINUTE_MS - 1).div_euclid(MINUTE_MS))
    }

    /// How far the wall clock is ahead of UTC.
    fn offset_ms(&self, at: i64) -> Option<i64> {
        let offset = self.zone.to_offset(Timestamp::from_millisecond(at).ok()?);
        Some(i64::from(offset.seconds()) * 1_000)
    }

    /// The first minute of the wall clock at or after `wall` that the fields match.
    fn next_match(&self, wall: i64) -> Option<i64> {
        let days = SignedDuration::from_hours(wall.div_euclid(DAY_MINUTES) * 24);
        let today = EPOCH.checked_add(days).ok()?;
        let mut day = self.next_day(today)?;
        let start = if day == today { wall.rem_euclid(DAY_MINUTES) } else { 0 };
        let mut minute = self.next_minute(u32::try_from(start).ok()?);
        if minute.is_none() {
            day = self.next_day(day.tomorrow().ok()?)?;
            minute = self.next_minute(0);
        }
        Some(day.duration_since(EPOCH).as_hours() * 60 + i64::from(minute?))
    }

    /// The first matching date at or after `day`.
    fn next_day(&self, mut day: Date) -> Option<Date> {
        loop {
            if !has(self.months, day.month().unsigned_abs().into()) {
                day = day.last_of_month();
            } else if self.matches_day(day) {
                return Some(day);
            }
            day = day.tomorrow().ok()?;
        }
    }

    fn matches_day(&self, day: Date) -> bool {
        let by_date = has(self.days, day.day().unsigned_abs().into());
        let by_weekday =
            has(self.weekdays, day.weekday().to_sunday_zero_offset().unsigned_abs().into());
        if self.either_day { by_date || by_weekday } else { by_date && by_weekday }
    }

    /// The first matching minute of a day at or after `start`, in minutes since midnight.
    fn next_minute(&self, start: u32) -> Option<u32> {
        (start / 60..24).filter(|&hour| has(self.hours, hour)).find_map(|hour| {
            let low = if hour == start / 60 { start % 60 } else { 0 };
            (low..60).find(|&minute| has(self.minutes, minute)).map(|minute| hour * 60 + minute)
        })
    }
}

/// What one field takes.
struct Field {
    role: &'static str,
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const MINUTE: Field = Field { role: "minute", low: 0, high: 59, names: &[] };
const HOUR: Field = Field { role: "hour", low: 0, high: 23, names: &[] };
const DAY: Field = Field { role: "day-of-month", low: 1, high: 31, names: &[] };
const MONTH: Field = Field { role: "month", low: 1, high: 12, names: &MONTH_NAMES };
const WEEKDAY: Field = Field { role: "day-of-week", low: 0, high: 7, names: &WEEKDAY_NAMES };
const MONTH_NAMES: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAY_NAMES: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

impl Field {
    fn parse(&self, text: &str) -> Result<u64, String> {
        let mut set = 0;
        for item in text.split(',') {
            let (low, high, step) = self.parse_item(item)?;
            for value in (low..=high).step_by(step) {
                set |= 1 << value;
            }
        }
        Ok(set)
    }

    /// The first value, the last value and the step of one item of the list.
    fn parse_item(&self, item: &str) -> Result<(u32, u32, usize), String> {
        let (role, most) = (self.role, self.high);
        let (range, step) = item.split_once('/').map_or((item, None), |(a, b)| (a, Some(b)));
        let (low, high) = if range == "*" {
            (self.low, self.high)
        } else if let Some((first, last)) = range.split_once('-') {
            let (low, high) = (self.parse_value(first)?, self.parse_value(last)?);
            // SUN is 0, but at the end of a range it is 7.
            let ends_week = last.eq_ignore_ascii_case("SUN") && low > high;
            (low, if ends_week { self.high } else { high })
        } else {
            let value = self.parse_value(range)?;
            if step.is_some() {
                return Err(format!(
                    "{item:?} in the {role} field has a step but no range; write a range such \
                     as \"{value}-{most}\" before the step"
                ));
            }
            (value, value)
        };
        if low > high {
            return Err(format!(
                "{range:?} in the {role} field runs backwards; write the lower value first"
            ));
        }
        match step.map_or(Some(1), parse_number).filter(|step| (1..=most).contains(step)) {
            Some(step) => Ok((low, high, step as usize)),
            None => {
                Err(format!("the step of {item:?} in the {role} field is not from 1 to {most}"))
            }
        }
    }

    fn parse_value(&self, text: &str) -> Result<u32, String> {
        let Field { role, low, high, names } = self;
        let values = (*low..).zip(*names);
        let mut named = values.filter(|(_, name)| name.eq_ignore_ascii_case(text));
        let value = named.next().map(|(value, _)| value).or_else(|| parse_number(text));
        value.filter(|value| (low..=high).contains(&value)).ok_or_else(|| {
            let or_name = match (names.first(), names.last()) {
                (Some(first), Some(last)) => format!(" or a name from {first} to {last}"),
                _ => String::new(),
            };
            format!("{text:?} in the {role} field is not a number from {low} to {high}{or_name}")
        })
    }
}

/// A number without a sign.
fn parse_number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The milliseconds of a length such as `90s` or `1h30m`.
fn parse_interval(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "the interval {text:?} is not a length such as 90s, 15m or 1h30m, with the units d, \
             h, m, s in this order, from 1s to 366d"
        )
    };
    let mut rest = text;
    let mut total_s = 0_u64;
    for (unit, size_s) in [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)] {
        if let Some((number, tail)) = rest.split_once(unit) {
            total_s += u64::from(parse_number(number).ok_or_else(wrong)?) * size_s;
            rest = tail;
        }
    }
    if !rest.is_empty() || !(1..=MOST_INTERVAL_S).contains(&total_s) {
        return Err(wrong());
    }
    Ok(total_s * 1_000)
}

/// The zone with this IANA name, from the database in the binary.
fn find_zone(name: &str) -> Result<TimeZone, String> {
    if name.is_empty() {
        return Ok(TimeZone::UTC);
    }
    let zone = TimeZoneDatabase::bundled().get(name).ok();
    zone.filter(|zone| !zone.is_unknown()).ok_or_else(|| {
        let name: String = name.chars().take(40).collect();
        format!("{name:?} is not a known time zone; use an IANA name such as Europe/Berlin or UTC")
    })
}

fn has(set: u64, value: u32) -> bool {
    set >> value & 1 == 1
}
