//! Tests of the due times. The table was computed with Python's zoneinfo, minute by minute.

#![allow(clippy::unwrap_used)]

use super::*;

pub(super) fn parse(spec: &str, zone: &str) -> Times {
    Times::parse(spec, zone).unwrap_or_else(|error| panic!("{spec} {zone}: {error}"))
}

fn refusal(spec: &str, zone: &str) -> String {
    match Times::parse(spec, zone) {
        Ok(times) => panic!("{spec:?} {zone:?} is accepted: {times:?}"),
        Err(error) => error,
    }
}

pub(super) fn ms(rfc3339: &str) -> u64 {
    let ts: Timestamp = rfc3339.parse().unwrap_or_else(|error| panic!("{rfc3339}: {error}"));
    ts.as_millisecond().try_into().unwrap()
}

pub(super) fn show(ms: u64) -> String {
    Timestamp::from_millisecond(ms.try_into().unwrap()).unwrap().to_string()
}

/// Asserts that the due times after `start` begin with these.
fn assert_due(spec: &str, zone: &str, start: &str, expected: &str) {
    let times = parse(spec, zone);
    let mut last = ms(start);
    for expected in expected.split_whitespace() {
        let due = times.after(last).unwrap();
        assert_eq!(show(due), show(ms(expected)), "{spec} {zone} after {}", show(last));
        last = due;
    }
}

