//! Frames to the letter, and what keys do.

use std::path::Path;
use std::time::{Duration, SystemTime};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::sample::{Counts, ErrorRow, Generator, MemberRow, NoticeRow, Sample};
use super::view::{Action, Focus, Mode, View};
use super::{frame, text};

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_000_000 + seconds)
}

fn member(n: u64, role: &str, done: u64) -> MemberRow {
    MemberRow {
        id: format!("id{n}"),
        label: format!("member-{n}"),
        role: role.to_owned(),
        place: format!("host-{}:{}", n % 3, 4000 + n),
        done,
        failed: done / 20,
        in_flight: n % 4,
        seen: Duration::from_millis(100 * n),
    }
}

fn error(n: u64) -> ErrorRow {
    ErrorRow {
        id: format!("1795000000000-{n}"),
        kind: if n.is_multiple_of(2) { "invoice".to_owned() } else { String::new() },
        reason: format!("the customer {n} is not known to anybody"),
        who: "member-2".to_owned(),
        attempt: 1,
        failed_at: at(0),
        payload: format!("{{\"order\":{n}}}"),
        record: None,
    }
}

/// A fleet after this many seconds.
fn sample(seconds: u64, leader: u64) -> Sample {
    let done = 12 * seconds + seconds % 7;
    Sample {
        time: Some(at(seconds)),
        fleet: "orders".to_owned(),
        server: "Redis 7.0.15".to_owned(),
        rtt: Duration::from_micros(280),
        generator: Some(Generator {
            label: format!("member-{leader}"),
            term: "1795000000000123".to_owned(),
            left: Duration::from_millis(2100),
            lease: Duration::from_secs(3),
        }),
        trouble: None,
        members: (1..=12)
            .map(|n| member(n, if n == leader { "generator" } else { "worker" }, n * seconds))
            .collect(),
        counts: Counts {
            generated: done + 5,
            sent: 3,
            waiting: 5,
            scheduled: 2,
            claimed: 1,
            done,
            failed: seconds / 2,
            balance: 0,
        },
        lanes: vec![("returned", 0), ("high", 1), ("generated", 4), ("normal", 0), ("low", 0)],
        oldest: Some(Duration::from_millis(420)),
        paused: vec!["low".to_owned()],
        stored: 40,
        errors: (1..=8).map(error).collect(),
        notices: (0..6)
            .map(|n| NoticeRow {
                time: at(n),
                text: format!("member-{n} elected: leads under term 179500000000{n}"),
            })
            .collect(),
    }
}

fn view() -> View {
    let mut view = View::new();
    (0..60).for_each(|seconds| view.update(sample(seconds, 1)));
    view
}

fn press(view: &mut View, keys: &[KeyCode]) -> Action {
    let key = |code: &KeyCode| KeyEvent::new(*code, KeyModifiers::NONE);
    keys.iter().map(|code| view.key(key(code))).last().unwrap_or(Action::None)
}

/// A frame must be what it was. `ARTEL_WRITE_PAGES=1` writes it anew.
#[track_caller]
fn is_as_kept(name: &str, view: &View, size: (u16, u16)) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/commands/top/frames").join(name);
    let shown = text(&frame(view, size));
    if std::env::var_os("ARTEL_WRITE_PAGES").is_some() {
        std::fs::write(&path, &shown).expect("written");
    }
    let kept = std::fs::read_to_string(&path).expect("a frame");
    assert!(shown == kept, "{name}:\n{shown}\nis not\n{kept}");
}

#[test]
fn frames_are_as_they_were() {
    let mut view = view();
    is_as_kept("80x24.txt", &view, (80, 24));
    is_as_kept("200x50.txt", &view, (200, 50));
    press(&mut view, &[KeyCode::Tab, KeyCode::Down, KeyCode::Enter]);
    is_as_kept("error-80x24.txt", &view, (80, 24));
    press(&mut view, &[KeyCode::Esc, KeyCode::Char('?')]);
    is_as_kept("help-80x24.txt", &view, (80, 24));
    press(&mut view, &[KeyCode::Esc, KeyCode::Char('/'), KeyCode::Char('1'), KeyCode::Char('1')]);
    is_as_kept("filter-80x24.txt", &view, (80, 24));
}

