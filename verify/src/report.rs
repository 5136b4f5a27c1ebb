//! [`Report`]: the verdict, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use crate::check::Checker;
use crate::history::{Entry, now};
use crate::options::Options;
use crate::plan::Kind;
use crate::promise::{Invariant, Seen, Violation};

/// Times nobody led, or nothing flowed, by cause.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    open: Vec<Open>,
    /// Whether anything else was broken, and how long they took.
    over: BTreeMap<(&'static str, bool), Vec<u64>>,
    last_term: u64,
    pub(crate) terms: u64,
}

#[derive(Debug)]
struct Open {
    cause: &'static str,
    since: u64,
    term: u64,
    /// The same term may go on.
    same: bool,
    /// Something else was broken meanwhile that matters for it.
    disturbed: bool,
}

impl Outages {
    /// Whoever led under this term does not any more. `hurt`: Redis itself does not work.
    pub(crate) fn begin(&mut self, cause: &'static str, term: u64, same: bool, hurt: bool) {
        let disturbed = hurt || !self.open.is_empty();
        self.disturb();
        self.open.push(Open { cause, since: now(), term, same, disturbed });
    }

    /// Something is done to Redis or to whoever leads: what goes on takes longer for that.
    pub(crate) fn disturb(&mut self) {
        self.open.iter_mut().for_each(|open| open.disturbed = true);
    }

    /// It is over when a worker begins with a message that was made after it began.
    pub(crate) fn history(&mut self, at: u64, entry: &Entry) {
        if let Entry::Leads(term) = entry
            && *term > self.last_term
        {
            self.last_term = *term;
            self.terms += 1;
        }
        let Entry::Start { id, made, .. } = entry else { return };
        let over = &mut self.over;
        self.open.retain(|open| {
            let ended = *made > open.since && (open.same || id.0 > open.term);
            if ended {
                over.entry((open.cause, open.disturbed))
                    .or_default()
                    .push(at.saturating_sub(open.since));
            }
            !ended
        });
    }
}

/// Whether what matters was seen at all.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Paths {
    /// Times the requests of a generator reached Redis when another one led.
    pub stale_requests: u64,
    /// Requests that took effect without their sender learning of it: repeated, they must be known.
    pub replies_swallowed: u64,
    /// Times Redis was seen to go by a clock that was wrong, and meant to be.
    pub clocks_seen: u64,
    /// What a killed taker held was taken by the next.
    pub drain_recovered: bool,
}

/// How long something took, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    /// How often.
    pub times: usize,
    /// Half of them took less.
    pub p50_ms: f64,
    /// One of a hundred took longer.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Times {
    fn of(mut micros: Vec<u64>) -> Option<Times> {
        micros.sort_unstable();
        let last = micros.len().checked_sub(1)?;
        let at = |part: f64| micros[(last as f64 * part).round() as usize] as f64 / 1000.0;
        Some(Times { times: micros.len(), p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) })
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every promise held, and everything that was to be tried was.
    Held,
    /// Every promise held as far as it was tried; something never came.
    NotProved,
    /// A promise was broken.
    Broken,
}

/// Everything a run found out.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What came of it.
    pub verdict: Verdict,
    /// What decided which fault came when.
    pub seed: u64,
    /// Whose Redis.
    pub server: String,
    /// Members of the fleet.
    pub members: usize,
    /// Messages a second.
    pub rate: u64,
    /// How long a session lasts without a refresh.
    pub lease_ms: u64,
    /// From the first fault to the verdict.
    pub took_ms: u64,
    /// Somebody ended it early.
    pub interrupted: bool,
    /// How often each kind of fault happened.
    pub faults: BTreeMap<&'static str, u64>,
    /// What there was.
    pub seen: Seen,
    /// Paths that are easily missed.
    pub paths: Paths,
    /// How long nobody led or nothing flowed, by cause.
    pub outages: BTreeMap<String, Times>,
    /// Outages that had not ended when the run did.
    pub outages_open: usize,
    /// How long it took until all was well again after the faults of a round.
    pub heals: Option<Times>,
    /// What must not be.
    pub violations: Vec<Violation>,
    /// What never came, so that nothing is proved about it.
    pub untried: Vec<String>,
}

