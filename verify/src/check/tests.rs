//! Every violation is found under its name, and a good history has no violation.

use super::*;
use crate::history::CatchUp;
use crate::life::{is_followed, is_refused, retries, snoozes};
use crate::member::ATTEMPTS_MAX;

/// How the runs of a message are noted.
#[derive(Clone, Copy)]
struct Noted {
    ledgered: bool,
    confirmed: bool,
}

/// All runs of one message without any fault, and of what follows it.
fn runs(checker: &mut Checker, id: Id, maker: &str, made: u64, noted: Noted) {
    let (mut attempt, mut time, wanted) = (1, made + 5_000_000, (retries(id), snoozes(id)));
    let mut again = (0, 0);
    loop {
        let start = Entry::Start { id, attempt, again, maker: maker.into(), made };
        checker.history("m9.1", time, &start);
        if again == wanted {
            break;
        }
        checker.history("m9.1", time, &Entry::Asks { id, attempt, again });
        checker.history("m9.1", time, &Entry::Again { id, attempt });
        again = if again.1 < wanted.1 { (again.0, again.1 + 1) } else { (again.0 + 1, again.1) };
        (attempt, time) = (attempt + 1, time + 200_000);
    }
    let failed = is_failed(id);
    checker.history("m9.1", time, &Entry::End { id, attempt, failed });
    if noted.ledgered {
        checker.settled(&Settled { id, failed, attempt });
    }
    if noted.confirmed {
        checker.history("m9.1", time, &Entry::Recorded { id, attempt });
    }
    if failed {
        checker.history("taker.1", time, &Entry::Took(id));
    }
    if is_followed(id) {
        let next = (Source::Outcome(u128::from(id.1) << 64 | made as u128), attempt.into());
        runs(checker, next, &format!("then:{}", id_text(id)), made, noted);
    }
}

/// A term of `many` messages without any fault.
fn play(checker: &mut Checker, term: u64, who: &str, from: u64, many: u64) {
    checker.history(who, 0, &Entry::Make { term, seq: 1, many });
    let noted = Noted { ledgered: true, confirmed: true };
    for seq in 1..=many {
        runs(checker, (Source::Term(term), seq), who, from + seq, noted);
    }
    checker.accepted((term, many));
}

fn in_term(term: u64, seq: u64) -> Id {
    (Source::Term(term), seq)
}

/// The next message of term 200 that is done in its first run, and that nothing follows.
fn well(from: u64) -> Id {
    let mut ids = (from..).map(|seq| in_term(200, seq));
    let simple = |id: &Id| retries(*id) + snoozes(*id) == 0 && !is_followed(*id);
    ids.find(|id| !is_failed(*id) && simple(id)).expect("one")
}

/// A message of term 200 that is retried, or that another one follows.
fn special(is: impl Fn(Id) -> bool) -> Id {
    (1..=200).map(|seq| in_term(200, seq)).find(|id| is(*id)).expect("one")
}

fn books(checker: &Checker) -> Snapshot {
    let mut now = Snapshot { settled: checker.seen.settled, ..Snapshot::default() };
    let settled = checker.seen.settled as i64;
    let made = settled - checker.seen.sent as i64;
    now.counts.insert("generated".into(), made);
    now.counts.insert("sent".into(), checker.seen.sent as i64);
    now.counts.insert("followed".into(), checker.seen.followed as i64);
    now.counts.insert("fired".into(), checker.seen.fired as i64);
    now.state = made;
    now.counts.insert("done".into(), settled - checker.seen.failed as i64);
    now.counts.insert("failed".into(), checker.seen.failed as i64);
    now.counts.insert("taken".into(), checker.seen.failed as i64);
    now.effects = checker.all.iter().map(|(from, book)| (*from, (book.done, book.sum))).collect();
    now
}

fn found(checker: &mut Checker) -> Vec<Invariant> {
    let now = books(checker);
    checker.finish(&now);
    checker.violations.iter().map(|violation| violation.invariant).collect()
}

#[test]
fn a_good_history_is_blamed_for_nothing() {
    let mut checker = Checker::default();
    play(&mut checker, 100, "m1.1", 0, 200);
    play(&mut checker, 200, "m2.1", 1000, 200);
    assert_eq!(found(&mut checker), []);
    assert_eq!(checker.seen.accepted - checker.seen.followed, 400);
    assert_eq!(checker.seen.terms, 2);
    assert!(checker.seen.run_again > 20 && checker.seen.followed > 5);
}

