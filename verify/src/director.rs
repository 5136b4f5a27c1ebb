//! [`run`]: starts the cast, lets faults happen by the plan, and watches.
//!
//! **Invariant:** whatever was begun is ended before anything is judged: nobody is frozen, no link is
//! broken and Redis runs at every quiet point. Nothing outlives the run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::time::{Duration, Instant};

use crate::books::Books;
use crate::cast::{Actor, Ended};
use crate::check::Checker;
use crate::clock::Clock;
use crate::history::{self, Book, Entry};
use crate::options::{Options, Progress, Stop, Target, Trouble};
use crate::plan::{Kind, Plan};
use crate::promise::Invariant;
use crate::report::{Outages, Paths, Report};
use crate::server::Server;
use crate::stage::{cast, port_of, possible};
use crate::strike::{Act, server_args};
use crate::trust::Trusts;
use crate::wakes::Wakes;

pub(crate) const PAUSE: Duration = Duration::from_millis(5);
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// Between two moments at which everything is whole again and the books are looked at.
const QUIET_EVERY: Duration = Duration::from_secs(20);
/// Between two faults that aim at what was not seen yet.
const AIM_EVERY: Duration = Duration::from_secs(1);
/// How often, and after what time, a fault is tried again that finds nobody to hit.
const TRIES: u32 = 80;
const TRY_AGAIN: Duration = Duration::from_millis(25);
/// How long Redis is asked that does not answer, on a machine with much else to do.
const ASKED_MAX: Duration = Duration::from_secs(120);
/// Lines of the history shown with one violation.
const EXCERPT: usize = 40;

pub(crate) struct Director<'a> {
    pub(crate) options: &'a Options,
    stop: &'a Stop,
    /// When the first fault came.
    begun: Instant,
    pub(crate) server: Option<Server>,
    pub(crate) actors: Vec<Actor>,
    pub(crate) books: Books,
    pub(crate) checker: Checker,
    pub(crate) agenda: BinaryHeap<Reverse<(Instant, Act)>>,
    pub(crate) redis_hurt: bool,
    pub(crate) counts: BTreeMap<Kind, u64>,
    /// The highest term, and who has it.
    pub(crate) leader: (u64, String),
    pub(crate) outages: Outages,
    pub(crate) paths: Paths,
    pub(crate) drained: bool,
    pub(crate) heals: Vec<Duration>,
    /// Redis itself may lose what it acknowledged.
    pub(crate) lossy: bool,
    /// Entries of the ledger that the last look found.
    pub(crate) read: usize,
    /// Whose requests are held up, the term it had, and until when at most.
    pub(crate) held_up: Option<(usize, u64, Instant)>,
    /// Generators of which nothing is heard: who, its term, and since when.
    pub(crate) silenced: Vec<(usize, u64, Instant)>,
    /// When somebody last made messages, and when somebody last began with one.
    pub(crate) made: u64,
    pub(crate) begun_with: u64,
    /// Lives that have seen that it is time to rest.
    pub(crate) rested: HashSet<String>,
    /// When something was last done to Redis, or ended.
    pub(crate) touched: u64,
    /// When the clock of Redis was last set, and when it last came back.
    pub(crate) clock_set: Instant,
    pub(crate) redis_back: Instant,
    /// When it last looked.
    pub(crate) looked: Instant,
    pub(crate) trusts: Trusts,
    pub(crate) wakes: Wakes,
    /// Why a kind of fault cannot happen here.
    missing: Vec<String>,
    /// What was done to whom: a history of its own.
    pub(crate) faults: Book,
}