/// Zone, fields, start (exclusive), due times.
#[rustfmt::skip]
const TABLE: &[(&str, &str, &str, &str)] = &[
    ("Europe/Berlin", "*/15 * * * *", "2024-03-31T01:30+01:00",
     "2024-03-31T01:45+01:00 2024-03-31T03:00+02:00 2024-03-31T03:15+02:00 \
      2024-03-31T03:30+02:00"),
    ("Europe/Berlin", "30 2 * * *", "2024-03-30T00:00+01:00",
     "2024-03-30T02:30+01:00 2024-03-31T03:00+02:00 2024-04-01T02:30+02:00"),
    ("Europe/Berlin", "0 0 * * *", "2024-03-30T00:00+01:00",
     "2024-03-31T00:00+01:00 2024-04-01T00:00+02:00"),
    ("Europe/Berlin", "*/15 * * * *", "2024-10-27T01:45+02:00",
     "2024-10-27T02:00+02:00 2024-10-27T02:15+02:00 2024-10-27T02:30+02:00 \
      2024-10-27T02:45+02:00 2024-10-27T02:00+01:00 2024-10-27T02:15+01:00 \
      2024-10-27T02:30+01:00 2024-10-27T02:45+01:00 2024-10-27T03:00+01:00 \
      2024-10-27T03:15+01:00"),
    ("Europe/Berlin", "30 2 * * *", "2024-10-26T00:00+02:00",
     "2024-10-26T02:30+02:00 2024-10-27T02:30+02:00 2024-10-28T02:30+01:00"),
    ("Europe/Berlin", "0 0 * * *", "2024-10-26T00:00+02:00",
     "2024-10-27T00:00+02:00 2024-10-28T00:00+01:00"),
    ("America/New_York", "*/15 * * * *", "2025-03-09T01:30-05:00",
     "2025-03-09T01:45-05:00 2025-03-09T03:00-04:00 2025-03-09T03:15-04:00 \
      2025-03-09T03:30-04:00"),
    ("America/New_York", "30 2 * * *", "2025-03-08T00:00-05:00",
     "2025-03-08T02:30-05:00 2025-03-09T03:00-04:00 2025-03-10T02:30-04:00"),
    ("America/New_York", "0 0 * * *", "2025-03-08T00:00-05:00",
     "2025-03-09T00:00-05:00 2025-03-10T00:00-04:00"),
    ("America/New_York", "*/15 * * * *", "2025-11-02T00:45-04:00",
     "2025-11-02T01:00-04:00 2025-11-02T01:15-04:00 2025-11-02T01:30-04:00 \
      2025-11-02T01:45-04:00 2025-11-02T01:00-05:00 2025-11-02T01:15-05:00 \
      2025-11-02T01:30-05:00 2025-11-02T01:45-05:00 2025-11-02T02:00-05:00 \
      2025-11-02T02:15-05:00"),
    ("America/New_York", "30 2 * * *", "2025-11-01T00:00-04:00",
     "2025-11-01T02:30-04:00 2025-11-02T02:30-05:00 2025-11-03T02:30-05:00"),
    ("America/New_York", "0 0 * * *", "2025-11-01T00:00-04:00",
     "2025-11-02T00:00-04:00 2025-11-03T00:00-05:00"),
    ("Australia/Lord_Howe", "*/15 * * * *", "2024-10-06T01:30+10:30",
     "2024-10-06T01:45+10:30 2024-10-06T02:30+11:00 2024-10-06T02:45+11:00 \
      2024-10-06T03:00+11:00"),
    ("Australia/Lord_Howe", "30 2 * * *", "2024-10-05T00:00+10:30",
     "2024-10-05T02:30+10:30 2024-10-06T02:30+11:00 2024-10-07T02:30+11:00"),
    ("Australia/Lord_Howe", "0 0 * * *", "2024-10-05T00:00+10:30",
     "2024-10-06T00:00+10:30 2024-10-07T00:00+11:00"),
    ("Australia/Lord_Howe", "*/15 * * * *", "2024-04-07T01:15+11:00",
     "2024-04-07T01:30+11:00 2024-04-07T01:45+11:00 2024-04-07T01:30+10:30 \
      2024-04-07T01:45+10:30 2024-04-07T02:00+10:30 2024-04-07T02:15+10:30"),
    ("Australia/Lord_Howe", "30 2 * * *", "2024-04-06T00:00+11:00",
     "2024-04-06T02:30+11:00 2024-04-07T02:30+10:30 2024-04-08T02:30+10:30"),
    ("Australia/Lord_Howe", "0 0 * * *", "2024-04-06T00:00+11:00",
     "2024-04-07T00:00+11:00 2024-04-08T00:00+10:30"),
    ("America/Santiago", "*/15 * * * *", "2024-09-07T23:30-04:00",
     "2024-09-07T23:45-04:00 2024-09-08T01:00-03:00 2024-09-08T01:15-03:00 \
      2024-09-08T01:30-03:00"),
    ("America/Santiago", "30 2 * * *", "2024-09-07T00:00-04:00",
     "2024-09-07T02:30-04:00 2024-09-08T02:30-03:00 2024-09-09T02:30-03:00"),
    ("America/Santiago", "0 0 * * *", "2024-09-07T00:00-04:00",
     "2024-09-08T01:00-03:00 2024-09-09T00:00-03:00"),
    ("America/Santiago", "*/15 * * * *", "2024-04-06T22:45-03:00",
     "2024-04-06T23:00-03:00 2024-04-06T23:15-03:00 2024-04-06T23:30-03:00 \
      2024-04-06T23:45-03:00 2024-04-06T23:00-04:00 2024-04-06T23:15-04:00 \
      2024-04-06T23:30-04:00 2024-04-06T23:45-04:00 2024-04-07T00:00-04:00 \
      2024-04-07T00:15-04:00"),
    ("America/Santiago", "30 2 * * *", "2024-04-05T12:00-03:00",
     "2024-04-06T02:30-03:00 2024-04-07T02:30-04:00 2024-04-08T02:30-04:00"),
    ("America/Santiago", "0 0 * * *", "2024-04-05T12:00-03:00",
     "2024-04-06T00:00-03:00 2024-04-07T00:00-04:00 2024-04-08T00:00-04:00"),
    ("Asia/Tehran", "*/15 * * * *", "2022-03-21T23:30+03:30",
     "2022-03-21T23:45+03:30 2022-03-22T01:00+04:30 2022-03-22T01:15+04:30 \
      2022-03-22T01:30+04:30"),
    ("Asia/Tehran", "30 2 * * *", "2022-03-21T00:00+03:30",
     "2022-03-21T02:30+03:30 2022-03-22T02:30+04:30 2022-03-23T02:30+04:30"),
    ("Asia/Tehran", "0 0 * * *", "2022-03-21T00:00+03:30",
     "2022-03-22T01:00+04:30 2022-03-23T00:00+04:30"),
    ("Asia/Tehran", "*/15 * * * *", "2022-09-21T22:45+04:30",
     "2022-09-21T23:00+04:30 2022-09-21T23:15+04:30 2022-09-21T23:30+04:30 \
      2022-09-21T23:45+04:30 2022-09-21T23:00+03:30 2022-09-21T23:15+03:30 \
      2022-09-21T23:30+03:30 2022-09-21T23:45+03:30 2022-09-22T00:00+03:30 \
      2022-09-22T00:15+03:30"),
    ("Asia/Tehran", "30 2 * * *", "2022-09-20T12:00+04:30",
     "2022-09-21T02:30+04:30 2022-09-22T02:30+03:30 2022-09-23T02:30+03:30"),
    ("Asia/Tehran", "0 0 * * *", "2022-09-20T12:00+04:30",
     "2022-09-21T00:00+04:30 2022-09-22T00:00+03:30 2022-09-23T00:00+03:30"),
    ("America/New_York", "30 1 * * *", "2025-11-01T00:00-04:00",
     "2025-11-01T01:30-04:00 2025-11-02T01:30-04:00 2025-11-03T01:30-05:00"),
    ("Africa/Casablanca", "*/20 * * * *", "2024-03-10T02:00+01:00",
     "2024-03-10T02:20+01:00 2024-03-10T02:40+01:00 2024-03-10T02:00+00:00 \
      2024-03-10T02:20+00:00 2024-03-10T02:40+00:00"),
    ("Africa/Casablanca", "30 2 * * *", "2024-03-09T12:00+01:00",
     "2024-03-10T02:30+01:00 2024-03-11T02:30+00:00"),
    ("Africa/Casablanca", "30 2 * * *", "2024-04-13T12:00+00:00",
     "2024-04-14T03:00+01:00 2024-04-15T02:30+01:00"),
    ("Pacific/Apia", "0 0 * * *", "2011-12-28T12:00-10:00",
     "2011-12-29T00:00-10:00 2011-12-31T00:00+14:00 2012-01-01T00:00+14:00"),
    ("Pacific/Apia", "30 2 * * *", "2011-12-28T12:00-10:00",
     "2011-12-29T02:30-10:00 2011-12-31T00:00+14:00 2011-12-31T02:30+14:00 \
      2012-01-01T02:30+14:00"),
    ("Pacific/Apia", "0 */6 * * *", "2011-12-29T06:00-10:00",
     "2011-12-29T12:00-10:00 2011-12-29T18:00-10:00 2011-12-31T00:00+14:00 \
      2011-12-31T06:00+14:00 2011-12-31T12:00+14:00"),
    ("Pacific/Apia", "15,45 8-17 30 12 *", "2010-12-31T00:00-10:00",
     "2011-12-31T00:00+14:00 2012-12-30T08:15+14:00"),
    ("Europe/Berlin", "*/20 1-3 * * *", "2024-03-31T00:00+01:00",
     "2024-03-31T01:00+01:00 2024-03-31T01:20+01:00 2024-03-31T01:40+01:00 \
      2024-03-31T03:00+02:00 2024-03-31T03:20+02:00 2024-03-31T03:40+02:00"),
    ("Europe/Berlin", "*/20 1-3 * * *", "2024-10-27T00:00+02:00",
     "2024-10-27T01:00+02:00 2024-10-27T01:20+02:00 2024-10-27T01:40+02:00 \
      2024-10-27T02:00+02:00 2024-10-27T02:20+02:00 2024-10-27T02:40+02:00 \
      2024-10-27T03:00+01:00 2024-10-27T03:20+01:00 2024-10-27T03:40+01:00"),
    ("Europe/Berlin", "0 */2 * * *", "2024-03-30T22:00+01:00",
     "2024-03-31T00:00+01:00 2024-03-31T04:00+02:00 2024-03-31T06:00+02:00"),
    ("Europe/Berlin", "0 */2 * * *", "2024-10-26T22:00+02:00",
     "2024-10-27T00:00+02:00 2024-10-27T02:00+02:00 2024-10-27T02:00+01:00 \
      2024-10-27T04:00+01:00 2024-10-27T06:00+01:00"),
    ("Asia/Kolkata", "0 0 1 1 *", "2023-12-30T00:00+05:30",
     "2024-01-01T00:00+05:30 2025-01-01T00:00+05:30"),
    ("UTC", "59 23 31 12 *", "2023-12-31T23:58+00:00",
     "2023-12-31T23:59+00:00 2024-12-31T23:59+00:00"),
    ("UTC", "0 0 13 * 5", "2024-09-01T00:00+00:00",
     "2024-09-06T00:00+00:00 2024-09-13T00:00+00:00 2024-09-20T00:00+00:00 \
      2024-09-27T00:00+00:00 2024-10-04T00:00+00:00"),
    ("UTC", "0 0 */10 * 1", "2024-01-01T00:00+00:00",
     "2024-03-11T00:00+00:00 2024-04-01T00:00+00:00 2024-07-01T00:00+00:00 \
      2024-10-21T00:00+00:00 2024-11-11T00:00+00:00"),
];

