//! [`Report`]: the verdict, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use crate::director::Watch;
use crate::options::Options;
use crate::plan::Kind;
use crate::promise::{Invariant, Seen, Violation};
use crate::topology::Topology;

/// How often rare but important things happened.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Paths {
    /// How often requests of a stale generator reached Redis while another one led.
    pub stale_requests: u64,
    /// Requests that took effect, but whose answer was lost. When they are repeated, Redis must
    /// recognize them.
    pub replies_swallowed: u64,
    /// How often a generator was silent for a lease and a half.
    pub silenced: u64,
    /// How many of these generators were replaced before they could be reached again.
    pub replaced: u64,
    /// How often others let go what was due while a silent generator still led.
    pub stood_in: u64,
    /// How often nobody did.
    pub held_back: u64,
    /// How often the clock of Redis was wrong, as intended.
    pub clocks_seen: u64,
    /// The errors that a killed taker held were taken by the next one.
    pub drain_recovered: bool,
}

/// How long something took, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    /// The number of measurements.
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

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every promise held, and everything was tried.
    Held,
    /// Every promise held as far as it was tried, but something never happened.
    NotProved,
    /// A promise was broken.
    Broken,
}

/// All results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of Artel.
    pub artel: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// The result for each promise.
    pub promises: BTreeMap<&'static str, String>,
    /// The seed that decided which fault came when.
    pub seed: u64,
    /// Which Redis was used.
    pub server: String,
    /// How many servers there were, and who decided which of them was the primary.
    pub topology: Topology,
    /// Members of the fleet.
    pub members: usize,
    /// Messages per second.
    pub rate: u64,
    /// How long a session lasts without a refresh.
    pub lease_ms: u64,
    /// How long faults were to be injected.
    pub time_ms: u64,
    /// Time from the start to the verdict.
    pub took_ms: u64,
    /// The user ended it early.
    pub interrupted: bool,
    /// How often each kind of fault happened.
    pub faults: BTreeMap<&'static str, u64>,
    /// The counts of the run.
    pub seen: Seen,
    /// How often rare but important things happened.
    pub paths: Paths,
    /// How long nobody led or nothing flowed, by cause.
    pub outages: BTreeMap<String, Times>,
    /// Outages that had not ended when the run did.
    pub outages_open: usize,
    /// The total time with at least one outage.
    pub outage_ms: f64,
    /// The longest such time.
    pub outage_longest_ms: f64,
    /// How long it took from a promotion until an outcome was recorded.
    pub followed: Option<Times>,
    /// How long the fleet took to heal after the faults of a round.
    pub heals: Option<Times>,
    /// The broken promises.
    pub violations: Vec<Violation>,
    /// Things that never happened, so that nothing is proved about them.
    pub untried: Vec<String>,
}

impl Report {
    /// The report of a run that took this time; `interrupted` if the user ended it early.
    pub(crate) fn new(
        options: &Options,
        server: &str,
        (took, interrupted): (Duration, bool),
        watch: Watch,
        missing: Vec<String>,
    ) -> Report {
        let untried = untried(options, &watch, missing);
        let Watch { counts, checker, outages, paths, heals, followed, .. } = watch;
        let times = outages.over.iter().filter_map(|((cause, disturbed), times)| {
            let more = if *disturbed { ", and more" } else { "" };
            Some((format!("{cause}{more}"), Times::of(times.clone())?))
        });
        let verdict = match (checker.violations.is_empty(), untried.is_empty() && !interrupted) {
            (false, _) => Verdict::Broken,
            (true, true) => Verdict::Held,
            (true, false) => Verdict::NotProved,
        };
        let mut report = Report {
            artel: env!("CARGO_PKG_VERSION"),
            promises: BTreeMap::new(),
            verdict,
            seed: options.seed,
            server: server.to_owned(),
            topology: options.topology,
            members: options.members,
            rate: options.rate,
            lease_ms: options.lease.as_millis() as u64,
            time_ms: options.time.as_millis() as u64,
            took_ms: took.as_millis() as u64,
            interrupted,
            faults: counts.iter().map(|(kind, many)| (kind.name(), *many)).collect(),
            seen: checker.seen,
            paths,
            outages: times.collect(),
            outages_open: outages.open(),
            outage_ms: outages.total as f64 / 1000.0,
            outage_longest_ms: outages.longest as f64 / 1000.0,
            followed: Times::of(followed.times),
            heals: Times::of(heals.iter().map(|time| time.as_micros() as u64).collect()),
            violations: checker.violations,
            untried,
        };
        report.promises =
            Invariant::ALL.iter().map(|one| (one.words(), report.fared(*one))).collect();
        report
    }

