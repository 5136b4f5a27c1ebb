//! [`Schedule`]: which fault comes next, and when.
//!
//! **Invariant:** it follows the plan of the seed; what it adds is tries of faults that found nobody to hit, and
//! faults that aim at what was not seen yet.

use std::time::{Duration, Instant};

use crate::options::Options;
use crate::plan::{Kind, Plan, Step};

/// Between two faults that aim at what was not seen yet.
const AIM_EVERY: Duration = Duration::from_secs(1);
/// How often, and after what time, a fault is tried again that finds nobody to hit.
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

    /// Is this fault over, done or given up? Then the next one of the plan is upcoming. There may be nobody to hit at
    /// this moment: the rare ones, and those that never came, try again.
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

    /// Has everything of the plan come once, and was nothing aimed at for a while?
    pub(crate) fn may_aim(&self, now: Instant) -> bool {
        self.plan.is_through() && self.aimed + AIM_EVERY < now
    }

    /// The next fault is of this kind.
    pub(crate) fn aim(&mut self, kind: Kind, now: Instant) {
        (self.aimed, self.aims) = (now, self.aims + 1);
        self.upcoming = Some(self.plan.more(kind, self.aims));
    }
}
