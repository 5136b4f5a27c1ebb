//! What the rules say of what is known. Pure.
//!
//! **Invariant:** what is not known changes nothing: a rule that fires goes on firing, also when another member has just
//! begun to judge.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::rule::{AlertRule, Condition, WINDOW_MAX};
use crate::history::LogEntry;
use crate::outcome::FleetNumbers;

/// A share of errors is known when it was looked at for this long, or for half of the window.
const KNOWN_AFTER: Duration = Duration::from_secs(10);
/// How many members are named in one alert.
const NAMED_MAX: usize = 5;

/// What a rule says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// It holds, and this is what is told.
    Fires(String),
    /// It does not hold, and this is what is told if it did before.
    Calm(String),
    Unknown,
}

impl Verdict {
    fn when(fires: bool, text: String, calm: &str) -> Verdict {
        if fires { Verdict::Fires(text) } else { Verdict::Calm(calm.to_owned()) }
    }
}

/// What is known about the fleet now.
pub(super) struct Facts<'a> {
    pub(super) numbers: &'a FleetNumbers,
    /// What is new in the common log.
    pub(super) news: &'a [LogEntry],
}

/// What the judge remembers.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// When messages were counted: how many were done, how many had failed.
    counts: VecDeque<(Instant, u64, u64)>,
    /// When there were elections.
    elections: VecDeque<Instant>,
}

impl Memory {
    /// Notes an election of the past.
    pub(super) fn election(&mut self, now: Instant, ago: Duration) {
        self.elections.extend(now.checked_sub(ago));
    }

    /// Notes how many messages there were.
    pub(super) fn count(&mut self, now: Instant, numbers: &FleetNumbers) {
        let total = |name: &str| {
            numbers.totals.iter().find(|(what, _)| *what == name).map_or(0, |(_, n)| *n)
        };
        let (done, failed) = (total("done"), total("failed"));
        // Redis has lost its data and counts again: what was before cannot be compared.
        if self.counts.back().is_some_and(|(_, before, worse)| done < *before || failed < *worse) {
            self.counts.clear();
        }
        self.counts.push_back((now, done, failed));
        while self.counts.front().is_some_and(|(at, ..)| now.duration_since(*at) > WINDOW_MAX) {
            self.counts.pop_front();
        }
    }

    /// Notes what was read in the common log, once it will not be read again.
    pub(super) fn read(&mut self, now: Instant, news: &[LogEntry]) {
        self.elections.extend(elections(news).map(|_| now));
        while self.elections.front().is_some_and(|at| now.duration_since(*at) > WINDOW_MAX) {
            self.elections.pop_front();
        }
    }

    /// The share of messages that failed within this time, and of how many. `None` if it is not known yet.
    fn errors(&self, now: Instant, over: Duration) -> Option<(f64, u64)> {
        let is_within = |(at, ..): &&(Instant, u64, u64)| now.duration_since(*at) <= over;
        let first = self.counts.iter().find(is_within)?;
        let last = self.counts.back()?;
        if now.duration_since(first.0) < KNOWN_AFTER.min(over / 2) {
            return None;
        }
        let done = last.1.saturating_sub(first.1);
        let failed = last.2.saturating_sub(first.2);
        let all = done + failed;
        Some((if all == 0 { 0.0 } else { failed as f64 / all as f64 }, all))
    }

    fn elections(&self, now: Instant, over: Duration) -> u64 {
        self.elections.iter().filter(|at| now.duration_since(**at) <= over).count() as u64
    }
}

fn elections(news: &[LogEntry]) -> impl Iterator<Item = &LogEntry> {
    news.iter().filter(|entry| entry.kind == "elected")
}

/// The entries of this kind, as one line.
fn told(news: &[LogEntry], kind: &str) -> Option<String> {
    let all: Vec<&LogEntry> = news.iter().filter(|entry| entry.kind == kind).collect();
    let who = |entry: &LogEntry| {
        let id = entry.member.as_ref().map(|id| id.as_str().chars().take(8).collect());
        entry.label.clone().or(id).unwrap_or_default()
    };
    let named = all.iter().take(NAMED_MAX);
    let mut lines: Vec<String> =
        named.map(|entry| format!("{} {}", who(entry), entry.text()).trim().to_owned()).collect();
    if all.len() > NAMED_MAX {
        lines.push(format!("and {} more", all.len() - NAMED_MAX));
    }
    (!lines.is_empty()).then(|| lines.join("; "))
}