#[test]
fn every_size_can_be_drawn() {
    let view = view();
    for size in [(1, 1), (3, 2), (20, 5), (80, 8), (10, 60), (500, 3), (400, 120)] {
        let shown = text(&frame(&view, size));
        assert_eq!(shown.lines().count(), usize::from(size.1));
    }
    let _ = text(&frame(&View::new(), (80, 24)));
}

#[test]
fn a_change_of_the_generator_is_seen() {
    let mut view = view();
    assert!(text(&frame(&view, (80, 24))).contains("generator member-1 "));
    view.update(sample(60, 7));
    let shown = text(&frame(&view, (80, 24)));
    assert!(shown.contains("generator member-7 "), "{shown}");
    view.update(Sample { generator: None, ..sample(61, 7) });
    assert!(text(&frame(&view, (80, 24))).contains("nobody leads"));
}

#[test]
fn a_paused_view_stays_and_says_so() {
    let mut view = view();
    press(&mut view, &[KeyCode::Char('p')]);
    let before = text(&frame(&view, (80, 24)));
    assert!(before.contains("PAUSED"), "{before}");
    view.update(sample(100, 7));
    assert_eq!(text(&frame(&view, (80, 24))), before);
    press(&mut view, &[KeyCode::Char('p')]);
    view.update(sample(101, 7));
    assert!(text(&frame(&view, (80, 24))).contains("generator member-7 "));
}

#[test]
fn members_are_sorted_and_filtered() {
    let mut view = view();
    let labels = |view: &View| -> Vec<String> {
        view.members().iter().map(|row| row.label.clone()).collect()
    };
    assert_eq!(labels(&view)[..3], ["member-1", "member-2", "member-3"]);
    press(&mut view, &[KeyCode::Char('s')]);
    assert_eq!(labels(&view)[0], "member-12", "by done");
    press(&mut view, &[KeyCode::Char('/'), KeyCode::Char('1'), KeyCode::Char('0'), KeyCode::Enter]);
    assert_eq!((view.mode.clone(), labels(&view)), (Mode::Lists, vec!["member-10".to_owned()]));
    press(&mut view, &[KeyCode::Esc]);
    assert_eq!(labels(&view).len(), 12);
}

#[test]
fn nothing_is_put_back_without_a_yes() {
    let mut view = view();
    press(&mut view, &[KeyCode::Char('r')]);
    assert_eq!((view.mode.clone(), view.focus), (Mode::Confirm, Focus::Errors));
    assert_eq!(press(&mut view, &[KeyCode::Enter]), Action::None);
    assert_eq!((view.mode.clone(), &*view.remark), (Mode::Lists, "nothing was put back"));
    // While it is asked, the list moves on: the answer is for the message that was shown, or for none.
    press(&mut view, &[KeyCode::Char('r')]);
    let mut next = sample(60, 1);
    next.errors.remove(0);
    view.update(next);
    assert_eq!(press(&mut view, &[KeyCode::Char('y')]), Action::None);
    assert_eq!(view.remark, "that message is no longer stored");
}

#[test]
fn an_open_error_does_not_turn_into_another_one() {
    let mut view = view();
    press(&mut view, &[KeyCode::Enter]);
    assert_eq!(view.mode, Mode::Error);
    let id = view.error().map(|row| row.id.clone());
    let mut next = sample(60, 1);
    next.errors.insert(0, error(99));
    view.update(next.clone());
    assert_eq!(view.error().map(|row| row.id.clone()), id);
    next.errors.retain(|row| Some(&row.id) != id.as_ref());
    view.update(next);
    assert_eq!(view.mode, Mode::Lists);
}

#[test]
fn redis_that_does_not_answer_is_told_and_keys_still_work() {
    let mut view = view();
    view.away("Redis does not answer".to_owned());
    let shown = text(&frame(&view, (80, 24)));
    assert!(shown.contains("NO ANSWER") && shown.contains("Redis does not answer"), "{shown}");
    assert_eq!(press(&mut view, &[KeyCode::Char('q')]), Action::Quit);
    view.update(sample(70, 1));
    assert!(text(&frame(&view, (80, 24))).contains("Redis answers again"));
}
