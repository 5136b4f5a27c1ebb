//! How a fault is done, and how it is ended.
//!
//! **Invariant:** whatever is begun here is written down in the agenda with its end.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use crate::clock::{OFF_MAX, TAKES_EFFECT, off_ms};
use crate::director::{Director, LOOK};
use crate::history::{Entry, now};
use crate::options::Trouble;
use crate::plan::{Kind, Step};
use crate::proxy::Fault;
use crate::server::Server;

/// For so long the taker of errors is watched until it has some in its hands: it does several times a second.
const CATCH: Duration = Duration::from_millis(500);

/// For so long a new life of a sender is watched until its first message was added.
const CATCH_FIRST: Duration = Duration::from_secs(3);

/// In this time the clock of Redis is hours ahead, and what expires has expired.
const FORGOTTEN: Duration = Duration::from_secs(4);

/// In this time a sender sends something, and hears nothing of it.
const UNANSWERED: Duration = Duration::from_millis(100);

/// What ends a fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    Begin(usize),
    Thaw(usize),
    Mend(usize),
    RedisUp,
    RedisThaw,
    Memory,
    /// Nothing ends: by now the clock of Redis is off by so much.
    Clock(i64),
    /// The clock of Redis is right again.
    ClockBack,
}

/// The options of a private server, by the faults it is for.
pub(crate) fn server_args(kinds: &[Kind]) -> [&'static str; 6] {
    let (file, sync) = match kinds {
        kinds if kinds.contains(&Kind::RedisLoss) => ("no", "no"),
        kinds if kinds.contains(&Kind::RedisEverysec) => ("yes", "everysec"),
        _ => ("yes", "always"),
    };
    // The file with its number is for members that find themselves alone.
    ["--appendonly", file, "--appendfsync", sync, "--pidfile", "server.pid"]
}

