//! [`Schedule`]: which fault comes next, and when.
//!
//! **Invariant:** it follows the plan of the seed. It adds only two things: new tries of faults
//! that found no process to hit, and faults that aim at what was not seen yet.

use std::time::{Duration, Instant};

use crate::options::Options;
use crate::plan::{Kind, Plan, Step};

/// Time between two faults that aim at what was not seen yet.
const AIM_EVERY: Duration = Duration::from_secs(1);
/// How often, and after what time, a fault that found no process to hit is tried again.
const TRIES: u32 = 80;
const TRY_AGAIN: Duration = Duration::from_millis(25);

pub(crate) struct Schedule {
    plan: Plan,
    pub(crate) upcoming: Option<Step>,
    /// When it is due.
    pub(crate) next: Instant,
    tries: u32,
    aimed: Instant,
    pub(crate) aims: u32,
}

impl Schedule {
    pub(crate) fn new(options: &Options, begun: Instant) -> Schedule {
        let mut plan = Plan::new(options.seed, &options.kinds, options.lease);
        let upcoming = plan.next();
        Schedule { plan, upcoming, next: begun, tries: 0, aimed: begun, aims: 0 }
    }

    /// Is this fault over, done or given up? Then the next fault of the plan is upcoming. There may
    /// be no process to hit at this moment: faults that are rare, or that never happened yet, are
    /// tried again.
    pub(crate) fn is_over(&mut self, step: &Step, done: bool, is_new: bool, now: Instant) -> bool {
        self.tries += 1;
        let rare = matches!(step.kind, Kind::KillGenerator | Kind::RedisKill) || is_new;
        let over = done || !rare || self.tries >= TRIES;
        self.next = now + if over { step.next } else { TRY_AGAIN };
        if over {
            (self.upcoming, self.tries) = (self.plan.next(), 0);
        }
        over
    }

    /// Has every kind of the plan come once, and was there no aimed fault for a while?
    pub(crate) fn may_aim(&self, now: Instant) -> bool {
        self.plan.is_through() && self.aimed + AIM_EVERY < now
    }

    /// Makes the next fault one of this kind.
    pub(crate) fn aim(&mut self, kind: Kind, now: Instant) {
        (self.aimed, self.aims) = (now, self.aims + 1);
        self.upcoming = Some(self.plan.more(kind, self.aims));
    }
}
