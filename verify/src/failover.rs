//! Faults of servers that replace one another: how each begins, and what must happen until everything is whole.
//!
//! **Invariant:** every fault that begins here ends with [`Heal::Whole`], and until then nothing is read. No act waits: what has
//! not happened yet is looked at again.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use artel_rig::Fault;

use crate::director::{Director, LOOK};
use crate::history::{Entry, now};
use crate::options::Trouble;
use crate::plan::{Kind, Step};
use crate::strike::{Act, redis};
use crate::topology::READY_MAX;

/// A primary that nothing passes to is replaced after some seconds. One of a cluster is not: it talks to the others.
const CUT_MAX: Duration = Duration::from_secs(6);
/// Members notice what was forgotten for so many leases after everything is whole.
const NOTICE: u32 = 3;

/// What must happen until servers that replace one another are whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Heal {
    /// The primary dies, after its replicas have missed something.
    KillPrimary(usize),
    /// Frozen replicas go on.
    ThawReplicas,
    /// Another server is the primary, and this one becomes its replica.
    Rejoin(usize),
    /// Another server is the primary, or none will be.
    HandedOver(usize),
    /// The same, or enough time has passed: what goes to and from this server passes again.
    Mend(usize),
    /// Sentinels that were ended are started again.
    StartSentinels,
    /// The slot is where it was to go.
    CloseSlot(usize, usize),
    /// Everything is whole again.
    Whole,
}

/// How long it takes from a promotion, as the servers tell it, until an outcome is recorded.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    since: Option<u64>,
    pub(crate) times: Vec<u64>,
}

impl Followed {
    /// Another server is the primary.
    fn begin(&mut self) {
        self.since = Some(now());
    }

    pub(crate) fn history(&mut self, at: u64, entry: &Entry) {
        if matches!(entry, Entry::Recorded { .. })
            && let Some(since) = self.since.take_if(|since| *since < at)
        {
            self.times.push(at - since);
        }
    }
}