    /// The report as text, for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.faults_text(&mut text);
        self.messages_text(&mut text);
        self.outages_text(&mut text);
        self.promises_text(&mut text);
        let _ = writeln!(text, "\n{}", self.sentence());
        text
    }

    fn faults_text(&self, text: &mut String) {
        let total: u64 = self.faults.values().sum();
        let Report { seed, server, members, rate, lease_ms, time_ms, .. } = self;
        let (time, lease) = (*time_ms as f64 / 1000.0, *lease_ms as f64 / 1000.0);
        let _ = writeln!(
            text,
            "What was broken: {total} faults in {time:.0} s, seed {seed}; {members} members on {server}, {rate} \
             messages/s, lease {lease} s",
        );
        for kind in Kind::ALL {
            if let Some(many) = self.faults.get(kind.name()) {
                let _ = writeln!(text, "  {many:>7}  {:<18}{}", kind.name(), kind.words());
            }
        }
    }

    fn messages_text(&self, text: &mut String) {
        let seen = &self.seen;
        let lost = seen.accepted.saturating_sub(seen.settled);
        let _ = writeln!(text, "\nMessages");
        for (many, what) in [
            (seen.accepted, "accepted by Redis"),
            (seen.settled, "settled: one outcome recorded"),
            (seen.sent, "of these sent or put back to work, not generated"),
            (seen.failed, "of these found in error"),
            (seen.followed, "followed the outcome of another one"),
            (seen.fired, "came from periodic entries"),
            (seen.delayed, "were sent for later, and began at their time"),
            (seen.cancelled, "were cancelled while they waited for their time"),
            (seen.run_again, "runs ended with a retry or a snooze"),
            (lost, "lost"),
            (seen.settled_twice, "settled twice"),
        ] {
            let _ = writeln!(text, "  {many:>7}  {what}");
        }
        let _ = writeln!(text, "\nNot promised, and how often it happened");
        for (many, what) in [
            (
                seen.attempted_again.saturating_sub(seen.run_again),
                "handlers ran again, because a worker died or was cut off",
            ),
            (
                seen.claims_lost,
                "outcomes came too late and were not recorded: somebody else had the message",
            ),
            (
                seen.given_up,
                "messages were kept as errors, because two workers that held them died or were cut off",
            ),
            (
                seen.printed_again,
                "errors were printed again, because their taker died before it confirmed them",
            ),
            (
                seen.told_and_lost,
                "outcomes and messages were lost although somebody had been told of them",
            ),
            (seen.named, "steps were named as lost"),
            (seen.lost_with_redis, "messages were lost with the data of Redis"),
            (seen.redone_after_loss, "attempts or outcomes were forgotten by Redis and made again"),
            (
                seen.torn,
                "times a kill tore the file of Redis, which was then rewritten (see GUARANTEES.md)",
            ),
        ] {
            let _ = writeln!(text, "  {many:>7}  {what}");
        }
    }

    fn outages_text(&self, text: &mut String) {
        let (total, longest) = (self.outage_ms / 1000.0, self.outage_longest_ms / 1000.0);
        let _ = writeln!(
            text,
            "\nHow long nobody led, or nothing flowed: {total:.1} of {:.0} s, {longest:.1} s at most; {} terms",
            self.took_ms as f64 / 1000.0,
            self.seen.terms,
        );
        let head = ["times", "p50 ms", "p99 ms", "max ms"];
        let _ = writeln!(
            text,
            "  {:<30}{:>7}{:>9}{:>9}{:>9}",
            "by cause", head[0], head[1], head[2], head[3]
        );
        for (cause, times) in &self.outages {
            let Times { times, p50_ms, p99_ms, max_ms } = times;
            let _ =
                writeln!(text, "  {cause:<30}{times:>7}{p50_ms:>9.0}{p99_ms:>9.0}{max_ms:>9.0}");
        }
        if self.outages.keys().any(|cause| cause.ends_with("and more")) {
            let _ = writeln!(
                text,
                "  (and more: Redis had a fault shortly before, or Redis or the next generator had one meanwhile)"
            );
        }
        if self.outages_open > 0 {
            let _ = writeln!(text, "  {:<30}{:>7}", "not over at the end", self.outages_open);
        }
        if let Some(Times { times, p50_ms, max_ms, .. }) = &self.followed {
            let _ = writeln!(
                text,
                "  Another server was promoted {times} times; outcomes were recorded {p50_ms:.0} ms later (median), {max_ms:.0} \
                 ms at most"
            );
        }
        if let Some(Times { times, p50_ms, max_ms, .. }) = &self.heals {
            let _ = writeln!(
                text,
                "  Everything was repaired {times} times; the fleet healed within {p50_ms:.0} ms (median), {max_ms:.0} ms \
                 at most"
            );
        }
    }

    fn promises_text(&self, text: &mut String) {
        let seen = &self.seen;
        let _ = writeln!(text, "\nPromises (GUARANTEES.md says what is checked)");
        for invariant in Invariant::ALL {
            let _ = writeln!(text, "  {:<45}{}", invariant.words(), self.fared(invariant));
        }
        if seen.losses > 0 {
            let how = match self.faults.contains_key(Kind::RedisEverysec.name()) {
                _ if self.topology != Topology::Single => {
                    "was replaced by servers that lacked what was told already: nobody had waited for replicas"
                }
                true => {
                    "whose append-only file is synced every second was killed: its last acknowledged writes may be lost"
                }
                false => "without an append-only file was killed: all its data is lost",
            };
            let _ = writeln!(
                text,
                "\nRedis {how}.\n\"Nothing lost\" and \"exactly once\" hold only as long as Redis keeps what it \
                 acknowledged. Members noticed the loss {} times.\nThe fleet went on.",
                seen.loss_noticed
            );
        }
        let servers = match self.topology {
            Topology::Single => "replicas and failover, clusters (see --topology), ",
            Topology::Sentinel | Topology::Cluster => "a network that fails for single members, ",
        };
        let _ = writeln!(
            text,
            "\nNot covered by this run: power cuts, {servers}more than one machine."
        );
        if !self.untried.is_empty() {
            let _ = writeln!(
                text,
                "Not proved by this run, because it never happened (a longer run may see it):"
            );
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
    }

    /// The result for one promise.
    fn fared(&self, invariant: Invariant) -> String {
        match self.violations.iter().filter(|one| one.invariant == invariant).count() {
            0 if invariant == Invariant::NothingLost && self.seen.lost_with_redis > 0 => {
                format!("not covered: Redis itself lost {}", self.seen.lost_with_redis)
            }
            0 if invariant.needs_data() && self.seen.losses > 0 => {
                "held since Redis last lost data, not judged before".to_owned()
            }
            0 => "held".to_owned(),
            many => format!("BROKEN ({many} seen)"),
        }
    }

    /// The verdict, in one sentence.
    pub fn sentence(&self) -> String {
        match self.verdict {
            Verdict::Broken => format!(
                "BROKEN: {} seen. Try it again with --seed {}.",
                self.violations.len(),
                self.seed
            ),
            Verdict::Held if self.seen.losses > 0 => format!(
                "HELD what is promised: {} messages were lost with the data of Redis, and everything healed.",
                self.seen.lost_with_redis
            ),
            Verdict::Held => {
                "HELD: nothing was lost, no outcome was recorded twice, and everything healed.".to_owned()
            }
            Verdict::NotProved if self.interrupted => {
                "Held so far. The run was ended early, so this is not a proof.".to_owned()
            }
            Verdict::NotProved if self.seen.losses > 0 => {
                "Held as far as it was tried and Redis kept its data. Some things never happened, so this does not \
                 prove them."
                    .to_owned()
            }
            Verdict::NotProved => {
                "Held as far as it was tried: nothing was lost, no outcome was recorded twice. Some things never \
                 happened, so this does not prove them."
                    .to_owned()
            }
        }
    }
}

