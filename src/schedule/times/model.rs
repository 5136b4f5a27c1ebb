//! The due times, compared with a slow model that looks at each minute. It has its own matching, and does not know when
//! a zone changes its clock.

#![allow(clippy::unwrap_used)]

use jiff::ToSpan;
use jiff::civil::DateTime;

use super::tests::{ms, parse, show};
use super::*;

/// Numbers that look random and are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn choose<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

/// The slow model: fields as lists of values, made together with their text.
struct Model {
    text: String,
    values: [Vec<u64>; 5],
    stars: [bool; 5],
}

impl Model {
    /// Makes random fields. `open` says how many of ten times a field is `*`.
    fn random(numbers: &mut Numbers, open: [u64; 5]) -> Model {
        let mut model =
            Model { text: String::new(), values: Default::default(), stars: [false; 5] };
        let limits = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)];
        for (place, (low, high)) in limits.into_iter().enumerate() {
            let items = if numbers.below(10) < open[place] { 0 } else { 1 + numbers.below(2) };
            let mut texts = Vec::new();
            for _ in 0..items {
                let a = low + numbers.below(high - low + 1);
                let b = a + numbers.below(high - a + 1);
                let step = 1 + numbers.below(high.min(13));
                let (text, from, to, step) = match numbers.below(5) {
                    0 => (format!("*/{step}"), low, high, step),
                    1 => (format!("{a}-{b}"), a, b, 1),
                    2 => (format!("{a}-{b}/{step}"), a, b, step),
                    _ => (format!("{a}"), a, a, 1),
                };
                texts.push(text);
                model.values[place].extend((from..=to).filter(|n| (n - from) % step == 0));
            }
            if items == 0 {
                texts.push("*".into());
                model.values[place].extend(low..=high);
            }
            model.stars[place] = texts[0].starts_with('*');
            model.text = format!("{} {}", model.text, texts.join(","));
        }
        model
    }

    fn matches(&self, wall: DateTime) -> bool {
        let contains = |place: usize, value: i8| self.values[place].contains(&(value as u64));
        let weekday = wall.weekday();
        let by_weekday = contains(4, weekday.to_sunday_zero_offset())
            || contains(4, weekday.to_monday_one_offset());
        let day = match self.stars[2] || self.stars[4] {
            true => contains(2, wall.day()) && by_weekday,
            false => contains(2, wall.day()) || by_weekday,
        };
        contains(0, wall.minute()) && contains(1, wall.hour()) && day && contains(3, wall.month())
    }

    /// The due times of `minutes` minutes from `start`, found by looking at each.
    ///
    /// A calendar entry is due when the wall clock first reaches or passes a matching time: this
    /// needs the highest time seen so far, and no knowledge of changes. It looks at one more day
    /// before the start to learn that.
    fn due(&self, zone: &TimeZone, start: Timestamp, minutes: i64) -> Vec<u64> {
        let mut due = Vec::new();
        let mut highest = zone.to_datetime(start - 24.hours());
        for minute in -DAY_MINUTES + 1..minutes {
            let instant = start + SignedDuration::from_mins(minute);
            let wall = zone.to_datetime(instant);
            let mut fires = self.stars[1] && self.matches(wall);
            while highest < wall {
                highest += 1.minute();
                fires |= !self.stars[1] && self.matches(highest);
            }
            if fires && minute >= 0 {
                due.push(instant.as_millisecond().try_into().unwrap());
            }
        }
        due
    }
}

/// Asserts that all three questions agree with the list of due times of a window.
fn assert_agrees(
    times: &Times,
    due: &[u64],
    from: u64,
    end: u64,
    numbers: &mut Numbers,
    what: &str,
) {
    let mut found = Vec::new();
    let mut last = from - 1;
    while let Some(next) = times.after(last).filter(|&next| next < end) {
        assert!(next > last, "{what}");
        found.push(next);
        last = next;
    }
    let shown = |times: &[u64]| times.iter().map(|&ms| show(ms)).collect::<Vec<_>>();
    assert_eq!(shown(&found), shown(due), "{what}");
    for _ in 0..8 {
        let a = from + numbers.below(end - from);
        let b = a + numbers.below(end - a);
        let expected = due.iter().copied().find(|&due| due > a);
        assert_eq!(times.after(a).filter(|&due| due < end), expected, "{what} {a}");
        let inside: Vec<u64> = due.iter().copied().filter(|&due| a < due && due <= b).collect();
        assert_eq!(times.latest(a, b), inside.last().copied(), "{what} {a} {b}");
        let left_out = inside.len().saturating_sub(3);
        let expected = (inside[left_out..].to_vec(), left_out > 0);
        assert_eq!(times.missed(a, b, 3), expected, "{what} {a} {b}");
    }
}