type Spoil = fn(&mut Checker);

/// Faults of generators and of the messages they made.
fn faults_of_generators() -> Vec<(Invariant, Spoil)> {
    vec![
        (Invariant::OneGenerator, |checker| play(checker, 300, "m3.1", 500, 5)),
        // Made in time, but accepted while another generator led.
        (Invariant::OneGenerator, |checker| checker.accepted((100, 201))),
        (Invariant::OneGenerator, |checker| {
            checker.history("m2.9", 0, &Entry::Make { term: 200, seq: 201, many: 0 });
        }),
        (Invariant::NothingLost, |checker| {
            checker.accepted((200, 201));
        }),
        (Invariant::DenseSequences, |checker| {
            checker.history("m2.1", 0, &Entry::Make { term: 200, seq: 201, many: 9 });
            let id = well(202);
            checker.settled(&Settled { id, failed: false, attempt: 1 });
        }),
        (Invariant::SettledOnce, |checker| {
            let id = in_term(200, 3);
            checker.settled(&Settled { id, failed: is_failed(id), attempt: 1 });
        }),
        (Invariant::NothingInvented, |checker| {
            let id = well(201);
            checker.settled(&Settled { id, failed: false, attempt: 1 });
        }),
    ]
}

/// Faults of handlers, errors and senders.
fn faults_of_handlers() -> Vec<(Invariant, Spoil)> {
    vec![
        (Invariant::EachAttemptOnce, |checker| {
            let maker = "m2.1".to_owned();
            let start =
                Entry::Start { id: in_term(200, 3), attempt: 1, again: (0, 0), maker, made: 1003 };
            checker.history("m4.1", 0, &start);
        }),
        (Invariant::ErrorsKept, |checker| {
            checker.history("taker.1", 0, &Entry::Took(well(1)));
        }),
        (Invariant::ErrorsKept, |checker| {
            let failed = (1..).map(|seq| in_term(200, seq)).find(|id| is_failed(*id));
            let (id, of) = ((Source::Sender(7), 1), failed.expect("one"));
            let maker = format!("of:{}", id_text(of));
            checker.history("taker.1", 0, &Entry::Removed(of));
            checker.history(
                "m4.1",
                0,
                &Entry::Start { id, attempt: 1, again: (0, 0), maker, made: 1003 },
            );
        }),
        // The outcome was confirmed to a second worker, too.
        (Invariant::AnswersTrue, |checker| {
            checker.history("m4.1", 0, &Entry::Recorded { id: in_term(200, 3), attempt: 1 });
        }),
        // The confirmed attempt is not the one in the ledger.
        (Invariant::AnswersTrue, |checker| {
            checker.history("m2.1", 0, &Entry::Make { term: 200, seq: 201, many: 9 });
            let id = well(201);
            checker.settled(&Settled { id, failed: false, attempt: 2 });
            checker.history("m4.1", 0, &Entry::Recorded { id, attempt: 1 });
        }),
        (Invariant::EachAttemptOnce, |checker| {
            let (id, attempt) = (in_term(200, 3), ATTEMPTS_MAX + 1);
            let start =
                Entry::Start { id, attempt, again: (0, 0), maker: "m2.1".into(), made: 1003 };
            checker.history("m4.1", 0, &start);
        }),
        // Only the last attempt may fail without a return of its handler.
        (Invariant::NothingInvented, |checker| {
            checker.history("m2.1", 0, &Entry::Make { term: 200, seq: 201, many: 9 });
            checker.settled(&Settled { id: well(201), failed: true, attempt: 1 });
        }),
        (Invariant::AddedOnce, |checker| {
            for number in [1, 2] {
                let (id, maker) = ((Source::Sender(7), number), "key:1".to_owned());
                checker.history(
                    "m4.1",
                    0,
                    &Entry::Start { id, attempt: 1, again: (0, 0), maker, made: 1003 },
                );
            }
        }),
        (Invariant::NothingLost, |checker| {
            checker.history(
                "sender.1",
                0,
                &Entry::Sent { number: 1, id: (Source::Sender(7), 1), is_new: true },
            );
        }),
    ]
}

