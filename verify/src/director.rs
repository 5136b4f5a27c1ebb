//! [`run`]: starts the processes, injects faults by the plan, and watches.
//!
//! **Invariant:** every fault is ended before anything is judged: at every quiet point nobody is
//! frozen, no link is broken and Redis runs. Nothing outlives the run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use crate::books::Books;
use crate::check::Checker;
use crate::failover::Followed;
use crate::history::{self, Entry};
use crate::losses::Losses;
use crate::member::NO_CHOICE;
use crate::options::{Keeps, Options, Progress, Stop, Trouble};
use crate::outages::Outages;
use crate::plan::{Kind, Step};
use crate::process::{Ended, Process};
use crate::promise::Invariant;
use crate::report::{Paths, Report};
use crate::schedule::Schedule;
use crate::stage::{Stage, possible};
use crate::strike::Act;
use crate::trust::Trusts;
use crate::wakes::Wakes;
use artel_rig::{Clock, Target};

pub(crate) const PAUSE: Duration = Duration::from_millis(5);
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// Time between two quiet points: there everything is repaired, and the books are checked.
const QUIET_EVERY: Duration = Duration::from_secs(20);
/// How long to repeat a call that Redis does not answer, because the machine may be busy.
const ASKED_MAX: Duration = Duration::from_secs(120);
/// Lines of the history shown with one violation.
const EXCERPT: usize = 40;

pub(crate) struct Director<'a> {
    pub(crate) options: &'a Options,
    stop: &'a Stop,
    /// When the faults began.
    begun: Instant,
    /// The things that are broken and repaired.
    pub(crate) stage: Stage,
    /// What was seen of the fleet, and the conclusions.
    pub(crate) watch: Watch,
    /// Which faults are not possible here, and why.
    missing: Vec<String>,
}

/// What was seen of the fleet, and the conclusions.
pub(crate) struct Watch {
    pub(crate) checker: Checker,
    pub(crate) trusts: Trusts,
    pub(crate) wakes: Wakes,
    pub(crate) losses: Losses,
    pub(crate) followed: Followed,
    pub(crate) counts: BTreeMap<Kind, u64>,
    /// The highest term, and the process that leads under it.
    pub(crate) leader: (u64, String),
    pub(crate) outages: Outages,
    pub(crate) paths: Paths,
    pub(crate) drained: bool,
    pub(crate) heals: Vec<Duration>,
    /// Redis itself may lose acknowledged writes.
    pub(crate) lossy: bool,
    /// Entries of the ledger that the last look found.
    pub(crate) read: usize,
    /// A generator whose requests are held up, its term, and the latest time until which they are.
    pub(crate) held_up: Option<(usize, u64, Instant)>,
    /// Silent generators: which process, its term, and since when.
    pub(crate) silenced: Vec<(usize, u64, Instant)>,
    /// The last term about which it was judged whether others stood in for its silent generator.
    pub(crate) stood_in: u64,
    /// When a generator last made messages, and when a worker last began with one.
    pub(crate) made: u64,
    pub(crate) begun_with: u64,
    /// Lives of processes that have seen that it is time to rest.
    pub(crate) rested: HashSet<String>,
    /// The time of the last look.
    pub(crate) looked: Instant,
    /// Until then members may notice that a server that took over lacks what nobody was told.
    pub(crate) forgets_until: u64,
}

impl Watch {
    fn new(lossy: bool) -> Watch {
        Watch {
            checker: Checker::default(),
            trusts: Trusts::default(),
            wakes: Wakes::default(),
            losses: Losses::default(),
            followed: Followed::default(),
            counts: BTreeMap::new(),
            leader: (0, String::new()),
            outages: Outages::default(),
            paths: Paths::default(),
            drained: false,
            heals: Vec::new(),
            lossy,
            read: 0,
            held_up: None,
            silenced: Vec::new(),
            stood_in: 0,
            made: 0,
            begun_with: 0,
            rested: HashSet::new(),
            looked: Instant::now(),
            forgets_until: 0,
        }
    }
}

