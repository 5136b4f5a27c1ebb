//! [`Plan`]: which fault comes when, which process it hits and how long it lasts. The seed alone
//! decides.
//!
//! **Invariant:** the same seed, kinds and lease make the same plan, whatever the fleet does.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use crate::topology::Topology;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// `kill -9` of the generator.
    KillGenerator,
    /// `kill -9` of a worker.
    KillWorker,
    /// `kill -9` of the process that takes errors.
    KillTaker,
    /// `kill -9` of the process that sends messages.
    KillSender,
    /// A generator or worker is stopped gracefully: it finishes its work and leaves.
    Leave,
    /// A generator or worker is frozen for less than its lease.
    FreezeShort,
    /// A generator or worker is frozen for longer than its lease.
    FreezeLong,
    /// A member's connections break, and new ones are refused.
    Cut,
    /// Requests of a member do not arrive until the fault is over.
    OneWayOut,
    /// Answers to a member do not arrive until the fault is over.
    OneWayIn,
    /// A member's connections stay open, and nothing passes.
    HalfOpen,
    /// Everything between a member and Redis is delayed.
    Delay,
    /// … by varying times.
    Jitter,
    /// … a few bytes at a time.
    Slow,
    /// A request takes effect, and the connection breaks before the answer.
    Reset,
    /// The wall clock of a member is set to another time.
    ClockMember,
    /// `kill -9` of a Redis whose append-only file is synced with every write: it keeps all
    /// acknowledged writes.
    RedisKill,
    /// `kill -9` of a Redis whose append-only file is synced every second: it may lose the last
    /// acknowledged writes.
    RedisEverysec,
    /// `kill -9` of a Redis without any file: it loses everything.
    RedisLoss,
    /// Redis is frozen.
    RedisFreeze,
    /// `CLIENT KILL` of every connection.
    ClientKill,
    /// `CLIENT PAUSE`.
    ClientPause,
    /// `SCRIPT FLUSH`.
    ScriptFlush,
    /// Redis is out of memory for a while.
    MaxMemory,
    /// 300,000 expiring keys of another user in the same Redis.
    Neighbour,
    /// The wall clock of Redis is set to another time.
    ClockRedis,
    /// The wall clock of Redis goes ahead by hours and back while a sender waits for its first answer.
    ClockSender,
    /// `kill -9` of the primary: another server takes over.
    Failover,
    /// Another server takes over from a primary that agrees.
    FailoverPlanned,
    /// Nothing passes to and from the primary.
    PrimaryCut,
    /// A replica misses what is written.
    ReplicaCut,
    /// All replicas miss what is written, and one of them takes over.
    PromoteBehind,
    /// `kill -9` of a sentinel.
    SentinelKill,
    /// The slot of the fleet is moved to another node.
    SlotMove,
    /// The slot of the fleet is being moved for a while.
    SlotOpen,
    /// All subscriptions end unasked.
    Flip,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 36] = [
        Kind::KillGenerator,
        Kind::KillWorker,
        Kind::KillTaker,
        Kind::KillSender,
        Kind::Leave,
        Kind::FreezeShort,
        Kind::FreezeLong,
        Kind::Cut,
        Kind::OneWayOut,
        Kind::OneWayIn,
        Kind::HalfOpen,
        Kind::Delay,
        Kind::Jitter,
        Kind::Slow,
        Kind::Reset,
        Kind::ClockMember,
        Kind::RedisKill,
        Kind::RedisEverysec,
        Kind::RedisLoss,
        Kind::RedisFreeze,
        Kind::ClientKill,
        Kind::ClientPause,
        Kind::ScriptFlush,
        Kind::MaxMemory,
        Kind::Neighbour,
        Kind::ClockRedis,
        Kind::ClockSender,
        Kind::Failover,
        Kind::FailoverPlanned,
        Kind::PrimaryCut,
        Kind::ReplicaCut,
        Kind::PromoteBehind,
        Kind::SentinelKill,
        Kind::SlotMove,
        Kind::SlotOpen,
        Kind::Flip,
    ];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::KillGenerator => "kill-generator",
            Kind::KillWorker => "kill-worker",
            Kind::KillTaker => "kill-taker",
            Kind::KillSender => "kill-sender",
            Kind::Leave => "leave",
            Kind::FreezeShort => "freeze-short",
            Kind::FreezeLong => "freeze-long",
            Kind::Cut => "cut",
            Kind::OneWayOut => "one-way-out",
            Kind::OneWayIn => "one-way-in",
            Kind::HalfOpen => "half-open",
            Kind::Delay => "delay",
            Kind::Jitter => "jitter",
            Kind::Slow => "slow",
            Kind::Reset => "reset",
            Kind::RedisKill => "redis-kill",
            Kind::RedisEverysec => "redis-everysec",
            Kind::RedisLoss => "redis-loss",
            Kind::RedisFreeze => "redis-freeze",
            Kind::ClientKill => "client-kill",
            Kind::ClientPause => "client-pause",
            Kind::ScriptFlush => "script-flush",
            Kind::MaxMemory => "max-memory",
            Kind::Neighbour => "neighbour",
            Kind::ClockMember => "clock-member",
            Kind::ClockRedis => "clock-redis",
            Kind::ClockSender => "clock-sender",
            Kind::Failover => "failover",
            Kind::FailoverPlanned => "failover-planned",
            Kind::PrimaryCut => "primary-cut",
            Kind::ReplicaCut => "replica-cut",
            Kind::PromoteBehind => "promote-behind",
            Kind::SentinelKill => "sentinel-kill",
            Kind::SlotMove => "slot-move",
            Kind::SlotOpen => "slot-open",
            Kind::Flip => "flip",
        }
    }

    /// In words, for people.
    pub fn words(self) -> &'static str {
        match self {
            Kind::KillGenerator => "kill -9 of the generator",
            Kind::KillWorker => "kill -9 of a worker",
            Kind::KillTaker => "kill -9 of the taker of errors",
            Kind::KillSender => "kill -9 of a sender",
            Kind::Leave => "a member stopped gracefully, and started again",
            Kind::FreezeShort => "a member frozen for less than its lease",
            Kind::FreezeLong => "a member frozen for longer than its lease",
            Kind::Cut => "a member cut off: connections break, new ones are refused",
            Kind::OneWayOut => "requests of a member are held up, answers pass",
            Kind::OneWayIn => "answers to a member are held up, requests pass",
            Kind::HalfOpen => "a member's connections stay open, nothing passes",
            Kind::Delay => "a member's network delayed",
            Kind::Jitter => "a member's network delayed by varying times",
            Kind::Slow => "a member's network slow",
            Kind::Reset => "a connection reset between request and answer",
            Kind::RedisKill => "kill -9 of Redis (appendfsync always)",
            Kind::RedisEverysec => "kill -9 of Redis (appendfsync everysec)",
            Kind::RedisLoss => "kill -9 of Redis (no append-only file)",
            Kind::RedisFreeze => "Redis frozen",
            Kind::ClientKill => "CLIENT KILL of all clients",
            Kind::ClientPause => "CLIENT PAUSE",
            Kind::ScriptFlush => "SCRIPT FLUSH",
            Kind::MaxMemory => "Redis out of memory",
            Kind::Neighbour => "a neighbour with 300,000 expiring keys",
            Kind::ClockMember => "wall clock of a member set to another time",
            Kind::ClockRedis => "wall clock of Redis set to another time",
            Kind::ClockSender => "wall clock of Redis hours ahead and back, while a sender waits",
            Kind::Failover => "kill -9 of the primary, and another server takes over",
            Kind::FailoverPlanned => "another server takes over, and the primary agrees",
            Kind::PrimaryCut => "the primary cut off",
            Kind::ReplicaCut => "a replica that misses what is written",
            Kind::PromoteBehind => "a replica takes over that has missed what was written",
            Kind::SentinelKill => "kill -9 of a sentinel",
            Kind::SlotMove => "the slot moved to another node",
            Kind::SlotOpen => "the slot on its way for a while",
            Kind::Flip => "subscriptions ended unasked",
        }
    }

    /// The kinds with this name: one kind, or a family (`kill`, `freeze`, `network`, `redis`,
    /// `clock`, `topology`, `all`).
    pub fn named(name: &str) -> Option<Vec<Kind>> {
        let all = || Kind::ALL.into_iter();
        let some: Vec<Kind> = match name {
            "all" => all().filter(|kind| !kind.loses_data()).collect(),
            "kill" => all().filter(|kind| *kind < Kind::Leave).collect(),
            "freeze" => vec![Kind::FreezeShort, Kind::FreezeLong],
            "network" => all().filter(|kind| kind.is_network()).collect(),
            "redis" => all()
                .filter(|kind| kind.needs_private() || *kind == Kind::ScriptFlush)
                .filter(|kind| !kind.loses_data() && !kind.is_clock() && *kind < Kind::Failover)
                .collect(),
            "clock" => all().filter(|kind| kind.is_clock()).collect(),
            "topology" => all().filter(|kind| *kind >= Kind::Failover).collect(),
            one => all().filter(|kind| kind.name() == one).collect(),
        };
        (!some.is_empty()).then_some(some)
    }

    /// Does Redis itself lose acknowledged writes? Then no fleet on it can keep everything.
    pub fn loses_data(self) -> bool {
        matches!(self, Kind::RedisEverysec | Kind::RedisLoss)
    }

    /// Does it set a wall clock?
    pub(crate) fn is_clock(self) -> bool {
        matches!(self, Kind::ClockMember | Kind::ClockRedis | Kind::ClockSender)
    }

    /// Is the process that it hits cut off from Redis, so that nothing is received from it?
    pub(crate) fn is_silent(self) -> bool {
        use Kind::{Cut, FreezeLong, HalfOpen, OneWayIn, OneWayOut};
        matches!(self, FreezeLong | Cut | HalfOpen | OneWayOut | OneWayIn)
    }

    /// Can it also hit takers of errors and senders?
    pub(crate) fn hits_all(self) -> bool {
        self.is_network() || matches!(self, Kind::FreezeShort | Kind::FreezeLong)
    }

    /// Does it hit Redis in a way that slows everything down, but is not an outage?
    pub(crate) fn is_felt_by_all(self) -> bool {
        self > Kind::RedisLoss
    }

    pub(crate) fn is_network(self) -> bool {
        (Kind::Cut..=Kind::Reset).contains(&self)
    }

    /// Does it need a private server? Faults of Redis would hurt other users of a given one.
    pub fn needs_private(self) -> bool {
        self >= Kind::RedisKill && self != Kind::ScriptFlush
    }

    /// Can it happen with these servers?
    pub(crate) fn is_on(self, topology: Topology) -> bool {
        use Kind::{ClientKill, FreezeLong, ScriptFlush, SentinelKill};
        match topology {
            Topology::Single => self < Kind::Failover,
            // Members find the servers by themselves, so no proxy stands between one of them and Redis.
            _ if self <= FreezeLong || [ClientKill, ScriptFlush].contains(&self) => true,
            Topology::Sentinel => (Kind::Failover..=SentinelKill).contains(&self),
            Topology::Cluster => self >= Kind::Failover && self != SentinelKill,
        }
    }

    /// May the server that takes over lack what nobody was told yet?
    pub(crate) fn may_forget(self) -> bool {
        (Kind::Failover..=Kind::PromoteBehind).contains(&self)
    }

    /// How often it comes, relative to the others.
    fn weight(self) -> u32 {
        match self {
            Kind::KillWorker => 1000,
            Kind::KillGenerator => 330,
            Kind::FreezeLong => 260,
            Kind::KillTaker | Kind::KillSender | Kind::Leave => 60,
            Kind::FreezeShort => 100,
            kind if kind.is_network() => 40,
            Kind::RedisKill | Kind::RedisEverysec | Kind::RedisLoss => 70,
            Kind::Failover | Kind::PromoteBehind | Kind::PrimaryCut => 60,
            Kind::Neighbour | Kind::ClockSender => 4,
            _ => 20,
        }
    }
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    /// Hit the generator; otherwise a worker, selected by `which`.
    pub(crate) generator: bool,
    /// Hit no substitute: no worker instead of the generator, no taker or sender instead of a
    /// worker.
    pub(crate) only: bool,
    pub(crate) which: u32,
    pub(crate) lasts: Duration,
    /// Time from its begin to the next fault.
    pub(crate) next: Duration,
}