impl Director<'_> {
    /// Somebody whom nothing is being done to.
    fn target(&self, step: &Step) -> Option<usize> {
        let generator = self.generator();
        if step.generator && (step.only || generator.is_some()) {
            return generator;
        }
        let behind = [self.taker(), self.sender()].get(step.which as usize / 7 % 16).copied();
        let hit = |at: &usize| step.kind.hits_all() && !step.only && !self.actors[*at].hurt;
        if let Some(at) = behind.filter(hit) {
            return Some(at);
        }
        let well = |at: &usize| !self.actors[*at].hurt && Some(*at) != generator;
        let mut others: Vec<usize> = (0..self.options.members).filter(well).collect();
        // Whoever is frozen over a message finds when it wakes that it is no longer its own.
        let busy = others.iter().any(|at| self.actors[*at].busy > 0);
        if step.kind == Kind::FreezeLong && busy {
            others.retain(|at| self.actors[*at].busy > 0);
        }
        others.get(step.which as usize % others.len().max(1)).copied()
    }

    fn taker(&self) -> usize {
        self.options.members
    }

    pub(crate) fn sender(&self) -> usize {
        self.options.members + 1
    }

    /// Waits a moment for the taker to have errors in its hands. Has it?
    fn catch_taker(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < CATCH {
            if self.redis_hurt {
                return false;
            }
            match self.books.drains() {
                Ok(0) => std::thread::sleep(Duration::from_millis(2)),
                Ok(_) => return true,
                Err(_) => return false,
            }
        }
        false
    }

    /// Does it, and writes down how it ends. To whom it was done; `None` if there was nobody.
    pub(crate) fn strike(&mut self, step: &Step) -> Result<Option<String>, Trouble> {
        let mut whom = "redis".to_owned();
        if step.kind >= Kind::RedisKill && self.redis_hurt {
            return Ok(None); // one thing at a time
        }
        match step.kind {
            Kind::KillTaker | Kind::KillSender => {
                let taker = step.kind == Kind::KillTaker;
                let at = if taker { self.taker() } else { self.sender() };
                if self.actors[at].hurt {
                    return Ok(None);
                }
                // At any moment, and as often with errors in its hands, or before it is told what became of a message.
                let wait = step.which.is_multiple_of(2) || (taker && !self.drained);
                let full = taker && wait && self.catch_taker();
                if !taker && wait {
                    self.actors[at].network(Fault::HoldReplies);
                    std::thread::sleep(UNANSWERED);
                }
                self.ends(Act::Begin(at), step.lasts);
                self.actors[at].name().clone_into(&mut whom);
                self.end(at);
                self.drained |= full && self.books.drains().is_ok_and(|drains| drains > 0);
            }
            Kind::RedisKill | Kind::RedisEverysec | Kind::RedisLoss => {
                if self.server.is_none() {
                    return Ok(None);
                }
                self.ends(Act::RedisUp, step.lasts);
                if let Some(server) = &mut self.server {
                    server.kill();
                }
                self.outage("Redis killed", true);
                self.redis_hurt = true;
            }
            Kind::RedisFreeze => {
                let Some(server) = &self.server else { return Ok(None) };
                server.freeze();
                self.ends(Act::RedisThaw, step.lasts);
                self.redis_hurt = true;
            }
            Kind::ClientKill => {
                for kind in ["normal", "pubsub"] {
                    if self.books.say(&["CLIENT", "KILL", "TYPE", kind]).is_err() {
                        return Ok(None);
                    }
                }
            }
            // It ends by the clock of Redis: set back meanwhile, it would last for hours.
            Kind::ClientPause
                if Instant::now() < self.clock_set + TAKES_EFFECT || self.goes_back() =>
            {
                return Ok(None);
            }
            Kind::ClientPause => {
                let ms = step.lasts.as_millis().to_string();
                let done = self.books.say(&["CLIENT", "PAUSE", &ms, "ALL"]).is_ok();
                self.ends(Act::RedisThaw, step.lasts + LOOK);
                self.redis_hurt = true;
                return Ok(done.then_some(whom));
            }
            Kind::ScriptFlush => {
                return Ok(self.books.say(&["SCRIPT", "FLUSH"]).is_ok().then_some(whom));
            }
            Kind::MaxMemory => {
                self.ends(Act::Memory, step.lasts);
                let done = self.books.say(&["CONFIG", "SET", "maxmemory", "1"]).is_ok();
                return Ok(done.then_some(whom));
            }
            Kind::Neighbour => return Ok(self.neighbour().then_some(whom)),
            Kind::KillGenerator => {
                let Some(at) = self.generator() else { return Ok(None) };
                self.ends(Act::Begin(at), step.lasts);
                self.actors[at].name().clone_into(&mut whom);
                self.end(at);
                self.outage("generator killed", false);
            }
            Kind::KillWorker => {
                let chosen = Step { generator: false, ..*step };
                let Some(at) = self.target(&chosen) else { return Ok(None) };
                self.ends(Act::Begin(at), step.lasts);
                self.actors[at].name().clone_into(&mut whom);
                self.end(at);
            }
            Kind::Leave => {
                let Some(at) = self.target(step) else { return Ok(None) };
                self.actors[at].name().clone_into(&mut whom);
                if self.generator() == Some(at) {
                    self.outage("generator stopped", false);
                }
                self.actors[at].leave();
            }
            Kind::ClockMember => {
                let Some(at) = self.target(step) else { return Ok(None) };
                self.actors[at].name().clone_into(&mut whom);
                let Some(clock) = &self.actors[at].clock else { return Ok(None) };
                clock.set(off_ms(step.which, self.options.lease))?;
            }
            Kind::ClockRedis => {
                let clock = self.server.as_ref().and_then(Server::clock);
                let Some(clock) = clock else { return Ok(None) };
                let off = off_ms(step.which, self.options.lease);
                clock.set(off)?;
                self.clock_set = Instant::now();
                self.ends(Act::Clock(off), TAKES_EFFECT + LOOK * 10);
            }
            Kind::ClockSender => {
                let at = self.sender();
                let clock = self.server.as_ref().and_then(Server::clock).cloned();
                let Some(clock) = clock.filter(|_| !self.actors[at].hurt) else { return Ok(None) };
                self.actors[at].name().clone_into(&mut whom);
                self.end(at);
                if !self.catch_first_answer(at)? {
                    return Ok(None);
                }
                clock.set(OFF_MAX)?;
                self.clock_set = Instant::now();
                self.ends(Act::ClockBack, FORGOTTEN);
                self.ends(Act::Mend(at), FORGOTTEN + TAKES_EFFECT + LOOK * 10);
            }
            kind => {
                let Some(at) = self.target(step) else { return Ok(None) };
                self.actors[at].name().clone_into(&mut whom);
                let leads = self.generator() == Some(at);
                let long = step.lasts > self.options.lease;
                let act = if kind.is_network() { Act::Mend(at) } else { Act::Thaw(at) };
                let lasts = if kind == Kind::Reset { self.options.lease } else { step.lasts };
                self.ends(act, lasts);
                self.actors[at].hurt = true;
                if leads && kind.is_silent() && step.lasts >= self.options.lease * 3 / 2 {
                    self.silenced.push((at, self.leader.0, Instant::now()));
                }
                if leads && kind == Kind::OneWayOut {
                    let more = if step.only { self.options.lease * 4 } else { Duration::ZERO };
                    self.held_up = Some((at, self.leader.0, Instant::now() + step.lasts + more));
                }
                match fault(kind, step) {
                    Some(fault) => self.actors[at].network(fault),
                    None => self.actors[at].freeze(),
                }
                match (leads && long, kind) {
                    (true, Kind::FreezeLong) => {
                        self.outage("generator frozen", false);
                    }
                    (true, _) if kind.is_silent() => {
                        self.outage("generator cut off", false);
                    }
                    _ => {}
                }
            }
        }
        Ok(Some(whom))
    }

    /// Begins a new life of a sender and cuts it off when its first message was added and its answer was
    /// swallowed. Was it?
    fn catch_first_answer(&mut self, at: usize) -> Result<bool, Trouble> {
        let before = self.actors[at].swallowed();
        // The head of an envelope: nothing else that it says has that.
        self.actors[at].network(Fault::DropReplyTo(b"-|s".to_vec()));
        self.actors[at].begin()?;
        let begun = Instant::now();
        while self.actors[at].swallowed() == before && begun.elapsed() < CATCH_FIRST {
            std::thread::sleep(Duration::from_millis(1));
        }
        let caught = self.actors[at].swallowed() > before;
        if caught {
            self.actors[at].network(Fault::Cut);
        } else {
            self.ends(Act::Mend(at), Duration::ZERO);
        }
        Ok(caught)
    }

    /// Will the clock of Redis be set back?
    fn goes_back(&self) -> bool {
        self.agenda.iter().any(|Reverse((_, act))| *act == Act::ClockBack)
    }

    /// Nobody leads, or nothing flows, from now on.
    fn outage(&mut self, cause: &'static str, same: bool) {
        let full = self.agenda.iter().any(|Reverse((_, act))| *act == Act::Memory);
        // For a lease after it came back, or its clock was set, nobody is judged dead.
        let wary =
            self.redis_back.max(self.clock_set).elapsed() < self.options.lease + TAKES_EFFECT;
        self.outages.begin(cause, self.leader.0, same, full || wary || self.redis_hurt);
    }

    /// Its silence is over: has anybody taken over meanwhile, if there was time?
    fn replaced(&mut self, at: usize) {
        let (time, leads) = (self.options.lease * 3 / 2, self.leader.0);
        self.silenced.retain(|(who, term, since)| {
            if *who == at && since.elapsed() >= time {
                self.paths.silenced += 1;
                self.paths.replaced += u64::from(leads > *term);
            }
            *who != at
        });
    }

    /// `kill -9`.
    fn end(&mut self, at: usize) {
        self.actors[at].kill();
        self.actors[at].hurt = true;
        self.wakes.gone(at);
    }

    fn ends(&mut self, act: Act, after: Duration) {
        self.agenda.push(Reverse((Instant::now() + after, act)));
    }

    fn neighbour(&mut self) -> bool {
        const KEYS: &str = "for i = 1, 10000 do redis.call('SET', 'other:' .. ARGV[1] .. ':' .. i, i, 'PX', \
                            1000 + (i * 7) % 29000) end";
        (0..30).all(|part| self.books.say(&["EVAL", KEYS, "0", &part.to_string()]).is_ok())
    }

    /// Ends what is due.
    pub(crate) fn acts(&mut self, now: Instant) -> Result<(), Trouble> {
        while self.agenda.peek().is_some_and(|Reverse((due, _))| *due <= now) {
            let Some(Reverse((_, act))) = self.agenda.pop() else { break };
            self.act(act)?;
        }
        Ok(())
    }

    pub(crate) fn act(&mut self, act: Act) -> Result<(), Trouble> {
        let whom = match &act {
            Act::Begin(at) | Act::Thaw(at) | Act::Mend(at) => self.actors[*at].name().to_owned(),
            Act::RedisUp | Act::RedisThaw | Act::Memory | Act::Clock(_) | Act::ClockBack => {
                "redis".to_owned()
            }
        };
        // What a stale generator says is heard when another one leads: until then it is held up, within bounds.
        if let (Act::Mend(at), Some((whose, term, until))) = (&act, self.held_up)
            && *at == whose
            && self.leader.0 <= term
            && Instant::now() < until
        {
            self.ends(act, LOOK);
            return Ok(());
        }
        self.faults.write(&Entry::Over(whom)).map_err(|_| Trouble::NoHistory)?;
        match &act {
            Act::Begin(at) | Act::Thaw(at) | Act::Mend(at) => self.actors[*at].touched = now(),
            _ => self.touched = now(),
        }
        match act {
            Act::Begin(at) => {
                self.actors[at].network(Fault::Pass);
                if !self.actors[at].is_alive() {
                    self.actors[at].begin()?;
                }
                self.actors[at].hurt = false;
            }
            Act::Thaw(at) => {
                self.replaced(at);
                self.actors[at].thaw();
                self.actors[at].hurt = false;
            }
            Act::Mend(at) => {
                self.replaced(at);
                if self
                    .held_up
                    .take_if(|(whose, ..)| *whose == at)
                    .is_some_and(|(_, term, _)| self.leader.0 > term)
                {
                    self.paths.stale_requests += 1;
                }
                self.actors[at].network(Fault::Pass);
                self.actors[at].hurt = false;
            }
            Act::RedisUp => {
                if self.lossy {
                    self.look()?;
                    self.checker.data_lost();
                    self.wakes.lost();
                    self.leader = Default::default(); // terms may begin lower
                }
                if let Some(server) = &mut self.server {
                    let torn = server.restart();
                    let torn = torn.map_err(|error| Trouble::Server(error.to_string()))?;
                    self.checker.seen.torn += u64::from(torn);
                }
                if self.options.kinds.contains(&Kind::RedisLoss) {
                    self.books.forget();
                }
                (self.redis_hurt, self.redis_back) = (false, Instant::now());
            }
            Act::RedisThaw => {
                if let Some(server) = &self.server {
                    server.thaw();
                }
                (self.redis_hurt, self.redis_back) = (false, Instant::now());
            }
            Act::Clock(off) if self.redis_hurt => self.ends(Act::Clock(off), LOOK),
            Act::Clock(off) => {
                let seen = self.books.clock_off().is_ok_and(|now| (now - off).abs() < 500);
                self.paths.clocks_seen += u64::from(seen);
            }
            Act::ClockBack => {
                if let Some(clock) = self.server.as_ref().and_then(Server::clock) {
                    clock.set(0)?;
                    self.clock_set = Instant::now();
                }
            }
            Act::Memory if self.redis_hurt => self.ends(Act::Memory, LOOK),
            Act::Memory => self.again(|books| books.say(&["CONFIG", "SET", "maxmemory", "0"]))?,
        }
        Ok(())
    }
}

/// What a fault of the network is to the proxy.
fn fault(kind: Kind, step: &Step) -> Option<Fault> {
    let some = Duration::from_millis(u64::from(10 + step.which % 190));
    Some(match kind {
        Kind::Cut => Fault::Cut,
        Kind::OneWayOut => Fault::HoldRequests,
        Kind::OneWayIn => Fault::HoldReplies,
        Kind::HalfOpen => Fault::Stall,
        Kind::Delay => Fault::Delay(some),
        Kind::Jitter => Fault::Jitter(some * 2),
        Kind::Slow => Fault::Slow(20_000),
        Kind::Reset => Fault::DropReplyTo(b"EVALSHA".to_vec()),
        _ => return None,
    })
}
