//! Proves the log, the wake edge and the stop under thousands of schedules, chosen by shuttle: the
//! same files as in `src`, with shuttle's primitives below them. Nothing else in the build knows.
#![allow(missing_docs, dead_code, unreachable_pub)]

#[path = "../../src/end"]
mod end {
    pub(crate) mod life;
}
#[path = "../../src/wait"]
mod wait {
    pub(crate) mod cursor;
    pub(crate) mod lane;
    pub(crate) mod log;
    pub(crate) mod overflow;
    pub(crate) mod queue;
    pub(crate) mod reader;
    pub(crate) mod segment;
    pub(crate) mod signal;
}
mod sync;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use shuttle::future::block_on;
use shuttle::thread;

use crate::end::life::Life;
use crate::sync::{AtomicBool, Ordering};
use crate::wait::cursor::Cursor;
use crate::wait::log::{Full, Log};
use crate::wait::overflow::Overflow;
use crate::wait::queue::{EventQueue, Pushed, QueueReader, Room};
use crate::wait::reader::Reader;
use crate::wait::signal::Signal;

/// Half of the schedules at random, half with few preemptions at the worst places.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    let many = if std::env::var_os("ARTEL_SOAK").is_some() { 100_000 } else { 3_000 };
    let one = model.clone();
    shuttle::check_random(move || one(), many);
    shuttle::check_pct(move || model(), many, 3);
}

fn reader(log: &Arc<Log<u64>>, owner: u64, bound: u64) -> (Arc<Cursor<u64>>, Reader<u64>) {
    let cursor = Cursor::new(owner, bound, u64::MAX);
    (cursor.clone(), Reader::new(log.clone(), cursor))
}

/// Writes as a publisher does: waits while a reader is full. `false` if the log is closed.
fn write(log: &Log<u64>, lane: usize, value: u64) -> bool {
    let signal = Arc::new(Signal::new());
    block_on(poll_fn(|cx| {
        signal.register(cx.waker());
        let mut writer = log.lock();
        loop {
            match writer.room(1) {
                Ok(()) => break,
                Err(Full::Closed) => return Poll::Ready(false),
                Err(Full::By(cursor)) => {
                    if writer.wait(&cursor, 1, &signal) {
                        return Poll::Pending;
                    }
                }
            }
        }
        writer.push(lane, value, 1);
        writer.finish().wake();
        Poll::Ready(true)
    }))
}

/// Reads as a runner does: sleeps while there is nothing. `None` once it has left and has all.
fn read(cursor: &Cursor<u64>, reader: &mut Reader<u64>) -> Option<u64> {
    block_on(poll_fn(|cx| {
        cursor.signal.register(cx.waker());
        loop {
            if let Some(value) = reader.current().copied() {
                reader.advance(1);
                return Poll::Ready(Some(value));
            }
            if cursor.is_gone() && reader.is_empty() {
                return Poll::Ready(None);
            }
            if reader.sleep() {
                return Poll::Pending;
            }
        }
    }))
}

