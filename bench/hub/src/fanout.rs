//! One publisher, one key, many subscribers: what a delivery costs.
//!
//! The figure is the CPU time of the process, which a busy neighbour disturbs less than wall time.
//! For each number of subscribers every round runs all cases in turn; so what slows the machine
//! down slows them all.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::time::ClockId;

use crate::case::{Case, Event, Kind, Running, Started, Tally};
use crate::report::{Series, digits, table};

/// One case with one number of subscribers.
#[derive(Default)]
struct Figures {
    /// CPU nanoseconds per delivery.
    cpu: Series,
    /// Nanoseconds of wall time per delivery.
    wall: Series,
    /// Events per second.
    rate: Series,
}

/// Measures, prints, and says whether all goals are met.
pub(crate) fn fanout(ours: &[Case], peers: &[Case], rounds: usize, subscribers: &[usize]) -> bool {
    let cases: Vec<&Case> = ours.iter().chain(peers).collect();
    // A column per number of subscribers, a row per case.
    let mut columns: Vec<Vec<Figures>> = Vec::new();
    for &count in subscribers {
        let mut column: Vec<Figures> = cases.iter().map(|_| Figures::default()).collect();
        for round in 1..=rounds {
            for (case, figures) in cases.iter().zip(&mut column) {
                if count <= case.most {
                    measure(case, count, figures);
                }
            }
            eprintln!("N={count}: round {round} of {rounds}");
        }
        columns.push(column);
    }

    let show = |title: &str, cell: fn(&Figures) -> String| {
        let head = subscribers.iter().map(|count| format!("N={count}"));
        let mut rows = vec![["case".to_owned()].into_iter().chain(head).collect::<Vec<_>>()];
        for (row, case) in cases.iter().enumerate() {
            let cells = columns.iter().map(|column| cell(&column[row]));
            rows.push([case.name.to_owned()].into_iter().chain(cells).collect());
        }
        println!("### {title}\n\n{}", table(&rows));
    };
    println!("## Fan-out: one publisher, one key, N subscribers, lossless\n");
    show("CPU ns per delivery: median (lowest–highest)", |figures| figures.cpu.spread());
    show("Wall ns per delivery: median", |figures| figures.wall.middle());
    show("Events per second: median", |figures| figures.rate.middle());
    println!("`-`: not run; a thread per subscriber is measured up to N=64 only.");
    println!("`*`: handlers run in the publisher's thread; no goal is held against it.\n");

    let mut met = true;
    println!("### Our best against the best lossless peer, CPU ns per delivery\n");
    for (count, column) in subscribers.iter().zip(&columns) {
        let (line, good) = verdict(*count, &cases, column, ours.len(), false);
        println!("- {line}");
        met &= good;
    }
    println!("\n### The same against those that keep to the bound, as the hub does\n");
    for (count, column) in subscribers.iter().zip(&columns) {
        println!("- {}", verdict(*count, &cases, column, ours.len(), true).0);
    }
    println!();
    met
}

/// The first `ours` of the cases are ours.
fn verdict(
    count: usize,
    cases: &[&Case],
    column: &[Figures],
    ours: usize,
    bounded: bool,
) -> (String, bool) {
    let best = |from: usize, to: usize| {
        let named = (from..to).map(|row| (cases[row], column[row].cpu.median()));
        let fair = named.filter(|(case, cpu)| {
            case.kind == Kind::Queued && (case.bounded || !bounded) && !cpu.is_nan()
        });
        fair.min_by(|one, two| one.1.total_cmp(&two.1))
    };
    let limit = if count >= 64 { 0.5 } else { 1.3 };
    match (best(0, ours), best(ours, cases.len())) {
        (Some((our, mine)), Some((peer, theirs))) => {
            let met = mine / theirs <= limit;
            let line = format!(
                "N={count}: {} {} / {} {} = {:.2}, goal <= {limit}: {}",
                our.name,
                digits(mine),
                peer.name,
                digits(theirs),
                mine / theirs,
                if met { "pass" } else { "FAIL" },
            );
            (line, met)
        }
        (None, Some((peer, theirs))) => {
            let line = format!("N={count}: best peer {} {}", peer.name, digits(theirs));
            (format!("{line}; nothing of ours, goal <= {limit}"), ours == 0)
        }
        // Without a peer there is nothing to compare with.
        (_, None) => (format!("N={count}: no peer was run"), true),
    }
}

/// Runs a case once.
fn measure(case: &Case, subscribers: usize, figures: &mut Figures) {
    let events = case.events(subscribers);
    let started = (case.start)(subscribers, events);
    settle();
    let (wall, cpu, tally) = match started {
        Started::Shared(running) => time(running, events, |seq| Arc::new(Event::new(seq))),
        Started::Owned(running) => time(running, events, Event::new),
    };
    assert_eq!(
        tally,
        Tally::expected(subscribers, events),
        "{}: events lost or doubled with {subscribers} subscribers",
        case.name,
    );
    let deliveries = tally.count as f64;
    figures.cpu.push(cpu.as_nanos() as f64 / deliveries);
    figures.wall.push(wall.as_nanos() as f64 / deliveries);
    figures.rate.push(events as f64 / wall.as_secs_f64());
}

/// Publishes from a thread of its own. The clock stops when the last subscriber has drained, before
/// anything is taken down.
fn time<E: 'static>(
    mut running: Box<dyn Running<E>>,
    events: usize,
    make: fn(u64) -> E,
) -> (Duration, Duration, Tally) {
    let publisher = thread::spawn(move || {
        let (wall, cpu) = (Instant::now(), cpu_time());
        for seq in 0..events as u64 {
            running.publish(make(seq));
        }
        let tally = running.finish();
        (wall.elapsed(), cpu_time() - cpu, tally)
    });
    publisher.join().expect("a publisher that does not panic")
}

/// Waits until the subscribers have nothing left to do: what it takes to start them is not part of
/// a delivery.
pub(crate) fn settle() {
    let mut idle = 0;
    for _ in 0..200 {
        let before = cpu_time();
        thread::sleep(Duration::from_millis(5));
        idle = if cpu_time() - before < Duration::from_micros(300) { idle + 1 } else { 0 };
        if idle == 3 {
            return;
        }
    }
}

/// Of all threads of this process, so far.
fn cpu_time() -> Duration {
    ClockId::CLOCK_PROCESS_CPUTIME_ID.now().expect("a clock that every Linux has").into()
}