#[test]
fn the_due_times_around_changes_of_the_clock_are_those_of_the_table() {
    for (zone, spec, start, expected) in TABLE {
        assert_due(spec, zone, start, expected);
    }
}

#[test]
fn a_time_that_does_not_exist_is_the_first_instant_after_the_gap() {
    let start = "2024-03-31T00:00+01:00";
    assert_due(
        "30 2 * * *",
        "Europe/Berlin",
        start,
        "2024-03-31T03:00+02:00 2024-04-01T02:30+02:00",
    );
    // The date that is skipped decides, not the date after the gap.
    assert_due("0 9 30 12 *", "Pacific/Apia", "2011-01-01T00:00Z", "2011-12-31T00:00+14:00");
}

#[test]
fn two_skipped_times_are_due_once() {
    let expected = "2024-03-31T03:00+02:00 2024-04-01T02:10+02:00 2024-04-01T02:50+02:00";
    assert_due("10,50 2 * * *", "Europe/Berlin", "2024-03-31T00:00+01:00", expected);
}

#[test]
fn a_time_that_exists_twice_is_due_the_first_time_only() {
    let expected = "2024-10-27T02:30+02:00 2024-10-28T02:30+01:00";
    assert_due("30 2 * * *", "Europe/Berlin", "2024-10-27T00:00+02:00", expected);
    // The start is between both, and in the repeated hour.
    let expected = "2024-10-28T02:30+01:00";
    assert_due("30 2 * * *", "Europe/Berlin", "2024-10-27T02:45+02:00", expected);
    assert_due("30 2 * * *", "Europe/Berlin", "2024-10-27T02:15+01:00", expected);
}