const ZONES: [&str; 24] = [
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "Europe/Dublin",
    "Europe/Lisbon",
    "Europe/Moscow",
    "America/New_York",
    "America/St_Johns",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/Havana",
    "America/Caracas",
    "Asia/Tehran",
    "Asia/Gaza",
    "Asia/Pyongyang",
    "Asia/Kathmandu",
    "Africa/Casablanca",
    "Africa/Cairo",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
    "Antarctica/Troll",
    "Antarctica/Casey",
];

#[test]
fn random_entries_agree_with_a_look_at_each_minute_around_a_change() {
    let mut numbers = Numbers(20);
    for round in 0..1_000 {
        let name = *numbers.choose(&ZONES);
        let zone = find_zone(name).unwrap();
        let year_s = 31_557_600;
        let any =
            Timestamp::from_second(year_s + numbers.below(90 * year_s as u64) as i64).unwrap();
        // The change only tells where to look.
        let change = zone.following(any).next().map_or(any, |change| change.timestamp());
        let near = change.as_second() / 60 - 300 - numbers.below(1_500) as i64;
        let start = Timestamp::from_second(near * 60).unwrap();
        let model = Model::random(&mut numbers, [2, 4, 8, 9, 8]);
        let Ok(times) = Times::parse(&model.text, name) else {
            continue;
        };
        let minutes = 2_400;
        let from: u64 = start.as_millisecond().try_into().unwrap();
        let due = model.due(&zone, start, minutes);
        let what = format!("round {round}:{} {name} {start}", model.text);
        assert_agrees(&times, &due, from, from + minutes as u64 * 60_000, &mut numbers, &what);
    }
}

#[test]
fn random_day_fields_agree_with_a_look_at_each_day_of_41_years() {
    let mut numbers = Numbers(21);
    for round in 0..150 {
        let mut model = Model::random(&mut numbers, [0, 0, 3, 3, 3]);
        let days = model.text.split(' ').skip(3).collect::<Vec<_>>().join(" ");
        model.values[0] = vec![0];
        model.values[1] = vec![0];
        let midnight = date(2071, 1, 1).at(0, 0, 0, 0);
        let from = ms("2071-01-01T00:00Z");
        let due: Vec<u64> = (0..41 * 365)
            .filter(|&day| model.matches(midnight + day.days()))
            .map(|day| from + day as u64 * 86_400_000)
            .collect();
        match Times::parse(&format!("0 0 {days}"), "UTC") {
            Ok(times) => {
                let end = from + 41 * 365 * 86_400_000;
                assert_agrees(&times, &due, from, end, &mut numbers, &format!("{round}: {days}"));
            }
            Err(error) => {
                assert!(due.is_empty() && error.contains("never due"), "{days}: {error}");
            }
        }
    }
}

/// Every change of every zone, with `ARTEL_SOAK`; otherwise of every eighth zone. Zones change with the database.
#[test]
fn all_changes_of_all_zones_agree_with_a_look_at_each_minute() {
    let share = if std::env::var_os("ARTEL_SOAK").is_some() { 1 } else { 8 };
    let mut numbers = Numbers(22);
    let mut changes = 0;
    let six_hours_s = 6 * 3_600;
    for name in TimeZoneDatabase::bundled().available().step_by(share) {
        let zone = find_zone(name.as_str()).unwrap();
        let offset_s = |at_s: i64| zone.to_offset(Timestamp::from_second(at_s).unwrap()).seconds();
        // From 1970 to 2040. An offset with seconds has a test of its own.
        for step in 10..102_000 {
            let at_s = step * six_hours_s;
            if offset_s(at_s) == offset_s(at_s + six_hours_s) || offset_s(at_s) % 60 != 0 {
                continue;
            }
            changes += 1;
            let start = Timestamp::from_second(at_s - 2 * 3_600).unwrap();
            let model = Model::random(&mut numbers, [3, 3, 10, 10, 10]);
            let times = parse(&model.text, name.as_str());
            let due = model.due(&zone, start, 660);
            let from: u64 = start.as_millisecond().try_into().unwrap();
            let what = format!("{} {name} {start}", model.text);
            assert_agrees(&times, &due, from, from + 660 * 60_000, &mut numbers, &what);
        }
    }
    assert!(changes > 10_000 / share, "{changes}");
}
