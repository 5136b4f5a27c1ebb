//! [`run`]: starts the cast, lets faults happen by the plan, and watches.
//!
//! **Invariant:** whatever was begun is ended before anything is judged: nobody is frozen, no link is
//! broken and Redis runs at every quiet point. Nothing outlives the run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use crate::books::{Books, Snapshot};
use crate::cast::{Actor, Ended};
use crate::check::Checker;
use crate::clock::{Clock, TAKES_EFFECT};
use crate::history::{self, Book, Entry};
use crate::member::REST;
use crate::options::{Options, Progress, Stop, Target, Trouble};
use crate::plan::{Kind, Plan};
use crate::promise::Invariant;
use crate::report::{Outages, Paths, Report};
use crate::server::Server;
use crate::stage::{cast, port_of, possible};
use crate::strike::{Act, server_args};
use crate::trust::Trusts;
use crate::wakes::Wakes;

const PAUSE: Duration = Duration::from_millis(5);
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// Between two moments at which everything is whole again and the books are looked at.
const QUIET_EVERY: Duration = Duration::from_secs(20);
/// By then a push that was under way when generating ended is there.
const REST_AFTER: Duration = Duration::from_secs(1);
/// How often a fault is tried that finds nobody to hit.
const TRIES: u32 = 50;
/// How much longer than two leases it may take until all is well again, on a busy machine.
const HEAL_MORE: Duration = Duration::from_secs(10);
/// Once nothing is generated, at least one message is settled in this time until there is none.
const EMPTY_MAX: Duration = Duration::from_secs(20);
/// So often a silent generator may not be replaced in time, on a busy machine, if none ever is.
const SILENCED_MIN: u64 = 4;
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
    /// Whose requests are held up, and the term it had.
    pub(crate) held_up: Option<(usize, u64)>,
    /// Generators of which nothing is heard: who, its term, and since when.
    pub(crate) silenced: Vec<(usize, u64, Instant)>,
    /// When somebody last made messages, and when somebody last began with one.
    made: u64,
    begun_with: u64,
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
            let wanted = options.kinds.contains(&Kind::ClockRedis);
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
        // What comes after the first violation only hides it.
        while begun.elapsed() < self.options.time
            && !self.stop.is_early()
            && self.checker.violations.is_empty()
        {
            let now = Instant::now();
            self.acts(now)?;
            if let Some(step) = upcoming.filter(|_| now >= next) {
                next = now + step.next;
                tries += 1;
                let struck = self.strike(&step)?;
                if struck.is_some() && step.kind.is_felt_by_all() {
                    self.outages.disturb();
                }
                let done = struck.is_some();
                if let Some(whom) = struck {
                    let (kind, ms) = (step.kind.name().to_owned(), step.lasts.as_millis() as u64);
                    self.faults
                        .write(&Entry::Fault { kind, whom, ms })
                        .map_err(|_| Trouble::NoHistory)?;
                    *self.counts.entry(step.kind).or_default() += 1;
                }
                // There may be nobody to hit at this moment: the rare ones try again.
                let rare = matches!(step.kind, Kind::KillGenerator | Kind::RedisKill)
                    || !self.counts.contains_key(&step.kind);
                if done || !rare || tries >= TRIES {
                    (upcoming, tries) = (plan.next(), 0);
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

    fn progress(&self, doing: &'static str) -> Progress {
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
                Err(error) if begun.elapsed() > Duration::from_secs(20) => return Err(error.into()),
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
                self.wake(at, &who, &entry);
                match entry {
                    Entry::Make { .. } => self.made = self.made.max(time),
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

    /// Ends all faults, waits until all is well again, and looks at the books.
    fn quiet(
        &mut self,
        tell: &mut dyn FnMut(&Progress),
        doing: &'static str,
    ) -> Result<(), Trouble> {
        let mut acts: Vec<Act> = self.agenda.drain().map(|Reverse((_, act))| act).collect();
        // Redis first: the others may need it.
        acts.sort_by_key(|act| !matches!(act, Act::RedisUp | Act::RedisThaw));
        for act in acts {
            self.act(act)?;
        }
        let _ = self.again(|books| books.say(&["CLIENT", "UNPAUSE"]));
        // A clock that was set goes wrong only now.
        std::thread::sleep(
            (self.clock_set + TAKES_EFFECT).saturating_duration_since(Instant::now()),
        );
        let (begun, since) = (Instant::now(), history::now());
        let most = self.options.lease * 2 + HEAL_MORE;
        let members = self.options.members as u64;
        let mut last;
        loop {
            self.look()?;
            last = self.books.snapshot().ok();
            let well = |now: &Snapshot| now.leads.is_some() && now.members == members;
            let flows = self.made.min(self.begun_with) > since;
            let here = self.members().all(|actor| actor.joined);
            if flows && here && last.as_ref().is_some_and(well) {
                break;
            }
            if begun.elapsed() > most {
                let leads = last.as_ref().is_some_and(|now| now.leads.is_some());
                let what = format!(
                    "{} s after the last fault {} of {members} take part, {} leads and {} flows",
                    most.as_secs(),
                    last.as_ref().map_or(0, |now| now.members),
                    if leads { "one" } else { "nobody" },
                    if flows { "work" } else { "nothing" },
                );
                if self.server.is_none() && self.counts.is_empty() {
                    return Err(Trouble::NotStarted(what));
                }
                self.checker.blame(Invariant::Heals, what, Vec::new());
                return Ok(());
            }
            tell(&self.progress(doing));
            std::thread::sleep(LOOK);
        }
        if let Some(last) = self.again(Books::last)? {
            self.checker.accepted(last);
        }
        self.heals.push(begun.elapsed());
        let now = self.again(Books::snapshot)?;
        self.checker.quiet(&now);
        self.paths.drain_recovered |=
            self.drained && self.books.drains().is_ok_and(|drains| drains == 0);
        self.beat()
    }

    /// Sets the event: everybody must return.
    fn beat(&mut self) -> Result<(), Trouble> {
        let generation = self.again(Books::beat)?;
        let begun = Instant::now();
        loop {
            self.look()?;
            let asleep = self.members().find(|actor| actor.woken < generation);
            let asleep = asleep.map(|actor| actor.name().to_owned());
            // And nobody is left who waited before this began.
            let late = self.wakes.asleep(Instant::now(), begun.elapsed());
            let Some(asleep) = asleep.or_else(|| late.map(str::to_owned)) else { return Ok(()) };
            if begun.elapsed() > HEAL_MORE {
                let what = format!("{asleep} still waits for an event set {HEAL_MORE:?} ago");
                let about = vec![generation.to_string(), asleep];
                self.checker.blame(Invariant::NoWakeUpMissed, what, about);
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends generation, waits for the last messages, and judges.
    fn settle(&mut self, tell: &mut dyn FnMut(&Progress)) -> Result<(), Trouble> {
        self.quiet(tell, "mending")?;
        std::fs::write(self.options.dir.join(REST), b"")?;
        let begun = Instant::now();
        let (mut settled, mut moved) = (0, begun);
        let now = loop {
            self.look()?;
            // First what was accepted, then what is there: the other way round it could be missed.
            if let Some(last) = self.again(Books::last)? {
                self.checker.accepted(last);
            }
            let now = self.again(Books::snapshot)?;
            let read = self.read == 0 && (self.lossy || self.checker.seen.settled >= now.settled);
            let time = history::now();
            let moves = self.members().any(|actor| self.trusts.moves(actor.name(), time));
            let rests = begun.elapsed() > REST_AFTER && !moves;
            if rests && now.waiting == 0 && now.held == 0 && now.errors.is_empty() && read {
                break now;
            }
            if now.settled > settled {
                (settled, moved) = (now.settled, Instant::now());
            }
            if moved.elapsed() > EMPTY_MAX {
                let what = format!(
                    "nothing was settled for {EMPTY_MAX:?}, and {} wait, {} are held and {} errors are not taken",
                    now.waiting,
                    now.held,
                    now.errors.len()
                );
                self.checker.blame(Invariant::Heals, what, Vec::new());
                break now;
            }
            tell(&self.progress("settling"));
            std::thread::sleep(LOOK);
        };
        self.look()?;
        self.paths.drain_recovered |= self.drained && now.errors.is_empty();
        if !self.lossy && self.checker.seen.settled != now.settled {
            let (read, there) = (self.checker.seen.settled, now.settled);
            let what =
                format!("{read} different messages were settled, the ledger had {there} entries");
            self.checker.blame(Invariant::BooksBalance, what, Vec::new());
        }
        let Paths { silenced, replaced, .. } = self.paths;
        if silenced >= SILENCED_MIN && replaced == 0 {
            let what =
                format!("{silenced} times nothing was heard of a generator, and nobody took over");
            self.checker.blame(Invariant::Heals, what, Vec::new());
        }
        self.checker.finish(&now);
        Ok(())
    }

    /// Ends everybody; what was ours on a Redis that was given goes.
    fn clear(&mut self) {
        self.actors.clear();
        if self.server.is_none() {
            let _ = self.books.clear();
        }
    }

    fn report(mut self, took: Duration, interrupted: bool) -> Report {
        for actor in &self.actors {
            self.paths.replies_swallowed += actor.swallowed();
        }
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