/// Faults of retries, times, entries and what follows.
fn faults_of_jobs() -> Vec<(Invariant, Spoil)> {
    vec![
        // It was promised, and never came.
        (Invariant::RetriedAsTold, |checker| {
            let (id, attempt) =
                (special(|id| retries(id) > 0), 1 + retries(special(|id| retries(id) > 0)));
            checker.history("m4.1", 0, &Entry::Asks { id, attempt, again: (0, 0) });
            checker.history("m4.1", 0, &Entry::Again { id, attempt });
        }),
        // Once more than its handler wanted.
        (Invariant::RetriedAsTold, |checker| {
            let (id, maker) = (well(1), "m2.1".to_owned());
            let start = Entry::Start { id, attempt: 2, again: (1, 0), maker, made: 1003 };
            checker.history("m4.1", 0, &start);
        }),
        // It ended before its handler was through.
        (Invariant::RetriedAsTold, |checker| {
            checker.history("m2.1", 0, &Entry::Make { term: 200, seq: 201, many: 99 });
            let id = (201..).map(|seq| in_term(200, seq)).find(|id| retries(*id) > 0).expect("one");
            checker.settled(&Settled { id, failed: is_failed(id), attempt: 1 });
            checker.history("m4.1", 0, &Entry::Recorded { id, attempt: 1 });
        }),
        (Invariant::NotBeforeItsTime, |checker| {
            let id = special(|id| retries(id) > 0 && snoozes(id) == 0);
            checker.history("m4.1", 7_000_000, &Entry::Asks { id, attempt: 8, again: (0, 0) });
            let start =
                Entry::Start { id, attempt: 9, again: (1, 0), maker: "m2.1".into(), made: 9 };
            checker.history("m4.1", 7_050_000, &start);
        }),
        (Invariant::NotBeforeItsTime, |checker| {
            let (id, maker) = ((Source::Sender(7), 7), "key:7".to_owned());
            let start = Entry::Start { id, attempt: 1, again: (0, 0), maker, made: 1_000_000 };
            checker.history("m4.1", 1_200_000, &start);
        }),
        // What should follow is missing, or follows what did not end so.
        (Invariant::FollowUpsOnce, |checker| {
            checker.history("m2.1", 0, &Entry::Make { term: 200, seq: 201, many: 99 });
            let is_one = |id: &Id| is_followed(*id) && retries(*id) + snoozes(*id) == 0;
            let id = (201..).map(|seq| in_term(200, seq)).find(is_one).expect("one");
            checker.settled(&Settled { id, failed: is_failed(id), attempt: 1 });
            checker.history("m4.1", 0, &Entry::Recorded { id, attempt: 1 });
        }),
        (Invariant::FollowUpsOnce, |checker| {
            let (id, maker) = ((Source::Outcome(9), 9), format!("then:{}", id_text(well(1))));
            checker.history(
                "m4.1",
                0,
                &Entry::Start { id, attempt: 1, again: (0, 0), maker, made: 9 },
            );
        }),
        (Invariant::EntriesOnce, |checker| {
            checker.clock_shows(0, 0);
            for second in [7, 8, 10] {
                let id = (Source::Entry(CatchUp::All, 1), second);
                checker.settled(&Settled { id, failed: is_failed(id), attempt: 1 });
            }
        }),
    ]
}

/// While the clock of Redis is wrong, no time is judged.
#[test]
fn times_are_not_judged_while_the_clock_of_redis_is_wrong() {
    for (wrong, blamed) in [(true, 0), (false, 1)] {
        let mut checker = Checker::default();
        if wrong {
            checker.clock_wrong(1_100_000);
        }
        let (id, maker) = ((Source::Sender(7), 7), "key:7".to_owned());
        let start = Entry::Start { id, attempt: 1, again: (0, 0), maker, made: 1_000_000 };
        checker.history("m4.1", 1_200_000, &start);
        checker.clock_right(1_300_000);
        assert_eq!(checker.violations.len(), blamed);
    }
}