/// Things that never happened, so that nothing is proved about them. `missing` are those that are
/// not possible here.
fn untried(options: &Options, watch: &Watch, missing: Vec<String>) -> Vec<String> {
    let Watch { counts, checker, outages, paths, .. } = watch;
    let of = |kinds: &[Kind]| kinds.iter().any(|kind| options.kinds.contains(kind));
    let lease = options.lease.as_micros() as u64;
    let killed = outages.over.iter().filter(|((cause, _), _)| *cause == "generator killed");
    let fast = killed.flat_map(|(_, times)| times).filter(|took| **took < lease).count();
    let mut untried = missing;
    let kinds = options.kinds.iter().filter(|kind| !counts.contains_key(kind));
    untried.extend(kinds.map(|kind| format!("a fault of the kind {}", kind.name())));
    let seen = &checker.seen;
    let moved = [Kind::FreezeLong, Kind::HalfOpen, Kind::OneWayOut, Kind::Cut];
    let paths_tried = [
        (true, seen.run_again > 0, "a retry or a snooze"),
        (true, seen.delayed > 0, "a message that was sent for later"),
        (true, seen.followed > 0, "a message that follows an outcome"),
        (true, seen.fired > 0, "a periodic entry that fires"),
        (
            // Elsewhere nothing holds up what a single member writes.
            of(&moved) && options.topology == Topology::Single,
            seen.fenced + paths.stale_requests > 0,
            "a write of a stale generator, which Redis must refuse",
        ),
        (of(&moved), seen.claims_lost > 0, "a worker that finished a message it had lost"),
        (
            options.loses_told(),
            seen.told_and_lost > 0,
            "a loss of something that somebody was told and lived to name",
        ),
        (of(&[Kind::KillWorker]), seen.adopted > 0, "a dead member that held messages"),
        (of(&[Kind::KillGenerator]), fast > 0, "a takeover faster than the lease"),
        (
            of(&[Kind::KillTaker]),
            paths.drain_recovered,
            "a taker of errors killed while it held some",
        ),
        (of(&[Kind::ClockRedis]), paths.clocks_seen > 0, "a wrong clock of Redis that took effect"),
        (
            of(&[Kind::Reset]),
            paths.replies_swallowed > 0 && seen.already > 0,
            "a repeated request that Redis recognized",
        ),
    ];
    let never = paths_tried.iter().filter(|(wanted, tried, _)| *wanted && !tried);
    untried.extend(never.map(|(_, _, what)| (*what).to_owned()));
    untried
}