/// An endless sequence of faults.
#[derive(Debug)]
pub(crate) struct Plan {
    rng: StdRng,
    kinds: Vec<Kind>,
    lease: Duration,
    /// Every kind comes once at the beginning, because every run must have seen it.
    first: Vec<Kind>,
}

/// Average time between two faults.
const BETWEEN: Duration = Duration::from_millis(420);

impl Plan {
    pub(crate) fn new(seed: u64, kinds: &[Kind], lease: Duration) -> Plan {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut first = kinds.to_vec();
        // In random order; they are taken from the end.
        for place in (1..first.len()).rev() {
            first.swap(place, rng.random_range(0..=place));
        }
        Plan { rng, kinds: kinds.to_vec(), lease, first }
    }

    pub(crate) fn next(&mut self) -> Option<Step> {
        let total: u32 = self.kinds.iter().map(|kind| kind.weight()).sum();
        if total == 0 {
            return None;
        }
        let mut draw = self.rng.random_range(0..total);
        let mut chosen = self.kinds[0];
        for kind in &self.kinds {
            if draw < kind.weight() {
                chosen = *kind;
                break;
            }
            draw -= kind.weight();
        }
        let first = self.first.pop();
        let kind = first.unwrap_or(chosen);
        let part = |rng: &mut StdRng, of: Duration, from: f64, to: f64| {
            of.mul_f64(rng.random_range(from..to))
        };
        let rng = &mut self.rng;
        let lasts = match kind {
            Kind::FreezeShort => part(rng, self.lease, 0.05, 0.6),
            Kind::FreezeLong => part(rng, self.lease, 1.1, 2.5),
            Kind::Delay | Kind::Jitter => part(rng, self.lease, 0.3, 1.5),
            // Long enough that a large message is given up.
            Kind::Slow => part(rng, self.lease, 1.0, 4.0),
            Kind::Reset => Duration::ZERO,
            kind if kind.is_network() => part(rng, self.lease, 0.1, 2.0),
            Kind::RedisKill | Kind::RedisEverysec | Kind::RedisLoss => {
                part(rng, self.lease, 0.01, 0.6)
            }
            Kind::RedisFreeze | Kind::ClientPause => part(rng, self.lease, 0.05, 0.8),
            Kind::MaxMemory => part(rng, self.lease, 0.2, 1.0),
            Kind::ReplicaCut | Kind::SlotOpen => part(rng, self.lease, 0.3, 1.6),
            Kind::PromoteBehind => part(rng, self.lease, 0.1, 0.5),
            _ => part(rng, self.lease, 0.02, 0.4),
        };
        let step = Step {
            kind,
            generator: rng.random_ratio(1, 3),
            only: false,
            which: rng.random(),
            lasts,
            next: part(rng, BETWEEN, 0.1, 1.9),
        };
        Some(if first.is_some() { step.aimed(self.lease) } else { step })
    }