#[test]
fn the_last_change_that_is_no_yearly_rule_is_known() {
    // 10:00Z is 02:00 at first, and then 01:00. The yearly rule begins after it.
    let expected = "2019-01-20T01:30-08:00 2019-01-21T01:30-09:00";
    assert_due("30 1 * * *", "America/Metlakatla", "2019-01-20T00:00-08:00", expected);
}

#[test]
fn an_offset_with_seconds_is_kept_to_the_second() {
    // Liberia was 44 minutes and 30 seconds behind until 1972-01-07T00:00 local time.
    let (zone, start) = ("Africa/Monrovia", "1972-01-07T00:15:00Z");
    assert_due("*/15 * * * *", zone, start, "1972-01-07T00:29:30Z 1972-01-07T00:45:00Z");
    assert_due("10 0 * * *", zone, start, "1972-01-07T00:44:30Z 1972-01-08T00:10:00Z");
}

#[test]
fn a_leap_day_is_due_in_leap_years_also_across_2100() {
    let expected = "2092-02-29T00:00Z 2096-02-29T00:00Z 2104-02-29T00:00Z 2108-02-29T00:00Z";
    assert_due("0 0 29 2 *", "UTC", "2088-02-29T00:00Z", expected);
    // A Sunday: the calendar repeats after 28 years, and after 40 across 2100.
    assert_due("0 0 29 2 */7", "UTC", "2060-01-01T00:00Z", "2060-02-29T00:00Z 2088-02-29T00:00Z");
    assert_due("0 0 29 2 */7", "UTC", "2088-03-01T00:00Z", "2128-02-29T00:00Z");
}