/// Runs, breaks, mends, checks. `stop` ends the faults early.
pub fn run(
    options: &Options,
    stop: &Stop,
    tell: &mut dyn FnMut(&Progress),
) -> Result<Report, Trouble> {
    std::fs::create_dir_all(&options.dir)?;
    let library = options.faketime.clone().or_else(Clock::library);
    let (possible, missing) = possible(options, library.as_deref())?;
    let options = &possible;
    let lossy = options.kinds.iter().any(|kind| kind.loses_data());
    let (server, url, port) = match &options.target {
        Target::Private(program) => {
            let dir = options.dir.join("server");
            std::fs::create_dir_all(&dir)?;
            let wanted = [Kind::ClockRedis, Kind::ClockSender];
            let wanted = wanted.iter().any(|kind| options.kinds.contains(kind));
            let clock = library.as_deref().filter(|_| wanted);
            let clock = clock.map(|library| Clock::new(library, dir.join("clock"))).transpose()?;
            let server =
                Server::start_with(program, &dir, &server_args(&options.kinds), clock, true)?;
            let (url, port) = (server.url(), server.port());
            (Some(server), url, port)
        }
        Target::Given { url, .. } => (None, url.clone(), port_of(url)?),
    };
    let mut books = Books::new(url.clone());
    let keys = books.keys()?;
    match &options.target {
        Target::Given { anyway, .. } if keys > 0 && !anyway => {
            return Err(Trouble::NotEmpty { keys });
        }
        _ => {}
    }
    let mut director = Director {
        options,
        stop,
        begun: Instant::now(),
        server,
        actors: cast(options, &url, port, library.as_deref())?,
        books,
        checker: Checker::default(),
        agenda: BinaryHeap::new(),
        redis_hurt: false,
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
        made: 0,
        begun_with: 0,
        rested: HashSet::new(),
        touched: history::now(),
        clock_set: Instant::now(),
        redis_back: Instant::now(),
        looked: Instant::now(),
        trusts: Trusts::default(),
        wakes: Wakes::default(),
        missing,
        faults: Book::open(&options.dir.join("faults.history"))?,
    };
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
        let mut plan = Plan::new(self.options.seed, &self.options.kinds, self.options.lease);
        let (mut next, mut look, mut quiet) = (begun, begun, begun + QUIET_EVERY);
        let (mut upcoming, mut tries) = (plan.next(), 0);
        let (mut aimed, mut aims) = (begun, 0);
        // What comes after the first violation only hides it.
        while begun.elapsed() < self.options.time
            && !self.stop.is_early()
            && self.checker.violations.is_empty()
        {
            let now = Instant::now();
            self.acts(now)?;
            if let Some(step) = upcoming.filter(|_| now >= next) {
                tries += 1;
                let struck = self.strike(&step)?;
                if struck.is_some() && step.kind.is_felt_by_all() {
                    self.outages.disturb();
                }
                let done = struck.is_some();
                if let Some(whom) = struck {
                    self.touch(&whom);
                    let (kind, ms) = (step.kind.name().to_owned(), step.lasts.as_millis() as u64);
                    self.faults
                        .write(&Entry::Fault { kind, whom, ms })
                        .map_err(|_| Trouble::NoHistory)?;
                    *self.counts.entry(step.kind).or_default() += 1;
                }
                // There may be nobody to hit at this moment: the rare ones try again.
                let rare = matches!(step.kind, Kind::KillGenerator | Kind::RedisKill)
                    || !self.counts.contains_key(&step.kind);
                let over = done || !rare || tries >= TRIES;
                next = now + if over { step.next } else { TRY_AGAIN };
                if over {
                    (upcoming, tries) = (plan.next(), 0);
                    if plan.is_through()
                        && aimed + AIM_EVERY < now
                        && let Some(kind) = self.missed(aims)
                    {
                        (aimed, aims) = (now, aims + 1);
                        upcoming = Some(plan.more(kind, aims));
                    }
                }
            }
            // More often than a generator pushes: a stale push would stand there only until the next.
            if !self.redis_hurt
                && let Ok(Some(last)) = self.books.last()
            {
                self.checker.accepted(last);
            }
            if now >= look {
                look = now + LOOK;
                self.look()?;
                tell(&self.progress("breaking"));
            }
            if now >= quiet {
                self.quiet(tell, "checking")?;
                quiet = Instant::now() + QUIET_EVERY;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn swallowed(&self) -> u64 {
        self.actors.iter().map(Actor::swallowed).sum()
    }

    /// A kind of fault that has not come yet, or not led to what it is there for: in turn, if there are several.
    fn missed(&self, turn: u32) -> Option<Kind> {
        let paths = [
            (Kind::OneWayOut, self.paths.stale_requests == 0),
            (Kind::Reset, self.trusts.already == 0 || self.swallowed() == 0),
            (Kind::FreezeLong, self.checker.seen.claims_lost == 0),
            (Kind::KillTaker, !self.drained),
            (Kind::ClockRedis, self.paths.clocks_seen == 0),
        ];
        let missed =
            |kind: &&Kind| !self.counts.contains_key(kind) || paths.contains(&(**kind, true));
        let missed: Vec<&Kind> = self.options.kinds.iter().filter(missed).collect();
        missed.get(turn as usize % missed.len().max(1)).copied().copied()
    }

    pub(crate) fn progress(&self, doing: &'static str) -> Progress {
        let elapsed = self.begun.elapsed();
        let (faults, settled) = (self.counts.values().sum(), self.checker.seen.settled);
        let violations = self.checker.violations.len();
        Progress { elapsed, faults, settled, terms: self.outages.terms, violations, doing }
    }

    /// Whoever leads now, if it is well.
    pub(crate) fn generator(&self) -> Option<usize> {
        let at = self.members().position(|actor| actor.name() == self.leader.1)?;
        (self.actors[at].is_alive() && !self.actors[at].hurt).then_some(at)
    }

    /// Something was done to it just now.
    fn touch(&mut self, whom: &str) {
        match self.actors.iter_mut().find(|actor| actor.name() == whom) {
            Some(actor) => actor.touched = history::now(),
            None => self.touched = history::now(),
        }
    }

    /// Since when nothing is in its way, if nothing is. After two leases connections are whole again.
    fn well_since(&self, at: usize) -> Option<u64> {
        let broken = self.redis_hurt || self.touches_redis();
        let last = self.actors[at].touched.max(self.touched);
        let peace = (self.options.lease * 2).as_micros() as u64;
        (!broken && !self.actors[at].hurt).then_some(last + peace)
    }

    /// Is anything done to Redis that has not ended?
    fn touches_redis(&self) -> bool {
        self.agenda
            .iter()
            .any(|Reverse((_, act))| !matches!(act, Act::Begin(_) | Act::Thaw(_) | Act::Mend(_)))
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Actor> {
        self.actors[..self.options.members].iter()
    }

    /// Asks Redis until it answers.
    pub(crate) fn again<T>(
        &mut self,
        mut ask: impl FnMut(&mut Books) -> redis::RedisResult<T>,
    ) -> Result<T, Trouble> {
        let begun = Instant::now();
        loop {
            match ask(&mut self.books) {
                Err(_) if self.stop.is_now() => return Err(Trouble::Ended),
                Err(error) if begun.elapsed() > ASKED_MAX => {
                    return Err(Trouble::Server(format!("Redis does not answer: {error}")));
                }
                Err(_) => std::thread::sleep(LOOK),
                Ok(answer) => return Ok(answer),
            }
        }
    }

    /// Reads what was written since.
    pub(crate) fn look(&mut self) -> Result<(), Trouble> {
        if self.stop.is_now() {
            return Err(Trouble::Ended);
        }
        for at in 0..self.actors.len() {
            match self.actors[at].ended() {
                None => {}
                Some(Ended::NoHistory) => return Err(Trouble::NoHistory),
                Some(Ended::Left) => {
                    self.wakes.gone(at);
                    self.actors[at].begin()?;
                    self.actors[at].hurt = false;
                }
                Some(Ended::Otherwise(what)) => {
                    let about = vec![self.actors[at].name().to_owned()];
                    self.checker.blame(Invariant::Heals, what, about);
                    self.wakes.gone(at);
                    self.actors[at].begin()?;
                }
            }
            for (who, time, entry) in self.actors[at].read() {
                self.checker.history(&who, &entry);
                self.outages.history(time, &entry);
                let wrong = self.trusts.history(&who, time, &entry, self.options.lease);
                if let Some((what, word)) = wrong {
                    self.checker.blame(Invariant::TrustBounded, what, vec![word]);
                }
                self.doubt(at, &who, time, &entry);
                self.wake(at, &who, &entry);
                match entry {
                    Entry::Make { .. } => self.made = self.made.max(time),
                    Entry::Rests => drop(self.rested.insert(who.clone())),
                    // Nobody sends it again, and an hour of keys makes every snapshot slow.
                    Entry::Sent { number, .. } if !self.redis_hurt => {
                        let _ = self.books.drop_key(number);
                    }
                    Entry::Start { .. } => self.begun_with = self.begun_with.max(time),
                    _ => {}
                }
                if let Entry::Leads(term) = entry
                    && term > self.leader.0
                {
                    self.leader = (term, who);
                }
            }
        }
        self.watch_over_waits();
        if !self.redis_hurt
            && let Ok(entries) = self.books.ledger()
        {
            self.read = entries.len();
            entries.iter().for_each(|entry| self.checker.settled(entry));
        }
        Ok(())
    }

    /// Does it say what cannot be?
    fn doubt(&mut self, at: usize, who: &str, time: u64, entry: &Entry) {
        match entry {
            Entry::DataLoss(what) if !self.lossy => {
                let what = format!("{who} said that Redis had lost {what}, and it had not");
                self.checker.blame(Invariant::NoLossInvented, what, vec!["data-loss".to_owned()]);
            }
            Entry::SessionLost if who == self.actors[at].name() => {
                let well = self.well_since(at);
                let wrong =
                    well.and_then(|well| self.trusts.judged(who, time, well, self.options.lease));
                if let Some(what) = wrong {
                    let about = vec!["session-lost".to_owned(), "died".to_owned()];
                    self.checker.blame(Invariant::WellAreSpared, what, about);
                }
            }
            _ => {}
        }
    }

    /// Ends everybody; what was ours on a Redis that was given goes.
    fn clear(&mut self) {
        self.actors.clear();
        if self.server.is_none() {
            let _ = self.books.clear();
        }
    }

    fn report(mut self, took: Duration, interrupted: bool) -> Report {
        self.paths.replies_swallowed = self.swallowed();
        self.checker.seen.already = self.trusts.already;
        self.clear();
        let server = match &self.options.target {
            Target::Private(program) => program.file_name().map(|name| name.to_string_lossy()),
            Target::Given { .. } => None,
        };
        let server =
            server.map_or_else(|| "a given Redis".to_owned(), |name| format!("a private {name}"));
        for violation in &mut self.checker.violations {
            if !violation.about.is_empty() {
                violation.history = history::excerpt(&self.options.dir, &violation.about, EXCERPT);
            }
        }
        Report::new(
            self.options,
            &server,
            took,
            interrupted,
            self.counts,
            self.checker,
            self.outages,
            self.paths,
            self.heals,
            self.missing,
        )
    }
}