impl Director<'_> {
    /// Begins a fault of the servers. `None` if they are not whole.
    pub(crate) fn hurt_servers(&mut self, step: &Step) -> Result<Option<String>, Trouble> {
        let Some(servers) = self.stage.servers.as_mut().filter(|servers| servers.is_whole()) else {
            return Ok(None);
        };
        let Some(primary) = servers.primary() else { return Ok(None) };
        let by_chance = step.which.is_multiple_of(2);
        let (mut acts, mut cause) = (Vec::new(), None);
        match step.kind {
            Kind::Failover => {
                servers.kill(primary);
                acts.push((Heal::Rejoin(primary), Duration::ZERO));
                cause = Some("primary killed");
            }
            Kind::FailoverPlanned if servers.hand_over() => {
                acts.push((Heal::HandedOver(primary), LOOK));
                cause = Some("planned failover");
            }
            Kind::PrimaryCut => {
                servers.network(primary, if by_chance { Fault::Cut } else { Fault::Stall });
                acts.push((Heal::Mend(primary), step.lasts));
                cause = Some("primary cut off");
            }
            Kind::ReplicaCut if servers.cut_replicas(false).is_some() => {
                acts.push((Heal::ThawReplicas, step.lasts));
            }
            Kind::PromoteBehind if servers.cut_replicas(true).is_some() => {
                acts.push((Heal::KillPrimary(primary), step.lasts));
                cause = Some("replica promoted that is behind");
            }
            Kind::SentinelKill => {
                servers.end_sentinel(step.which as usize);
                acts.push((Heal::StartSentinels, step.lasts * 3));
            }
            Kind::SlotMove if servers.move_slot(by_chance)? => {}
            Kind::SlotOpen => match servers.open_slot() {
                Some((from, to)) => acts.push((Heal::CloseSlot(from, to), step.lasts)),
                None => return Ok(None),
            },
            Kind::Flip if servers.flip() => {}
            _ => return Ok(None),
        }
        if acts.is_empty() {
            acts.push((Heal::Whole, LOOK * 4));
        }
        acts.into_iter().for_each(|(heal, after)| self.ends(Act::Heal(heal), after));
        if let Some(cause) = cause {
            self.outage(cause, true);
        }
        (self.stage.redis_hurt, self.stage.hurt_since) = (true, Instant::now());
        if step.kind.may_forget() {
            self.watch.checker.forgets = true;
            self.watch.forgets_until = u64::MAX;
            if self.options.loses_told() {
                self.watch.checker.may_lose();
                self.watch.losses.begin();
            }
        }
        Ok(Some(redis()))
    }

    /// Goes one step on the way back.
    pub(crate) fn heal_servers(&mut self, heal: Heal) -> Result<(), Trouble> {
        let Some(servers) = self.stage.servers.as_mut() else { return Ok(()) };
        if self.stage.hurt_since.elapsed() > READY_MAX {
            return Err(Trouble::Server(format!("the servers do not get whole again: {heal:?}")));
        }
        let next = match heal {
            Heal::KillPrimary(primary) => {
                servers.kill(primary);
                servers.thaw();
                Some(Heal::Rejoin(primary))
            }
            Heal::ThawReplicas => {
                servers.thaw();
                Some(Heal::Whole)
            }
            Heal::Rejoin(old) => match servers.primary() {
                Some(primary) if primary != old => {
                    self.watch.followed.begin();
                    servers.rejoin(old)?;
                    Some(Heal::Whole)
                }
                _ => Some(heal),
            },
            Heal::Mend(old) => {
                let replaced = servers.primary().is_some_and(|primary| primary != old);
                let is_over = replaced || self.stage.hurt_since.elapsed() > CUT_MAX;
                if replaced {
                    self.watch.followed.begin();
                }
                if is_over {
                    servers.rejoin(old)?;
                }
                Some(if is_over { Heal::Whole } else { heal })
            }
            Heal::HandedOver(old) => {
                let replaced = servers.primary().is_some_and(|primary| primary != old);
                if replaced {
                    self.watch.followed.begin();
                    servers.rejoin(old)?;
                }
                let is_over = replaced || self.stage.hurt_since.elapsed() > CUT_MAX;
                Some(if is_over { Heal::Whole } else { heal })
            }
            Heal::StartSentinels => {
                servers.start_all_sentinels()?;
                Some(Heal::Whole)
            }
            Heal::CloseSlot(from, to) => {
                Some(if servers.close_slot(from, to) { Heal::Whole } else { heal })
            }
            Heal::Whole if servers.is_whole() => None,
            heal => Some(heal),
        };
        if let Some(next) = next {
            self.ends(Act::Heal(next), LOOK);
            return Ok(());
        }
        self.stage.faults.write(&Entry::Over(redis())).map_err(|_| Trouble::NoHistory)?;
        self.stage.touched = now();
        (self.stage.redis_hurt, self.stage.redis_back) = (false, Instant::now());
        if self.watch.forgets_until == u64::MAX && self.options.loses_told() {
            self.read_again()?;
        }
        if self.watch.forgets_until == u64::MAX {
            let notice = (self.options.lease * NOTICE).as_micros() as u64;
            self.watch.forgets_until = now() + notice;
        }
        Ok(())
    }

    /// What was told before the failover may be lost: reads everything again from the server that took over.
    fn read_again(&mut self) -> Result<(), Trouble> {
        self.look()?;
        self.stage.books.forget();
        self.watch.read = usize::MAX; // not read yet
        self.watch.checker.is_kept_from_now();
        self.watch.losses.over(now());
        self.watch.wakes.lost();
        self.watch.leader = Default::default();
        Ok(())
    }

    /// Waits until the servers are whole.
    pub(crate) fn make_whole(&mut self) -> Result<(), Trouble> {
        while self.stage.agenda.iter().any(|Reverse((_, act))| matches!(act, Act::Heal(_))) {
            self.acts(Instant::now())?;
            self.look()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}