/// Runs a fleet, breaks it, repairs it, checks it. `stop` ends the faults early.
pub fn run(
    options: &Options,
    stop: &Stop,
    tell: &mut dyn FnMut(&Progress),
) -> Result<Report, Trouble> {
    std::fs::create_dir_all(&options.dir)?;
    let library = options.faketime.clone().or_else(Clock::library);
    let (possible, missing) = possible(options, library.as_deref())?;
    let options = &possible;
    let lossy = options.loses_data();
    if options.keeps(QUIET_EVERY) != Keeps::Always {
        std::fs::write(options.dir.join(NO_CHOICE), b"")?;
    }
    let mut director = Director {
        options,
        stop,
        begun: Instant::now(),
        stage: Stage::build(options, library.as_deref())?,
        watch: Watch::new(lossy),
        missing,
    };
    director.read_clock()?;
    director.watch.checker.unledgered = options.keeps(QUIET_EVERY) != Keeps::Always;
    let begun = Instant::now();
    if let Err(trouble) = director.perform(tell).and_then(|()| director.settle(tell)) {
        director.clear();
        return Err(trouble);
    }
    Ok(director.report(begun.elapsed(), stop.is_early()))
}

impl Director<'_> {
    fn perform(&mut self, tell: &mut dyn FnMut(&Progress)) -> Result<(), Trouble> {
        self.quiet(tell, "starting")?;
        let begun = Instant::now();
        self.begun = begun;
        let keeps = self.options.keeps(QUIET_EVERY);
        let mut kept = keeps == Keeps::Always;
        let mut schedule = Schedule::new(self.options, begun);
        let (mut look, mut quiet) = (begun, begun + QUIET_EVERY);
        // Stop at the first violation: later events would only hide it.
        while begun.elapsed() < self.options.time
            && !self.stop.is_early()
            && self.watch.checker.violations.is_empty()
        {
            let now = Instant::now();
            self.acts(now)?;
            if let Some(step) = schedule.upcoming.filter(|_| now >= schedule.next) {
                let done = self.do_fault(&step)?;
                let is_new = !self.watch.counts.contains_key(&step.kind);
                if schedule.is_over(&step, done, is_new, now)
                    && schedule.may_aim(now)
                    && let Some(kind) = self.missed(schedule.aims)
                {
                    schedule.aim(kind, now);
                }
            }
            // Read more often than a generator pushes: the next push hides a stale one.
            if !self.stage.redis_hurt
                && let Ok(Some(last)) = self.stage.books.last()
            {
                self.watch.checker.accepted(last);
            }
            if now >= look {
                look = now + LOOK;
                self.look()?;
                tell(&self.progress("breaking"));
            }
            if now >= quiet {
                self.quiet(tell, "checking")?;
                if keeps == Keeps::ByTurns {
                    kept = !kept;
                    self.again(|books| books.keep_ledger(kept))?;
                }
                quiet = Instant::now() + QUIET_EVERY;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Begins a fault and records it; false if there was no process to hit.
    fn do_fault(&mut self, step: &Step) -> Result<bool, Trouble> {
        let Some(whom) = self.strike(step)? else { return Ok(false) };
        if matches!(step.kind, Kind::ClockRedis | Kind::ClockSender) {
            self.watch.checker.clock_wrong(history::now());
        }
        if step.kind.is_felt_by_all() {
            self.watch.outages.disturb();
        }
        self.touch(&whom);
        let (kind, ms) = (step.kind.name().to_owned(), step.lasts.as_millis() as u64);
        let fault = Entry::Fault { kind, whom, ms };
        self.stage.faults.write(&fault).map_err(|_| Trouble::NoHistory)?;
        *self.watch.counts.entry(step.kind).or_default() += 1;
        Ok(true)
    }

    fn swallowed(&self) -> u64 {
        self.stage.processes.iter().map(Process::swallowed).sum()
    }

    /// A kind of fault that has not come yet, or has not had the effect it is meant for. If there
    /// are several, they take turns.
    fn missed(&self, turn: u32) -> Option<Kind> {
        let paths = [
            (Kind::OneWayOut, self.watch.paths.stale_requests == 0),
            (Kind::Reset, self.watch.trusts.already == 0 || self.swallowed() == 0),
            (Kind::FreezeLong, self.watch.checker.seen.claims_lost == 0),
            (Kind::KillTaker, !self.watch.drained),
            (Kind::ClockRedis, self.watch.paths.clocks_seen == 0),
        ];
        let missed =
            |kind: &&Kind| !self.watch.counts.contains_key(kind) || paths.contains(&(**kind, true));
        let missed: Vec<&Kind> = self.options.kinds.iter().filter(missed).collect();
        missed.get(turn as usize % missed.len().max(1)).copied().copied()
    }

    pub(crate) fn progress(&self, doing: &'static str) -> Progress {
        let elapsed = self.begun.elapsed();
        let checker = &self.watch.checker;
        let (faults, settled) =
            (self.watch.counts.values().sum(), checker.seen.settled.max(checker.confirmed));
        let violations = self.watch.checker.violations.len();
        Progress { elapsed, faults, settled, terms: self.watch.outages.terms, violations, doing }
    }

    /// The process that leads now, if it has no fault.
    pub(crate) fn generator(&self) -> Option<usize> {
        let at = self.members().position(|process| process.name() == self.watch.leader.1)?;
        (self.stage.processes[at].is_alive() && !self.stage.processes[at].hurt).then_some(at)
    }

    /// Records that a fault of this process, or of Redis, began now.
    fn touch(&mut self, whom: &str) {
        match self.stage.processes.iter_mut().find(|process| process.name() == whom) {
            Some(process) => process.touched = history::now(),
            None => self.stage.touched = history::now(),
        }
    }

    /// Since when nothing disturbs this process; `None` if something does. Connections need two
    /// leases to recover.
    fn well_since(&self, at: usize) -> Option<u64> {
        let broken = self.stage.redis_hurt || self.touches_redis();
        let last = self.stage.processes[at].touched.max(self.stage.touched);
        let peace = (self.options.lease * 2).as_micros() as u64;
        (!broken && !self.stage.processes[at].hurt).then_some(last + peace)
    }

    /// Does Redis have a fault that has not ended?
    fn touches_redis(&self) -> bool {
        self.stage
            .agenda
            .iter()
            .any(|Reverse((_, act))| !matches!(act, Act::Begin(_) | Act::Thaw(_) | Act::Mend(_)))
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Process> {
        self.stage.processes[..self.options.members].iter()
    }

    /// Repeats a call until Redis answers.
    pub(crate) fn again<T>(
        &mut self,
        mut ask: impl FnMut(&mut Books) -> redis::RedisResult<T>,
    ) -> Result<T, Trouble> {
        let begun = Instant::now();
        loop {
            match ask(&mut self.stage.books) {
                Err(_) if self.stop.is_now() => return Err(Trouble::Ended),
                Err(error) if begun.elapsed() > ASKED_MAX => {
                    return Err(Trouble::Server(format!("Redis does not answer: {error}")));
                }
                Err(_) => std::thread::sleep(LOOK),
                Ok(answer) => return Ok(answer),
            }
        }
    }

    /// Reads everything that was written since the last look.
    pub(crate) fn look(&mut self) -> Result<(), Trouble> {
        if self.stop.is_now() {
            return Err(Trouble::Ended);
        }
        // A process that settles a message has written into its history why. So the histories, read later, explain the ledger.
        let hurt = self.stage.redis_hurt;
        let entries = if hurt { None } else { self.stage.books.ledger().ok() };
        for at in 0..self.stage.processes.len() {
            self.revive(at)?;
            for (who, time, entry) in self.stage.processes[at].read() {
                self.see(at, who, time, entry);
            }
        }
        self.watch_over_waits();
        self.watch_over_due();
        if let Some(entries) = entries {
            self.watch.read = entries.len();
            let reread = self.options.loses_told();
            for entry in &entries {
                if self.watch.losses.settled(entry.id) || !reread {
                    self.watch.checker.settled(entry);
                }
            }
        }
        Ok(())
    }

    /// Begins a new life of a process that has ended by itself.
    fn revive(&mut self, at: usize) -> Result<(), Trouble> {
        match self.stage.processes[at].ended() {
            None => return Ok(()),
            Some(Ended::NoHistory) => return Err(Trouble::NoHistory),
            Some(Ended::Left) => self.stage.processes[at].hurt = false,
            Some(Ended::Otherwise(what)) => {
                let about = vec![self.stage.processes[at].name().to_owned()];
                self.watch.checker.blame(Invariant::Heals, what, about);
            }
        }
        self.watch.wakes.gone(at);
        self.stage.processes[at].begin()?;
        Ok(())
    }

    /// Processes one entry of a history.
    fn see(&mut self, at: usize, who: String, time: u64, entry: Entry) {
        self.watch.checker.history(&who, time, &entry);
        self.watch.outages.history(time, &entry);
        self.watch.losses.history(&who, time, &entry);
        self.watch.followed.history(time, &entry);
        let wrong = self.watch.trusts.history(&who, time, &entry, self.options.lease);
        if let Some((what, word)) = wrong {
            self.watch.checker.blame(Invariant::TrustBounded, what, vec![word]);
        }
        self.doubt(at, &who, time, &entry);
        self.wake(at, &who, &entry);
        match entry {
            Entry::Make { .. } => self.watch.made = self.watch.made.max(time),
            Entry::Rests => drop(self.watch.rested.insert(who)),
            // Nobody sends it again, and the keys of a whole hour would make every snapshot slow.
            Entry::Sent { number, .. } if !self.stage.redis_hurt => {
                let _ = self.stage.books.drop_key(number);
            }
            Entry::Start { .. } => self.watch.begun_with = self.watch.begun_with.max(time),
            Entry::Leads(term) if term > self.watch.leader.0 => self.watch.leader = (term, who),
            _ => {}
        }
    }

    /// Checks whether an entry reports something that cannot be.
    fn doubt(&mut self, at: usize, who: &str, time: u64, entry: &Entry) {
        match entry {
            Entry::DataLoss(what) if !self.watch.lossy && time > self.watch.forgets_until => {
                let what = format!("{who} reported that Redis had lost {what}, and it had not");
                self.watch.checker.blame(
                    Invariant::NoLossInvented,
                    what,
                    vec!["data-loss".to_owned()],
                );
            }
            Entry::SessionLost if who == self.stage.processes[at].name() => {
                let well = self.well_since(at);
                let wrong = well
                    .and_then(|well| self.watch.trusts.judged(who, time, well, self.options.lease));
                if let Some(what) = wrong {
                    let about = vec!["session-lost".to_owned(), "died".to_owned()];
                    self.watch.checker.blame(Invariant::WellAreSpared, what, about);
                }
            }
            _ => {}
        }
    }

    /// Ends all processes, and removes our keys from a given Redis.
    fn clear(&mut self) {
        self.stage.processes.clear();
        if matches!(self.options.target, Target::Given { .. }) {
            let _ = self.stage.books.clear();
        }
    }

    fn report(mut self, took: Duration, interrupted: bool) -> Report {
        self.watch.paths.replies_swallowed = self.swallowed();
        self.watch.checker.seen.already = self.watch.trusts.already;
        self.clear();
        let server = match &self.options.target {
            Target::Private(program) => program.file_name().map(|name| name.to_string_lossy()),
            Target::Given { .. } => None,
        };
        let server = server.map_or_else(
            || "a given Redis".to_owned(),
            |name| format!("a private {name}{}", self.options.topology.words()),
        );
        for violation in &mut self.watch.checker.violations {
            if !violation.about.is_empty() {
                violation.history = history::excerpt(&self.options.dir, &violation.about, EXCERPT);
            }
        }
        Report::new(self.options, &server, (took, interrupted), self.watch, self.missing)
    }
}