    /// Has every kind come once?
    pub(crate) fn is_through(&self) -> bool {
        self.first.is_empty()
    }

    /// One more fault of this kind, in addition to the plan.
    pub(crate) fn more(&self, kind: Kind, turn: u32) -> Step {
        let (lasts, next) = (self.lease / 10, BETWEEN);
        let which = turn.wrapping_mul(0x9e37_79b9); // spread
        Step { kind, generator: false, only: false, which, lasts, next }.aimed(self.lease)
    }
}

impl Step {
    /// Adjusts the fault so that even a short run sees what every run must see: a request of a
    /// stale generator arrives, a request is repeated, a worker finishes a message that it has
    /// lost.
    fn aimed(self, lease: Duration) -> Step {
        match self.kind {
            Kind::OneWayOut => {
                let lasts = self.lasts.max(lease * 2);
                Step { generator: true, only: true, lasts, ..self }
            }
            Kind::Reset => Step { generator: true, only: true, ..self },
            Kind::FreezeLong => {
                let lasts = self.lasts.max(lease * 2);
                Step { generator: false, only: true, lasts, ..self }
            }
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_plan() {
        let plan = |seed| {
            let mut plan = Plan::new(seed, &Kind::ALL, Duration::from_secs(2));
            (0..200).filter_map(|_| plan.next()).collect::<Vec<_>>()
        };
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
        // Every kind comes early, however rare it is.
        let early = plan(9);
        assert!(Kind::ALL.iter().all(|kind| early[..36].iter().any(|step| step.kind == *kind)));
        assert!(
            early
                .iter()
                .all(|step| step.kind != Kind::FreezeLong || step.lasts > Duration::from_secs(2))
        );
    }

    #[test]
    fn families_have_names() {
        assert_eq!(Kind::named("kill").map(|some| some.len()), Some(4));
        assert_eq!(Kind::named("freeze").map(|some| some.len()), Some(2));
        assert_eq!(Kind::named("network").map(|some| some.len()), Some(8));
        assert_eq!(Kind::named("redis").map(|some| some.len()), Some(7));
        assert_eq!(Kind::named("clock").map(|some| some.len()), Some(3));
        assert_eq!(Kind::named("redis-loss"), Some(vec![Kind::RedisLoss]));
        assert!(Kind::named("all").is_some_and(|all| !all.iter().any(|kind| kind.loses_data())));
        assert_eq!(Kind::named("earthquake"), None);
        for kind in Kind::ALL {
            assert_eq!(Kind::named(kind.name()), Some(vec![kind]));
        }
    }
}