impl Report {
    #[expect(clippy::too_many_arguments, reason = "made in one place")]
    pub(crate) fn new(
        options: &Options,
        server: &str,
        took: Duration,
        interrupted: bool,
        counts: BTreeMap<Kind, u64>,
        checker: Checker,
        outages: Outages,
        paths: Paths,
        heals: Vec<Duration>,
        missing: Vec<String>,
    ) -> Report {
        let faults: BTreeMap<_, _> =
            counts.iter().map(|(kind, many)| (kind.name(), *many)).collect();
        let of = |kinds: &[Kind]| kinds.iter().any(|kind| options.kinds.contains(kind));
        let times: BTreeMap<_, _> = outages
            .over
            .iter()
            .filter_map(|((cause, disturbed), times)| {
                let more = if *disturbed { ", and more" } else { "" };
                Some((format!("{cause}{more}"), Times::of(times.clone())?))
            })
            .collect();
        let lease = options.lease.as_micros() as u64;
        let killed = outages.over.iter().filter(|((cause, _), _)| *cause == "generator killed");
        let fast = killed.flat_map(|(_, times)| times).filter(|took| **took < lease).count();
        let mut untried = missing;
        untried.extend(
            (options.kinds.iter())
                .filter(|kind| !counts.contains_key(kind))
                .map(|kind| format!("no fault of the kind {}", kind.name())),
        );
        let seen = &checker.seen;
        let moved = [Kind::FreezeLong, Kind::HalfOpen, Kind::OneWayOut, Kind::Cut];
        let paths_tried = [
            (of(&moved), seen.fenced + paths.stale_requests > 0, "no stale generator was fenced"),
            (of(&moved), seen.claims_lost > 0, "no worker lost a claim"),
            (of(&[Kind::KillWorker]), seen.adopted > 0, "nothing of a dead member was put back"),
            (of(&[Kind::KillGenerator]), fast > 0, "no takeover was faster than the lease"),
            (of(&[Kind::KillTaker]), paths.drain_recovered, "no killed taker had anything in hand"),
            (
                of(&[Kind::ClockRedis]),
                paths.clocks_seen > 0,
                "no clock of Redis was seen to be wrong",
            ),
            (
                of(&[Kind::Reset]),
                paths.replies_swallowed > 0 && seen.already > 0,
                "no repeated request was known already",
            ),
        ];
        for (wanted, tried, what) in paths_tried {
            if wanted && !tried {
                untried.push(what.to_owned());
            }
        }
        let verdict = match (checker.violations.is_empty(), untried.is_empty() && !interrupted) {
            (false, _) => Verdict::Broken,
            (true, true) => Verdict::Held,
            (true, false) => Verdict::NotProved,
        };
        Report {
            verdict,
            seed: options.seed,
            server: server.to_owned(),
            members: options.members,
            rate: options.rate,
            lease_ms: options.lease.as_millis() as u64,
            took_ms: took.as_millis() as u64,
            interrupted,
            faults,
            seen: checker.seen,
            paths,
            outages: times,
            outages_open: outages.open.len(),
            heals: Times::of(heals.iter().map(|time| time.as_micros() as u64).collect()),
            violations: checker.violations,
            untried,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let seen = &self.seen;
        let total: u64 = self.faults.values().sum();
        let seconds = self.took_ms as f64 / 1000.0;
        let _ = writeln!(
            text,
            "What was broken: {total} faults in {seconds:.0} s (seed {})",
            self.seed
        );
        for kind in Kind::ALL {
            if let Some(many) = self.faults.get(kind.name()) {
                let _ = writeln!(text, "  {many:>7}  {}", kind.words());
            }
        }
        let _ = writeln!(text, "\nMessages");
        for (many, what) in [
            (seen.accepted, "accepted"),
            (seen.settled, "settled"),
            (seen.failed, "of these found in error and kept"),
            (seen.terms, "terms, each with one generator"),
        ] {
            let _ = writeln!(text, "  {many:>7}  {what}");
        }
        let _ = writeln!(text, "\nHow long nobody led, or nothing flowed, in ms");
        let _ =
            writeln!(text, "  {:<30}{:>7}{:>9}{:>9}{:>9}", "cause", "times", "p50", "p99", "max");
        for (cause, times) in &self.outages {
            let Times { times, p50_ms, p99_ms, max_ms } = times;
            let _ =
                writeln!(text, "  {cause:<30}{times:>7}{p50_ms:>9.0}{p99_ms:>9.0}{max_ms:>9.0}");
        }
        if self.outages.keys().any(|cause| cause.ends_with("and more")) {
            let _ = writeln!(text, "  (and more: Redis or the next generator was hit meanwhile)");
        }
        if let Some(Times { times, p50_ms, p99_ms, max_ms }) = &self.heals {
            let cause = "all well again";
            let _ =
                writeln!(text, "  {cause:<30}{times:>7}{p50_ms:>9.0}{p99_ms:>9.0}{max_ms:>9.0}");
        }
        let _ = writeln!(text, "\nPromises");
        for invariant in Invariant::ALL {
            let broken = self.violations.iter().filter(|one| one.invariant == invariant).count();
            let mark = match broken {
                0 if invariant == Invariant::NothingLost && seen.lost_with_redis > 0 => {
                    format!("not covered: Redis itself lost {}", seen.lost_with_redis)
                }
                0 => "held".to_owned(),
                _ => format!("BROKEN {broken} times"),
            };
            let _ = writeln!(text, "  {:<42}{mark}", invariant.words());
        }
        let _ = writeln!(text, "\nNot promised, and how often it happened");
        for (many, what) in [
            (
                seen.attempted_again,
                "times a message was handled again, because its worker died or was cut off",
            ),
            (seen.claims_lost, "times a worker finished what was no longer its own: not recorded"),
            (
                seen.printed_again,
                "times an error was printed again, because its taker died before it said so",
            ),
            (seen.lost_with_redis, "messages were lost with the data of Redis"),
            (seen.redone_after_loss, "attempts or outcomes were forgotten by Redis and made again"),
        ] {
            let _ = writeln!(text, "  {many:>7}  {what}");
        }
        let everysec = self.faults.contains_key(Kind::RedisEverysec.name());
        if everysec || self.faults.contains_key(Kind::RedisLoss.name()) {
            let how = match everysec {
                true => {
                    "whose append-only file is synced every second was killed: what it acknowledged last may be gone"
                }
                false => "without an append-only file was killed: what it had is gone",
            };
            let _ = writeln!(
                text,
                "\nRedis {how}.\n\"Nothing lost\" and \"exactly once\" hold only as long as Redis keeps what it \
                 acknowledged. Members noticed {} times.\nThe fleet went on.",
                seen.loss_noticed
            );
        }
        if !self.untried.is_empty() {
            let _ = writeln!(text, "\nNot proved, because it never came");
        }
        for what in &self.untried {
            let _ = writeln!(text, "  {what}");
        }
        for violation in self.violations.iter().take(5) {
            let _ = writeln!(text, "\nBROKEN: {}: {}", violation.invariant.words(), violation.what);
            for line in &violation.history {
                let _ = writeln!(text, "  {line}");
            }
        }
        let _ = writeln!(text, "\n{}", self.sentence());
        text
    }

    /// The verdict, in one sentence.
    pub fn sentence(&self) -> String {
        match self.verdict {
            Verdict::Broken => format!(
                "BROKEN: {} violations. Try it again with --seed {}.",
                self.violations.len(),
                self.seed
            ),
            Verdict::Held if self.seen.lost_with_redis > 0 => format!(
                "HELD what is promised: {} messages went with the data of Redis, nothing was done twice, and \
                 everything healed.",
                self.seen.lost_with_redis
            ),
            Verdict::Held => {
                "HELD: nothing was lost, nothing was done twice, and everything healed.".to_owned()
            }
            Verdict::NotProved if self.interrupted => {
                "Held so far; it was ended early, so this is no proof.".to_owned()
            }
            Verdict::NotProved => {
                "Held as far as it was tried; some things never came, so this is no proof of them."
                    .to_owned()
            }
        }
    }
}