#[test]
fn two_restricted_day_fields_match_if_either_does() {
    // In February 2024 the Mondays are the 5th, 12th, 19th and 26th.
    let expected = "2024-02-05T00:00Z 2024-02-12T00:00Z 2024-02-13T00:00Z 2024-02-19T00:00Z";
    assert_due("0 0 13 * MON", "UTC", "2024-02-01T00:00Z", expected);
    assert_due("0 0 30 2 MON", "UTC", "2024-01-31T00:00Z", "2024-02-05T00:00Z");
}

#[test]
fn a_day_field_that_begins_with_a_star_must_match_as_well() {
    let expected = "2024-02-05T00:00Z 2024-02-19T00:00Z 2024-03-11T00:00Z 2024-03-25T00:00Z";
    assert_due("0 0 */2 * MON", "UTC", "2024-02-01T00:00Z", expected);
}

#[test]
fn different_texts_with_the_same_meaning_are_equal() {
    for (one, other) in [
        ("@hourly", "0 * * * *"),
        ("@daily", "00 0 * * *"),
        ("@weekly", "0 0 * * 7"),
        ("@weekly", "  0  0 * * sun "),
        ("@monthly", "0 0 1 * *"),
        ("0 0 * jan-Mar,DEC mon-FRI/2", "0 0 * 1-3,12 1,3,5"),
        ("0 0 * * FRI-SUN", "0 0 * * 0,5,6"),
        ("0 0 * * SUN-SUN", "0 0 * * 0-0"),
        ("10-40/15 * * * *", "10,25,40 * * * *"),
        ("every 90s", "every 1m30s"),
        ("every 1d", "every  24h"),
    ] {
        assert_eq!(parse(one, ""), parse(other, "UTC"), "{one} {other}");
    }
    assert_ne!(parse("0 0 * * *", "Europe/Berlin"), parse("0 0 * * *", "UTC"));
}