/// The clock of Redis may be set to another time for good. Then its time counts, not ours.
#[test]
fn times_of_entries_are_times_of_redis() {
    let entry = Source::Entry(CatchUp::All, 1);
    let violations = |seconds: &[u64]| {
        let mut checker = Checker::default();
        checker.clock_shows(0, 900_000_000);
        checker.clock_wrong(1_000_000);
        checker.clock_right(3_000_000);
        checker.clock_shows(3_000_000, 503_000_000);
        checker.history("sender.1", 5_000_000, &Entry::Declares(1));
        for second in seconds {
            let maker = "cron:all-1".to_owned();
            let id = (entry, *second);
            let start = Entry::Start { id, attempt: 1, again: (0, 0), maker, made: 0 };
            checker.history("m4.1", (*second - 500) * 1_000_000 + 1000, &start);
        }
        let mut found = Vec::new();
        checker.finish_jobs(&mut found);
        let found = found.into_iter().map(|(invariant, ..)| invariant);
        checker.violations.iter().map(|one| one.invariant).chain(found).collect::<Vec<_>>()
    };
    assert_eq!(violations(&[506, 507, 508]), []);
    assert_eq!(violations(&[504, 505, 506]), [Invariant::EntriesOnce], "before it was declared");
    assert_eq!(violations(&[506, 508]), [Invariant::EntriesOnce], "one is missing");
}