/// Each of two writers writes three; two readers with small bounds see all six, in order, and
/// nobody sleeps for ever.
#[test]
fn nothing_is_lost_and_nobody_sleeps_for_ever() {
    check(|| {
        let log = Arc::new(Log::new());
        let readers: Vec<_> = [(1, 1), (2, 3)]
            .into_iter()
            .map(|(owner, bound)| {
                let (cursor, mut reader) = reader(&log, owner, bound);
                thread::spawn(move || {
                    let seen: Vec<u64> =
                        (0..6).filter_map(|_| read(&cursor, &mut reader)).collect();
                    for who in [10, 20] {
                        let of = |one: &&u64| **one / 10 == who / 10;
                        let order: Vec<_> = seen.iter().filter(of).copied().collect();
                        assert_eq!(order, [who, who + 1, who + 2]);
                    }
                    seen
                })
            })
            .collect();
        let writers: Vec<_> = [10, 20]
            .into_iter()
            .map(|first| {
                let log = log.clone();
                thread::spawn(move || {
                    (first..first + 3).for_each(|one| assert!(write(&log, 1, one)))
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
        let seen: Vec<_> = readers.into_iter().map(|one| one.join().expect("no panic")).collect();
        assert_eq!(seen[0], seen[1], "one log, one order");
        log.tidy();
    });
}

/// A reader leaves with a drain while others write: it gets exactly what was written before, and
/// whoever waited for it goes on.
#[test]
fn a_reader_that_leaves_gets_what_was_written_before() {
    check(|| {
        let log = Arc::new(Log::new());
        let (cursor, mut one) = reader(&log, 1, 2);
        let writer = {
            let log = log.clone();
            thread::spawn(move || (0..5).for_each(|value| assert!(write(&log, 1, value))))
        };
        let leaver = {
            let (log, cursor) = (log.clone(), cursor.clone());
            thread::spawn(move || log.remove(&cursor, true))
        };
        let mut seen = Vec::new();
        while let Some(value) = read(&cursor, &mut one) {
            seen.push(value);
        }
        assert_eq!(seen, (0..seen.len() as u64).collect::<Vec<_>>());
        writer.join().expect("the writer goes on");
        leaver.join().expect("no panic");
        assert!(one.is_empty() && cursor.remaining() == 0);
    });
}

/// A reader that is simply dropped holds nobody back; one that joins sees all from there on.
#[test]
fn coming_and_going_disturbs_nobody() {
    check(|| {
        let log = Arc::new(Log::new());
        let (cursor, mut stays) = reader(&log, 1, 1);
        let writer = {
            let log = log.clone();
            thread::spawn(move || (0..4).for_each(|value| assert!(write(&log, 1, value))))
        };
        let guest = {
            let log = log.clone();
            thread::spawn(move || {
                let (_cursor, mut guest) = reader(&log, 2, 1);
                let first = guest.current().copied();
                guest.advance(1);
                let second = guest.current().copied();
                if let (Some(first), Some(second)) = (first, second) {
                    assert_eq!(second, first + 1);
                }
                log.tidy();
            })
        };
        let seen: Vec<u64> = (0..4).filter_map(|_| read(&cursor, &mut stays)).collect();
        assert_eq!(seen, [0, 1, 2, 3]);
        writer.join().expect("no panic");
        guest.join().expect("no panic");
    });
}

/// Urgent events and usual ones, read in stretches: each lane in order, all of them.
#[test]
fn lanes_and_stretches_lose_nothing() {
    check(|| {
        let log = Arc::new(Log::new());
        let (cursor, mut reader) = reader(&log, 1, 4);
        let writer = {
            let log = log.clone();
            thread::spawn(move || {
                for (lane, value) in [(1, 10), (1, 11), (0, 0), (1, 12), (2, 20), (1, 13)] {
                    assert!(write(&log, lane, value));
                }
            })
        };
        let mut seen: Vec<u64> = Vec::new();
        while seen.len() < 6 {
            let mut passed = 0;
            if let Some(stretch) = reader.stretch() {
                for value in stretch.slots.iter().map_while(sync::Slot::get) {
                    seen.push(*value);
                    passed += 1;
                    if stretch.passed(passed, passed) {
                        break;
                    }
                }
                reader.passed(passed, passed, false);
            } else {
                seen.extend(read(&cursor, &mut reader));
            }
        }
        for lane in 0..3 {
            let order: Vec<u64> = seen.iter().copied().filter(|one| one / 10 == lane).collect();
            assert!(order.is_sorted(), "{seen:?}");
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 10, 11, 12, 13, 20]);
        writer.join().expect("no panic");
    });
}

/// A log that is closed refuses, and wakes whoever waits.
#[test]
fn closing_wakes_whoever_waits() {
    check(|| {
        let log = Arc::new(Log::new());
        let (_cursor, _stuck) = reader(&log, 1, 1);
        let writer = {
            let log = log.clone();
            thread::spawn(move || (0..3).take_while(|value| write(&log, 1, *value)).count())
        };
        log.close();
        assert!(writer.join().expect("no panic") <= 1);
    });
}

/// Waits for room as a publisher does.
async fn room(queue: &Arc<EventQueue<u64>>) -> Room<u64> {
    let signal = Arc::new(Signal::new());
    poll_fn(|cx| {
        signal.register(cx.waker());
        loop {
            if let Some(room) = Room::take(queue, 1) {
                return Poll::Ready(room);
            }
            if queue.wait(1, &signal) {
                return Poll::Pending;
            }
        }
    })
    .await
}

/// Room that is given back is somebody else's.
#[test]
fn room_that_is_not_used_is_given_back() {
    check(|| {
        let bounds = wait::overflow::Queue::bounded(1).on_full(Overflow::Block);
        let queue = Arc::new(EventQueue::new(1, bounds, |_, _| false));
        let gives_up = {
            let queue = queue.clone();
            thread::spawn(move || drop(block_on(room(&queue))))
        };
        let room = block_on(room(&queue));
        assert_eq!(room.push(1, 7), Pushed::Queued);
        gives_up_or_waits(gives_up, &queue);
        assert_eq!(queue.push(1, 8, 1), Pushed::Full(8));
    });
}

/// It goes on as soon as the one that waits is read.
fn gives_up_or_waits(gives_up: thread::JoinHandle<()>, queue: &Arc<EventQueue<u64>>) {
    let mut reader = QueueReader::new(queue.clone(), 0);
    assert_eq!(reader.current(), Some(&7));
    gives_up.join().expect("nobody waits for ever");
    assert_eq!(queue.push(1, 9, 1), Pushed::Queued);
}

/// Reads as a runner does that may be robbed: shows, looks at its orders, handles. What it handled,
/// and what it left.
fn handle_until_told(
    log: &Arc<Log<u64>>,
    mut reader: Reader<u64>,
    life: &Life,
) -> (Vec<u64>, Vec<u64>) {
    let (orders, mut handled) = (life.orders(), Vec::new());
    while life.orders() == orders && !orders.stop() {
        let mut passed = 0;
        if let Some(stretch) = reader.stretch() {
            if life.orders() == orders {
                for value in stretch.slots.iter().map_while(sync::Slot::get) {
                    handled.push(*value);
                    passed += 1;
                    stretch.show(passed);
                    if life.orders() != orders {
                        break;
                    }
                }
            }
            reader.passed(passed, 0, false);
        } else if reader.current().is_some() {
            reader.show();
            if life.orders() == orders {
                handled.extend(reader.in_hand().copied());
                reader.advance(1);
            }
        } else {
            break;
        }
    }
    let cursor = reader.cursor().clone();
    log.remove(&cursor, true);
    let rest = reader.take_unread();
    (handled, rest)
}

/// What is taken from a reader that does not come back, what it handles and what it leaves: every
/// event is in one of them, once, and at most one is left.
#[test]
fn every_event_is_handled_left_or_stolen() {
    check(|| {
        let log = Arc::new(Log::new());
        let (cursor, reader) = reader(&log, 1, 8);
        let life = Arc::new(Life::new());
        for (lane, value) in [(1, 10), (1, 11), (0, 0), (1, 12), (2, 20), (1, 13)] {
            assert!(write(&log, lane, value));
        }
        let runner = {
            let (log, life) = (log.clone(), life.clone());
            thread::spawn(move || handle_until_told(&log, reader, &life))
        };
        log.remove(&cursor, true);
        life.stop();
        let stolen = cursor.take_waiting();
        let (handled, rest) = runner.join().expect("no panic");
        // Without having been robbed it leaves all that it was told to leave.
        assert!(rest.len() <= 1 || stolen.is_empty(), "{handled:?} {rest:?} {stolen:?}");
        let mut all = [handled, rest, stolen].concat();
        all.sort_unstable();
        assert_eq!(all, [0, 10, 11, 12, 13, 20]);
    });
}

/// The same of an own queue.
#[test]
fn every_event_of_a_queue_is_handled_left_or_stolen() {
    check(|| {
        let bounds = wait::overflow::Queue::bounded(8).on_full(Overflow::DropNewest);
        let queue = Arc::new(EventQueue::new(1, bounds, |_, _| false));
        let life = Arc::new(Life::new());
        for value in 0..4 {
            assert_eq!(queue.push(1, value, 1), Pushed::Queued);
        }
        let runner = {
            let (mut reader, life) = (QueueReader::new(queue.clone(), 0), life.clone());
            thread::spawn(move || {
                let (orders, mut handled) = (life.orders(), Vec::new());
                while let Some(value) = reader.current().copied() {
                    if life.orders() != orders || orders.stop() {
                        break;
                    }
                    handled.push(value);
                    reader.advance();
                }
                (handled, reader.take_unread())
            })
        };
        life.stop();
        queue.close();
        let stolen = queue.take_waiting();
        let (handled, rest) = runner.join().expect("no panic");
        let mut all = [handled, rest, stolen].concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
    });
}

/// A reader hangs at an event. Another one goes on behind it, while publishers wait, and the one
/// that hung changes nothing when it comes back.
#[test]
fn a_new_reader_goes_on_behind_the_event_in_hand() {
    check(|| {
        let log = Arc::new(Log::new());
        let (cursor, mut old) = reader(&log, 1, 2);
        let writer = {
            let log = log.clone();
            thread::spawn(move || (0..5).for_each(|value| assert!(write(&log, 1, value))))
        };
        let hangs_at = block_on(poll_fn(|cx| {
            cursor.signal.register(cx.waker());
            loop {
                if let Some(value) = old.current().copied() {
                    old.show();
                    return Poll::Ready(value);
                }
                if old.sleep() {
                    return Poll::Pending;
                }
            }
        }));
        let wait::log::ReplacedCursor { next, in_hand, writers } = log.replace(&cursor, |_| 1);
        writers.iter().for_each(|writer| writer.wake());
        assert_eq!((hangs_at, in_hand), (0, Some(0)));
        let back = thread::spawn(move || {
            old.advance(1);
            drop(old);
        });
        let mut new = Reader::from_cursor(log.clone(), next.clone());
        let seen: Vec<u64> = (0..4).filter_map(|_| read(&next, &mut new)).collect();
        assert_eq!(seen, [1, 2, 3, 4]);
        writer.join().expect("the writer goes on");
        back.join().expect("no panic");
        assert!(new.is_empty() && log.readers() == 1);
    });
}

/// The wake edge of an own queue: events come one by one, and the reader sleeps between.
#[test]
fn a_queue_wakes_its_reader_and_its_writers() {
    check(|| {
        let bounds = wait::overflow::Queue::bounded(1).on_full(Overflow::Block);
        let queue = Arc::new(EventQueue::new(1, bounds, |_, _| false));
        let mut reader = QueueReader::new(queue.clone(), 0);
        let writers: Vec<_> = [0, 10]
            .into_iter()
            .map(|first| {
                let queue = queue.clone();
                thread::spawn(move || {
                    for value in first..first + 3 {
                        let room = block_on(room(&queue));
                        assert_eq!(room.push(1, value), Pushed::Queued);
                        assert!(queue.behind() <= 2, "one waits, one is in hand");
                    }
                })
            })
            .collect();
        let mut seen = Vec::new();
        while seen.len() < 6 {
            seen.push(block_on(poll_fn(|cx| {
                queue.signal.register(cx.waker());
                loop {
                    if let Some(value) = reader.current().copied() {
                        reader.advance();
                        return Poll::Ready(value);
                    }
                    if reader.sleep() {
                        return Poll::Pending;
                    }
                }
            })));
        }
        for first in [0, 10] {
            let order: Vec<u64> =
                seen.iter().copied().filter(|one| one / 10 == first / 10).collect();
            assert_eq!(order, [first, first + 1, first + 2]);
        }
        writers.into_iter().for_each(|one| one.join().expect("no panic"));
    });
}

/// What a queue drops and what its reader gets is all there was.
#[test]
fn a_queue_that_drops_gives_everything_to_somebody() {
    check(|| {
        let bounds = wait::overflow::Queue::bounded(1).on_full(Overflow::DropOldest);
        let queue = Arc::new(EventQueue::new(1, bounds, |_, _| false));
        let mut reader = QueueReader::new(queue.clone(), 0);
        let over = Arc::new(AtomicBool::new(false));
        let writer = {
            let (queue, closed) = (queue.clone(), over.clone());
            thread::spawn(move || {
                let mut dropped = Vec::new();
                for value in 0..4u64 {
                    match queue.push(1, value, 1) {
                        Pushed::Queued => {}
                        Pushed::Instead(gone) => dropped.extend(gone),
                        other => panic!("{other:?}"),
                    }
                }
                closed.store(true, Ordering::SeqCst);
                queue.close();
                dropped
            })
        };
        let (mut seen, mut lagged) = (Vec::new(), 0);
        block_on(poll_fn(|cx| {
            queue.signal.register(cx.waker());
            loop {
                if let Some(value) = reader.current().copied() {
                    lagged += reader.lagged();
                    reader.told_lagged();
                    seen.push(value);
                    reader.advance();
                } else if over.load(Ordering::SeqCst) && reader.is_empty() {
                    return Poll::Ready(());
                } else if reader.sleep() {
                    return Poll::Pending;
                }
            }
        }));
        let dropped = writer.join().expect("no panic");
        assert!(seen.is_sorted());
        assert_eq!(lagged, dropped.len() as u64, "the reader is told");
        seen.extend(dropped);
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
    });
}

/// Stop and join: after the join the handler is never inside again, and the join comes.
#[test]
fn after_a_join_the_handler_never_runs() {
    check(|| {
        let log = Arc::new(Log::new());
        let (cursor, mut reader) = reader(&log, 1, 4);
        let life = Arc::new(Life::new());
        let inside = Arc::new(AtomicBool::new(false));
        let runner = {
            let (cursor, life, inside) = (cursor.clone(), life.clone(), inside.clone());
            thread::spawn(move || {
                block_on(poll_fn(|cx| {
                    cursor.signal.register(cx.waker());
                    loop {
                        if life.orders().stop() {
                            return Poll::Ready(());
                        }
                        if reader.current().is_some() {
                            inside.store(true, Ordering::SeqCst);
                            inside.store(false, Ordering::SeqCst);
                            reader.advance(1);
                        } else if reader.sleep() {
                            return Poll::Pending;
                        }
                    }
                }));
                drop(reader);
                life.end();
            })
        };
        let writer = {
            let log = log.clone();
            thread::spawn(move || (0..3).for_each(|value| assert!(write(&log, 1, value))))
        };
        life.stop();
        cursor.signal.wake();
        block_on(poll_fn(|cx| match life.join(cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }));
        assert!(!inside.load(Ordering::SeqCst) && life.is_over());
        writer.join().expect("nobody waits for the dead");
        runner.join().expect("no panic");
    });
}