/// Texts that other programs may know, and nonsense.
const REFUSED: [&str; 69] = [
    "",
    " ",
    "*",
    "* * * *",
    "* * * * * *",
    "0 0 0 1 1 * 2030",
    "0 0 ? * *",
    "0 0 L * *",
    "0 0 15W * *",
    "0 0 * * 5#2",
    "0 0 * * 5L",
    "0 0 1 * +1",
    "60 * * * *",
    "* 24 * * *",
    "* * 0 * *",
    "* * 32 * *",
    "* * * 0 *",
    "* * * 13 *",
    "* * * * 8",
    "-1 * * * *",
    "40-10 * * * *",
    "* * * * 5-0",
    "* * * NOV-FEB *",
    "*/0 * * * *",
    "*/60 * * * *",
    "* */24 * * *",
    "5/15 * * * *",
    "*/ * * * *",
    "/5 * * * *",
    "1-2-3 * * * *",
    "*-5 * * * *",
    "1,,2 * * * *",
    ",1 * * * *",
    "1, * * * *",
    "1- * * * *",
    "*/2/2 * * * *",
    "** * * * *",
    "+5 * * * *",
    "MON * * * *",
    "* * * MON *",
    "* * * * JAN",
    "* * * * MONDAY",
    "1.5 * * * *",
    "*/MON * * * *",
    "* * * * MON/2",
    "0\t0 * * *",
    "0 0 * * *\n",
    "0\u{a0}0 * * *",
    "٣ * * * *",
    "99999999999 * * * *",
    "@yearly",
    "@reboot",
    "@",
    "@daily *",
    "every",
    "every ",
    "every 5",
    "every 0s",
    "every 100ms",
    "every 1.5h",
    "every -5s",
    "every 30m1h",
    "every 5s5s",
    "every 366d1s",
    "every 99999999999d",
    "every day",
    "every s",
    "Every 5s",
    "every 5m *",
];

#[test]
fn what_is_not_understood_is_refused() {
    let longest = format!("0 0 {}1 * *", "1,".repeat(95));
    let long = longest.replace(" *", "  *");
    for spec in REFUSED.into_iter().chain([long.as_str()]) {
        let error = refusal(spec, "UTC");
        assert!(!error.ends_with('.') && !error.contains('\n') && error.len() < 400, "{error}");
    }
    assert_eq!(longest.len(), MOST_BYTES - 1);
    parse(&longest, "UTC");
}

#[test]
fn fields_that_are_never_due_are_refused() {
    for spec in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "* * 30,31 FEB */2", "0 0 31 2-2 *"] {
        assert!(refusal(spec, "UTC").contains("never due"), "{spec}");
    }
    for spec in ["0 0 29 2 *", "0 0 31 4,5 *", "0 0 30 2 1", "0 0 */31 2 *"] {
        assert!(parse(spec, "UTC").after(0).is_some(), "{spec}");
    }
}

#[test]
fn a_date_is_refused_if_no_year_has_it() {
    for (month, day) in (1..=12).flat_map(|month| (1..=31).map(move |day| (month, day))) {
        let exists = Date::new(2000, month, day).is_ok();
        let spec = format!("0 0 {day} {month} *");
        assert_eq!(Times::parse(&spec, "UTC").is_ok(), exists, "{spec}");
    }
}