/// The clock of Redis goes hours ahead, and back: an entry that fired then leaves out what is too much to make up for.
#[test]
fn a_gap_from_a_time_of_wrong_clocks_is_none() {
    let entry = Source::Entry(CatchUp::All, 1);
    let mut checker = Checker::default();
    checker.clock_shows(0, 500_000_000);
    checker.history("sender.1", 1_000_000, &Entry::Declares(1));
    checker.clock_wrong(2_000_000);
    for (second, time) in [(4_000, 3_000_000), (9_000, 4_000_000)] {
        let id = (entry, second);
        let maker = "cron:all-1".to_owned();
        let start = Entry::Start { id, attempt: 1, again: (0, 0), maker, made: 0 };
        checker.history("m4.1", time, &start);
    }
    checker.clock_right(5_000_000);
    checker.clock_shows(5_000_000, 505_000_000);
    let mut found = Vec::new();
    checker.finish_jobs(&mut found);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn every_fault_of_the_books_has_its_name() {
    let faults = faults_of_generators().into_iter().chain(faults_of_handlers());
    for (invariant, spoil) in faults.chain(faults_of_jobs()) {
        let mut checker = Checker::default();
        play(&mut checker, 100, "m1.1", 0, 200);
        play(&mut checker, 200, "m2.1", 1000, 200);
        spoil(&mut checker);
        let found = found(&mut checker);
        assert!(found.contains(&invariant), "{invariant:?} is not among {found:?}");
    }
    let mut checker = Checker::default();
    play(&mut checker, 100, "m1.1", 0, 200);
    let mut now = books(&checker);
    now.effects.insert(Source::Term(100), (1, 1));
    now.held = 1;
    checker.finish(&now);
    let found: Vec<_> = checker.violations.iter().map(|one| one.invariant).collect();
    assert!(found.contains(&Invariant::EffectsEqualOutcomes), "{found:?}");
    assert!(found.contains(&Invariant::BooksBalance), "{found:?}");
}

#[test]
fn what_redis_lost_is_counted_and_not_blamed() {
    let mut checker = Checker::default();
    play(&mut checker, 100, "m1.1", 0, 10);
    checker.accepted((100, 20));
    checker.data_lost();
    play(&mut checker, 200, "m2.1", 1000, 10);
    assert_eq!(found(&mut checker), []);
    assert_eq!(checker.seen.lost_with_redis, 10);
}

/// The same without a ledger: only histories, effects and counters are left.
fn play_unledgered(checker: &mut Checker, term: u64, many: u64) -> Snapshot {
    let mut ledgered = Checker::default();
    play(&mut ledgered, term, "m1.1", 0, many);
    checker.unledgered = true;
    checker.history("m1.1", 0, &Entry::Make { term, seq: 1, many });
    for seq in 1..=many {
        // Of some of them the worker died before it was answered.
        let noted = Noted { ledgered: false, confirmed: seq % 3 != 0 };
        runs(checker, in_term(term, seq), "m1.1", seq, noted);
    }
    checker.accepted((term, many));
    Snapshot { settled: 0, ..books(&ledgered) }
}

#[test]
fn without_a_ledger_effects_and_counters_judge() {
    type Spoil = fn(&mut Checker, &mut Snapshot);
    let cases: [(&[Invariant], Spoil); 5] = [
        (&[], |_, _| {}),
        // Lost: it was never settled, and so it is not counted, or its effects are missing.
        (&[Invariant::BooksBalance, Invariant::BooksBalance], |_, now| {
            *now.counts.get_mut("done").expect("a counter") -= 1;
        }),
        (&[Invariant::EffectsEqualOutcomes], |_, now| {
            let (count, _) = now.effects.get_mut(&Source::Term(100)).expect("a term");
            *count -= 1;
        }),
        // Done twice.
        (&[Invariant::BooksBalance, Invariant::BooksBalance], |_, now| {
            *now.counts.get_mut("done").expect("a counter") += 1;
        }),
        // A message was kept that no handler has failed, at its first attempt.
        (&[Invariant::NothingInvented], |checker, now| {
            let id = (1..).map(|seq| in_term(100, seq));
            let simple = |id: &Id| retries(*id) + snoozes(*id) == 0 && !is_followed(*id);
            let mut id =
                id.filter(|id| !is_failed(*id) && !has_effects(*id) && simple(id) && id.1 % 3 != 0);
            checker.history("taker.1", 0, &Entry::Took(id.next().expect("one")));
            *now.counts.get_mut("done").expect("a counter") -= 1;
            *now.counts.get_mut("failed").expect("a counter") += 1;
            *now.counts.get_mut("taken").expect("a counter") += 1;
        }),
    ];
    for (number, (expected, spoil)) in cases.into_iter().enumerate() {
        let mut checker = Checker::default();
        let mut now = play_unledgered(&mut checker, 100, 200);
        spoil(&mut checker, &mut now);
        checker.finish(&now);
        let found: Vec<Invariant> =
            checker.violations.iter().map(|violation| violation.invariant).collect();
        assert_eq!(found, expected, "case {number}: {:?}", checker.violations);
        assert!(checker.seen.settled_without_ledger > 200);
    }
}

/// Workers may die before they start a message: then no attempt of theirs was seen.
#[test]
fn without_a_ledger_a_retried_message_may_be_given_up() {
    for (fails, seen) in [false, true].into_iter().flat_map(|fails| (0..3).map(move |n| (fails, n)))
    {
        let term = (1..).find(|term| {
            let id = in_term(*term, 1);
            retries(id) == 1 && snoozes(id) == 0 && is_failed(id) == fails && !is_refused(id)
        });
        let (term, again) = (term.expect("one"), (0, 0));
        let (id, maker) = (in_term(term, 1), "m1.1".to_owned());
        let second = Entry::Start { id, attempt: 2, again: (1, 0), maker: maker.clone(), made: 0 };
        let mut checker = Checker { unledgered: true, ..Checker::default() };
        checker.history("m1.1", 0, &Entry::Make { term, seq: 1, many: 1 });
        checker.history("m9.1", 10, &Entry::Start { id, attempt: 1, again, maker, made: 0 });
        checker.history("m9.1", 20, &Entry::Asks { id, attempt: 1, again });
        if seen > 0 {
            checker.history("m9.1", 30, &Entry::Again { id, attempt: 1 });
        }
        if seen > 1 {
            checker.history("m9.1", 200_000, &second);
        }
        checker.history("taker.1", 9_000_000, &Entry::Took(id));
        checker.accepted((term, 1));
        let counts = ["generated", "failed", "taken"].map(|name| (name.to_owned(), 1));
        let now = Snapshot { counts: counts.into(), state: 1, ..Snapshot::default() };
        checker.finish(&now);
        assert!(checker.violations.is_empty(), "{fails} {seen}: {:?}", checker.violations);
    }
}

#[test]
fn without_a_ledger_a_message_may_be_given_up_that_nobody_started() {
    for source in [Source::Outcome(7), Source::Entry(CatchUp::All, 1), Source::Sender(7)] {
        let id = (source, 1);
        let mut checker = Checker { unledgered: true, ..Checker::default() };
        checker.history("taker.1", 10, &Entry::Took(id));
        checker.history("taker.1", 20, &Entry::Removed(id));
        let mut counts = vec!["sent", "failed", "taken"];
        counts.extend(match source {
            Source::Outcome(_) => Some("followed"),
            Source::Entry(..) => Some("fired"),
            _ => None,
        });
        let counts = counts.into_iter().map(|name| (name.to_owned(), 1)).collect();
        checker.finish(&Snapshot { counts, ..Snapshot::default() });
        assert!(checker.violations.is_empty(), "{source}: {:?}", checker.violations);
    }
}
