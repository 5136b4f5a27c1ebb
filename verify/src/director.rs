//! [`run`]: starts the cast, lets faults happen by the plan, and watches.
//!
//! **Invariant:** whatever was begun is ended before anything is judged: nobody is frozen, no link is
//! broken and Redis runs at every quiet point. Nothing outlives the run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::books::{Books, Snapshot};
use crate::cast::{Actor, Ended};
use crate::check::Checker;
use crate::clock::{Clock, TAKES_EFFECT};
use crate::history::{self, Entry};
use crate::member::{Part, REST};
use crate::options::{Options, Progress, Target, Trouble};
use crate::plan::{Kind, Plan};
use crate::promise::Invariant;
use crate::report::{Outages, Paths, Report};
use crate::server::Server;
use crate::strike::{Act, server_args};
use crate::trust::Trusts;
use crate::wakes::Wakes;

/// Time between two ticks of the generator.
const INTERVAL: Duration = Duration::from_millis(20);
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
/// Lines of the history shown with one violation.
const EXCERPT: usize = 40;

pub(crate) struct Director<'a> {
    pub(crate) options: &'a Options,
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
    /// When somebody last made messages, and when somebody last began with one.
    made: u64,
    begun_with: u64,
    /// When the clock of Redis was last set.
    pub(crate) clock_set: Instant,
    pub(crate) trusts: Trusts,
    pub(crate) wakes: Wakes,
    /// Why a kind of fault cannot happen here.
    missing: Vec<String>,
}

/// The taker stands behind the members.
fn cast(options: &Options, url: &str, port: u16, library: Option<&Path>) -> io::Result<Vec<Actor>> {
    let ticks = (1.0 / INTERVAL.as_secs_f64()) as u64;
    let part = Part {
        url: url.to_owned(),
        name: String::new(),
        dir: options.dir.clone(),
        interval: INTERVAL,
        batch: options.rate.div_ceil(ticks).max(1),
        lease: options.lease,
        takes: false,
    };
    let wanted = options.kinds.contains(&Kind::ClockMember);
    let library = library.filter(|_| wanted);
    let mut actors = Vec::new();
    for number in 1..=options.members {
        let role = format!("m{number}");
        let file = options.dir.join(format!("{role}.clock"));
        let clock = library.map(|library| Clock::new(library, file)).transpose()?;
        actors.push(Actor::new(role, &options.program, part.clone(), port, clock)?);
    }
    let taker = Part { takes: true, ..part };
    actors.push(Actor::new("taker".into(), &options.program, taker, port, None)?);
    Ok(actors)
}

/// Runs, breaks, mends, checks. `stop` ends the faults early.
pub fn run(
    options: &Options,
    stop: &AtomicBool,
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
        made: 0,
        begun_with: 0,
        clock_set: Instant::now(),
        trusts: Trusts::default(),
        wakes: Wakes::default(),
        missing,
    };
    let begun = Instant::now();
    director.perform(stop, tell)?;
    let interrupted = stop.load(Ordering::Relaxed);
    director.settle(tell)?;
    Ok(director.report(begun.elapsed(), interrupted))
}

/// What can be done here, and what cannot and why.
fn possible(options: &Options, library: Option<&Path>) -> Result<(Options, Vec<String>), Trouble> {
    let (mut possible, mut missing) = (options.clone(), Vec::new());
    // Whoever is told where it is may have another working folder.
    possible.dir = options.dir.canonicalize()?;
    let kinds = &mut possible.kinds;
    if kinds.iter().any(|kind| kind.is_clock()) {
        let why = match library {
            None => Some("libfaketime is not installed"),
            Some(library) if !Clock::works(library, &possible.dir) => {
                Some("libfaketime does not work here")
            }
            Some(_) => None,
        };
        if let Some(why) = why {
            missing.push(format!("a wall clock that is wrong: {why}"));
            kinds.retain(|kind| !kind.is_clock());
            if kinds.is_empty() {
                return Err(Trouble::NoClocks(why));
            }
        }
    }
    if matches!(options.target, Target::Given { .. }) {
        let refused: Vec<&str> =
            kinds.iter().filter(|kind| kind.needs_private()).map(|kind| kind.name()).collect();
        if !refused.is_empty() {
            missing.push(format!("on a Redis that is given: {}", refused.join(", ")));
            kinds.retain(|kind| !kind.needs_private());
        }
        if kinds.is_empty() {
            return Err(Trouble::Usage(
                "these faults hurt Redis itself, which is done to a server of our own only".into(),
            ));
        }
    }
    Ok((possible, missing))
}