/// What a rule about the fleet says now.
pub(super) fn judge(rule: &AlertRule, facts: &Facts<'_>, memory: &Memory, now: Instant) -> Verdict {
    let happened = |kind: &str| match told(facts.news, kind) {
        Some(text) => Verdict::Fires(text),
        None => Verdict::Calm(String::new()),
    };
    match rule.condition {
        Condition::NoGenerator => match facts.numbers.is_leaderless {
            None => Verdict::Unknown,
            Some(is_leaderless) => Verdict::when(
                is_leaderless,
                "nobody generates, although a member could".to_owned(),
                "a member generates again",
            ),
        },
        Condition::GeneratorChanged => happened("elected"),
        Condition::MemberLost => happened("died"),
        Condition::DataLoss => happened("data-loss"),
        Condition::Flapping(most, over) => {
            let new = elections(facts.news).count() as u64;
            let elections = memory.elections(now, over) + new;
            let text = format!("{elections} elections within {} s", over.as_secs());
            Verdict::when(elections > most, text, "the generator stays")
        }
        Condition::ErrorRatio(above, over) => match memory.errors(now, over) {
            None => Verdict::Unknown,
            Some((share, all)) => {
                let text = format!(
                    "{:.1} % of {all} messages failed within {} s",
                    share * 100.0,
                    over.as_secs()
                );
                Verdict::when(share > above, text, "fewer messages fail")
            }
        },
        Condition::BacklogAge(above) => {
            let lanes = facts.numbers.lanes.iter().filter(|lane| !lane.is_paused);
            let oldest = lanes.max_by_key(|lane| lane.oldest);
            let (name, oldest) =
                oldest.map_or(("", Duration::ZERO), |lane| (lane.name, lane.oldest));
            let text = format!("a message in lane {name} has waited for {} s", oldest.as_secs());
            Verdict::when(oldest > above, text, "no message waits that long")
        }
        Condition::BooksUnbalanced => {
            let balance = facts.numbers.balance;
            let text = format!("the books do not balance: {balance} messages");
            Verdict::when(balance != 0, text, "the books balance")
        }
        // Each process judges these for itself.
        Condition::RedisDown
        | Condition::HubLag(_)
        | Condition::HubErrors
        | Condition::SubscriberFailed => Verdict::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::LaneNumbers;

    fn numbers(done: u64, failed: u64) -> FleetNumbers {
        let lane = |name, seconds, is_paused| LaneNumbers {
            name,
            waiting: 1,
            oldest: Duration::from_secs(seconds),
            is_paused,
        };
        FleetNumbers {
            lanes: vec![lane("high", 900, true), lane("low", 60, false)],
            claimed: 0,
            scheduled: 0,
            errors: 0,
            totals: vec![("done", done), ("failed", failed)],
            members: vec![],
            orphans: 0,
            is_leaderless: None,
            term: 1,
            balance: 0,
        }
    }

    fn rule(text: &str) -> AlertRule {
        text.parse().expect("a rule")
    }

    fn facts(numbers: &FleetNumbers) -> Facts<'_> {
        Facts { numbers, news: &[] }
    }

    #[test]
    fn a_share_is_known_only_after_a_while() {
        let (begun, ratio) = (Instant::now(), rule("error_ratio > 0.2 over 1m"));
        let mut memory = Memory::default();
        let mut at = |second: u64, done, failed| {
            let (now, numbers) = (begun + Duration::from_secs(second), numbers(done, failed));
            memory.count(now, &numbers);
            judge(&ratio, &facts(&numbers), &memory, now)
        };
        assert_eq!(at(0, 1000, 1000), Verdict::Unknown);
        assert_eq!(at(5, 1000, 1100), Verdict::Unknown);
        assert!(
            matches!(at(10, 1050, 1100), Verdict::Fires(text) if text.starts_with("66.7 % of 150"))
        );
        assert!(matches!(at(100, 1050, 1100), Verdict::Unknown), "all that is older is forgotten");
        assert!(matches!(at(111, 1950, 1150), Verdict::Calm(_)));
    }

    /// Regression: after a loss one failed message was 100 % of one.
    #[test]
    fn what_redis_lost_is_not_compared_with_what_it_counts_now() {
        let (begun, ratio) = (Instant::now(), rule("error_ratio > 0.2 over 1m"));
        let mut memory = Memory::default();
        let mut at = |second: u64, done, failed| {
            let (now, numbers) = (begun + Duration::from_secs(second), numbers(done, failed));
            memory.count(now, &numbers);
            judge(&ratio, &facts(&numbers), &memory, now)
        };
        at(0, 1_000_000, 0);
        assert!(matches!(at(20, 1_000_100, 0), Verdict::Calm(_)));
        assert_eq!(at(21, 5000, 1), Verdict::Unknown);
        assert!(matches!(at(40, 5100, 2), Verdict::Calm(_)));
    }

    #[test]
    fn an_election_that_is_read_twice_counts_once() {
        let (numbers, now) = (numbers(0, 0), Instant::now());
        let entry = LogEntry {
            id: "1-0".to_owned(),
            time: std::time::UNIX_EPOCH,
            kind: "elected".to_owned(),
            member: None,
            label: None,
            role: None,
            term: None,
            fields: [].into(),
        };
        let (news, rule) = ([entry], rule("flapping > 1 over 1m"));
        let facts = Facts { numbers: &numbers, news: &news };
        let mut memory = Memory::default();
        for _ in 0..5 {
            assert!(
                matches!(judge(&rule, &facts, &memory, now), Verdict::Calm(_)),
                "not noted yet"
            );
        }
        memory.read(now, &news);
        assert!(matches!(judge(&rule, &facts, &memory, now), Verdict::Fires(_)));
    }

    #[test]
    fn a_paused_lane_is_not_late() {
        let (numbers, now) = (numbers(0, 0), Instant::now());
        let memory = Memory::default();
        let says = |text: &str| judge(&rule(text), &facts(&numbers), &memory, now);
        assert!(
            matches!(says("backlog_age > 30s"), Verdict::Fires(text) if text.contains("lane low"))
        );
        assert!(matches!(says("backlog_age > 5m"), Verdict::Calm(_)));
        assert!(matches!(says("books_unbalanced"), Verdict::Calm(_)));
        assert_eq!(says("redis_down"), Verdict::Unknown);
        assert_eq!(says("no_generator"), Verdict::Unknown, "nobody knows who could lead");
    }
}