#[test]
fn a_refusal_says_what_is_wrong_and_what_is_right() {
    for (spec, zone, expected) in [
        ("61 * * * *", "", r#""61" in the minute field is not a number from 0 to 59"#),
        (
            "* * * X *",
            "",
            r#""X" in the month field is not a number from 1 to 12 or a name from JAN to DEC"#,
        ),
        (
            "5/15 * * * *",
            "",
            r#""5/15" in the minute field has a step but no range; write a range such as "5-59" before the step"#,
        ),
        ("*/90 * * * *", "", r#"the step of "*/90" in the minute field is not from 1 to 59"#),
        (
            "* * * * *",
            "CEST",
            r#""CEST" is not a known time zone; use an IANA name such as Europe/Berlin or UTC"#,
        ),
    ] {
        assert_eq!(refusal(spec, zone), expected);
    }
    assert!(refusal("0 0 * * * *", "").ends_with("but this has 6"));
    assert!(refusal("0 0 * *\t*", "").contains("control character"));
}

#[test]
fn only_iana_names_are_zones() {
    let long = "Europe/".repeat(20);
    for zone in [
        "CEST",
        "+02:00",
        "UTC+2",
        "Berlin",
        "Europe/Berlin ",
        " ",
        "Etc/Unknown",
        "local",
        "/etc/localtime",
        "../Europe/Berlin",
        ":Europe/Berlin",
        "CET-1CEST",
        "Europe/\0",
        &long,
    ] {
        assert!(refusal("* * * * *", zone).contains("Europe/Berlin"), "{zone}");
    }
}

#[test]
fn an_interval_counts_from_1970_and_takes_no_zone() {
    let start = "2024-02-29T23:59:01Z";
    assert_due("every 90s", "", start, "2024-03-01T00:00:00Z 2024-03-01T00:01:30Z");
    // Day 19782 of 1970 is 2024-02-29, and 19782 = 7 * 2826.
    assert_due("every 7d", "UTC", "2024-02-28T00:00Z", "2024-02-29T00:00Z 2024-03-07T00:00Z");
    assert_eq!(parse("every 366d", "").after(0), Some(366 * 86_400_000));
    assert!(refusal("every 5m", "Europe/Berlin").contains("leave the time zone out"));
    assert!(refusal("every 5m", "Etc/UTC").contains("leave the time zone out"));
}

#[test]
fn nothing_is_due_beyond_the_year_9999() {
    for (spec, zone) in [("* * * * *", "UTC"), ("every 1s", ""), ("0 3 * * *", "Pacific/Apia")] {
        let times = parse(spec, zone);
        let last = times.latest(0, u64::MAX).unwrap();
        assert!(show(last).starts_with("9999-12-"), "{}", show(last));
        assert_eq!(times.after(last), None);
        assert_eq!(times.after(u64::MAX), None);
        assert_eq!(times.after(u64::MAX - 1), None);
    }
    assert_eq!(parse("0 0 29 2 *", "UTC").after(ms("9996-02-29T00:00Z")), None);
}

#[test]
fn the_latest_and_the_missed_times_exclude_the_last_and_include_now() {
    let times = parse("0 * * * *", "UTC");
    let hour = |n: u64| ms("2024-01-01T00:00Z") + n * 3_600_000;
    assert_eq!(times.latest(hour(0), hour(3)), Some(hour(3)));
    assert_eq!(times.latest(hour(0), hour(3) - 1), Some(hour(2)));
    assert_eq!(times.latest(hour(3), hour(3)), None);
    assert_eq!(times.latest(hour(3), hour(4) - 1), None);
    assert_eq!(times.latest(hour(5), hour(3)), None);
    assert_eq!(times.missed(hour(0), hour(3), 5), (vec![hour(1), hour(2), hour(3)], false));
    assert_eq!(times.missed(hour(0), hour(3), 3), (vec![hour(1), hour(2), hour(3)], false));
    assert_eq!(times.missed(hour(0), hour(3), 2), (vec![hour(2), hour(3)], true));
    assert_eq!(times.missed(hour(0), hour(3), 0), (vec![], true));
    assert_eq!(times.missed(hour(0), hour(1), 0), (vec![], true));
    assert_eq!(times.missed(hour(3), hour(3), 0), (vec![], false));
    assert_eq!(times.missed(hour(5), hour(3), 9), (vec![], false));
    assert_eq!(parse("every 1s", "").missed(0, 4_500, 3), (vec![2_000, 3_000, 4_000], true));
}

/// If they went over every time in between, this would take minutes.
#[test]
fn a_long_absence_and_a_sparse_entry_cost_little() {
    let (last, now) = (ms("2023-01-01T00:00Z"), ms("2025-01-01T00:00Z") - 1);
    for spec in ["* * * * *", "* * * 1 *", "every 1s", "* 0-3 * * *"] {
        let (times, more) = parse(spec, "UTC").missed(last, now, 100);
        assert_eq!((times.len(), more), (100, true), "{spec}");
    }
    let sparse = ["0 0 29 2 */7", "0 * 29 2 */7", "59 23 29 2 */7", "0 0 29 2 1"];
    for n in 0..100_u64 {
        for spec in sparse {
            parse(spec, "Africa/Casablanca").after(n * 31_000_000_000).unwrap();
        }
    }
}