/// The port of an address on this machine: others cannot be reached through the proxies.
fn port_of(url: &str) -> Result<u16, Trouble> {
    let rest = url.strip_prefix("redis://").and_then(|rest| rest.split('/').next());
    let host = rest.map(|rest| rest.rsplit('@').next().unwrap_or(rest));
    let parts = host.and_then(|host| host.rsplit_once(':'));
    match parts {
        Some(("127.0.0.1" | "localhost", port)) => {
            port.parse().map_err(|_| Trouble::Usage(format!("{port} is no port")))
        }
        _ => Err(Trouble::Usage(
            "a Redis that is given must be on this machine, redis://127.0.0.1:PORT: every link to it goes \
             through a proxy"
                .into(),
        )),
    }
}

impl Director<'_> {
    fn perform(
        &mut self,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&Progress),
    ) -> Result<(), Trouble> {
        self.quiet(tell, "starting")?;
        let begun = Instant::now();
        self.begun = begun;
        let mut plan = Plan::new(self.options.seed, &self.options.kinds, self.options.lease);
        let (mut next, mut look, mut quiet) = (begun, begun, begun + QUIET_EVERY);
        let (mut upcoming, mut tries) = (plan.next(), 0);
        // What comes after the first violation only hides it.
        while begun.elapsed() < self.options.time
            && !stop.load(Ordering::Relaxed)
            && self.checker.violations.is_empty()
        {
            let now = Instant::now();
            self.acts(now)?;
            if let Some(step) = upcoming.filter(|_| now >= next) {
                next = now + step.next;
                tries += 1;
                let struck = self.strike(&step)?;
                if struck && step.kind.is_felt_by_all() {
                    self.outages.disturb();
                }
                if struck {
                    *self.counts.entry(step.kind).or_default() += 1;
                }
                // There may be nobody to hit at this moment: the rare ones try again.
                let rare = matches!(step.kind, Kind::KillGenerator | Kind::RedisKill)
                    || !self.counts.contains_key(&step.kind);
                if struck || !rare || tries >= TRIES {
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
                self.quiet(tell, "looking at the books")?;
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
                Err(error) if begun.elapsed() > Duration::from_secs(20) => return Err(error.into()),
                Err(_) => std::thread::sleep(LOOK),
                Ok(answer) => return Ok(answer),
            }
        }
    }

    /// Reads what was written since.
    pub(crate) fn look(&mut self) -> Result<(), Trouble> {
        for at in 0..self.actors.len() {
            match self.actors[at].ended() {
                None => {}
                Some(Ended::NoHistory) => return Err(Trouble::NoHistory),
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
            let rests = begun.elapsed() > REST_AFTER;
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
        if !self.lossy && self.checker.seen.settled != now.settled {
            let (read, there) = (self.checker.seen.settled, now.settled);
            let what =
                format!("{read} different messages were settled, the ledger had {there} entries");
            self.checker.blame(Invariant::BooksBalance, what, Vec::new());
        }
        self.checker.finish(&now);
        Ok(())
    }

    fn report(mut self, took: Duration, interrupted: bool) -> Report {
        for actor in &self.actors {
            self.paths.replies_swallowed += actor.swallowed();
        }
        self.checker.seen.already = self.trusts.already;
        self.actors.clear();
        if self.server.is_none() {
            let _ = self.books.clear(); // what was ours goes
        }
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
