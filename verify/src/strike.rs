//! How each fault begins and ends.
//!
//! **Invariant:** every fault that begins here has its end in the agenda.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use crate::director::{Director, LOOK};
use crate::failover::Heal;
use crate::history::{Entry, now};
use crate::options::Trouble;
use crate::plan::{Kind, Step};
use artel_rig::Fault;
use artel_rig::PrivateServer;
use artel_rig::{OFF_MAX, TAKES_EFFECT, off_ms};

/// How long to wait until the taker holds errors, which it does several times per second.
const CATCH: Duration = Duration::from_millis(500);

/// How long to wait until the first message of a new life of the sender is added.
const CATCH_FIRST: Duration = Duration::from_secs(3);

/// After this time the clock of Redis is hours ahead, and the keys that expire have expired.
const FORGOTTEN: Duration = Duration::from_secs(4);

/// In this time a sender sends something, and gets no answer.
const UNANSWERED: Duration = Duration::from_millis(100);

/// An act that ends a fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    Begin(usize),
    Thaw(usize),
    Mend(usize),
    RedisUp,
    RedisThaw,
    Memory,
    /// Ends nothing: checks that the clock of Redis is wrong by this many milliseconds.
    Clock(i64),
    /// The clock of Redis is right again.
    ClockBack,
    /// About servers that replace one another.
    Heal(Heal),
}

/// The options of a private server, by the faults it is for.
pub(crate) fn server_args(kinds: &[Kind]) -> [&'static str; 6] {
    let (file, sync) = match kinds {
        kinds if kinds.contains(&Kind::RedisLoss) => ("no", "no"),
        kinds if kinds.contains(&Kind::RedisEverysec) => ("yes", "everysec"),
        _ => ("yes", "always"),
    };
    // The pid file is for members that outlive the director: they end the server.
    ["--appendonly", file, "--appendfsync", sync, "--pidfile", "server.pid"]
}

impl Director<'_> {
    /// The process to hit: one that has no fault now.
    fn target(&self, step: &Step) -> Option<usize> {
        let generator = self.generator();
        if step.generator && (step.only || generator.is_some()) {
            return generator;
        }
        let behind = [self.taker(), self.sender()].get(step.which as usize / 7 % 16).copied();
        let hit =
            |at: &usize| step.kind.hits_all() && !step.only && !self.stage.processes[*at].hurt;
        if let Some(at) = behind.filter(hit) {
            return Some(at);
        }
        let well = |at: &usize| !self.stage.processes[*at].hurt && Some(*at) != generator;
        let mut others: Vec<usize> = (0..self.options.members).filter(well).collect();
        // A worker that is frozen with a message has lost it when it wakes.
        let busy = others.iter().any(|at| self.stage.processes[*at].busy > 0);
        if step.kind == Kind::FreezeLong && busy {
            others.retain(|at| self.stage.processes[*at].busy > 0);
        }
        others.get(step.which as usize % others.len().max(1)).copied()
    }

    fn taker(&self) -> usize {
        self.options.members
    }

    pub(crate) fn sender(&self) -> usize {
        self.options.members + 1
    }

    /// Waits a moment until the taker holds errors. Does it?
    fn catch_taker(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < CATCH {
            if self.stage.redis_hurt {
                return false;
            }
            match self.stage.books.drains() {
                Ok(0) => std::thread::sleep(Duration::from_millis(2)),
                Ok(_) => return true,
                Err(_) => return false,
            }
        }
        false
    }

    /// Begins the fault, and puts its end into the agenda. Returns which process was hit; `None` if
    /// there was none.
    pub(crate) fn strike(&mut self, step: &Step) -> Result<Option<String>, Trouble> {
        if step.kind >= Kind::RedisKill && self.stage.redis_hurt {
            return Ok(None); // one thing at a time
        }
        match step.kind {
            Kind::KillTaker => Ok(self.kill_taker(step)),
            Kind::KillSender => Ok(self.kill_sender(step)),
            Kind::KillGenerator => Ok(self.kill_generator(step)),
            Kind::KillWorker => Ok(self.kill_worker(step)),
            Kind::Leave => Ok(self.leave(step)),
            Kind::RedisKill | Kind::RedisEverysec | Kind::RedisLoss => Ok(self.kill_redis(step)),
            Kind::RedisFreeze => Ok(self.freeze_redis(step)),
            Kind::ClientKill => Ok(self.kill_clients()),
            Kind::ClientPause => Ok(self.pause_clients(step)),
            Kind::ScriptFlush => Ok(self.say(&["SCRIPT", "FLUSH"])),
            Kind::MaxMemory => {
                self.ends(Act::Memory, step.lasts);
                Ok(self.say(&["CONFIG", "SET", "maxmemory", "1"]))
            }
            Kind::Neighbour => Ok(self.neighbour().then(redis)),
            Kind::ClockMember => self.set_clock_of_member(step),
            Kind::ClockRedis => self.set_clock_of_redis(step),
            Kind::ClockSender => self.forget_sender(),
            kind if kind >= Kind::Failover => self.hurt_servers(step),
            _ => Ok(self.freeze_or_cut(step)),
        }
    }

    fn name_of(&self, at: usize) -> String {
        self.stage.processes[at].name().to_owned()
    }

    /// `kill -9`, and a new life after the time of the step; returns the name of the process.
    fn kill(&mut self, at: usize, step: &Step) -> Option<String> {
        self.ends(Act::Begin(at), step.lasts);
        let whom = self.name_of(at);
        self.end(at);
        Some(whom)
    }

    /// Kills the taker: half of the time at any moment, half of the time while it holds errors.
    fn kill_taker(&mut self, step: &Step) -> Option<String> {
        let at = self.taker();
        if self.stage.processes[at].hurt {
            return None;
        }
        let wait = step.which.is_multiple_of(2) || !self.watch.drained;
        let full = wait && self.catch_taker();
        let whom = self.kill(at, step);
        self.watch.drained |= full && self.stage.books.drains().is_ok_and(|drains| drains > 0);
        whom
    }

    /// Kills the sender: half of the time at any moment, half of the time before it gets the answer
    /// for a message.
    fn kill_sender(&mut self, step: &Step) -> Option<String> {
        let at = self.sender();
        if self.stage.processes[at].hurt {
            return None;
        }
        if step.which.is_multiple_of(2) {
            self.stage.processes[at].network(Fault::HoldReplies);
            std::thread::sleep(UNANSWERED);
        }
        self.kill(at, step)
    }

    fn kill_generator(&mut self, step: &Step) -> Option<String> {
        let at = self.generator()?;
        let whom = self.kill(at, step);
        self.outage("generator killed", false);
        whom
    }

    fn kill_worker(&mut self, step: &Step) -> Option<String> {
        let at = self.target(&Step { generator: false, ..*step })?;
        self.kill(at, step)
    }

    fn leave(&mut self, step: &Step) -> Option<String> {
        let at = self.target(step)?;
        if self.generator() == Some(at) {
            self.outage("generator stopped", false);
        }
        self.stage.processes[at].leave();
        Some(self.name_of(at))
    }

    fn kill_redis(&mut self, step: &Step) -> Option<String> {
        self.stage.server.as_mut()?.kill();
        self.ends(Act::RedisUp, step.lasts);
        self.outage("Redis killed", true);
        self.stage.redis_hurt = true;
        Some(redis())
    }

    fn freeze_redis(&mut self, step: &Step) -> Option<String> {
        self.stage.server.as_ref()?.freeze();
        self.ends(Act::RedisThaw, step.lasts);
        self.stage.redis_hurt = true;
        Some(redis())
    }

    fn kill_clients(&mut self) -> Option<String> {
        let mut kinds = ["normal", "pubsub"].into_iter();
        kinds.all(|kind| self.say(&["CLIENT", "KILL", "TYPE", kind]).is_some()).then(redis)
    }

    /// The pause ends by the clock of Redis. If the clock is set back meanwhile, the pause would
    /// last for hours.
    fn pause_clients(&mut self, step: &Step) -> Option<String> {
        if Instant::now() < self.stage.clock_set + TAKES_EFFECT || self.goes_back() {
            return None;
        }
        let ms = step.lasts.as_millis().to_string();
        let done = self.say(&["CLIENT", "PAUSE", &ms, "ALL"]);
        self.ends(Act::RedisThaw, step.lasts + LOOK);
        self.stage.redis_hurt = true;
        done
    }

    fn say(&mut self, words: &[&str]) -> Option<String> {
        self.stage.books.say(words).is_ok().then(redis)
    }

    fn set_clock_of_member(&mut self, step: &Step) -> Result<Option<String>, Trouble> {
        let Some(at) = self.target(step) else { return Ok(None) };
        let Some(clock) = &self.stage.processes[at].clock else { return Ok(None) };
        clock.set(off_ms(step.which, self.options.lease))?;
        Ok(Some(self.name_of(at)))
    }

    fn set_clock_of_redis(&mut self, step: &Step) -> Result<Option<String>, Trouble> {
        let clock = self.stage.server.as_ref().and_then(PrivateServer::clock);
        let Some(clock) = clock else { return Ok(None) };
        let off = off_ms(step.which, self.options.lease);
        clock.set(off)?;
        self.stage.clock_set = Instant::now();
        self.ends(Act::Clock(off), TAKES_EFFECT + LOOK * 10);
        Ok(Some(redis()))
    }

    /// Lets a sender wait for an answer while the clock of Redis jumps, so that Redis forgets its
    /// numbers.
    fn forget_sender(&mut self) -> Result<Option<String>, Trouble> {
        let at = self.sender();
        let clock = self.stage.server.as_ref().and_then(PrivateServer::clock).cloned();
        let hurt = self.stage.processes[at].hurt;
        let Some(clock) = clock.filter(|_| !hurt) else { return Ok(None) };
        let whom = self.name_of(at);
        self.end(at);
        if !self.catch_first_answer(at)? {
            return Ok(None);
        }
        clock.set(OFF_MAX)?;
        self.stage.clock_set = Instant::now();
        self.ends(Act::ClockBack, FORGOTTEN);
        self.ends(Act::Mend(at), FORGOTTEN + TAKES_EFFECT + LOOK * 10);
        Ok(Some(whom))
    }

    /// Freezes a process, or breaks its network.
    fn freeze_or_cut(&mut self, step: &Step) -> Option<String> {
        let (at, kind, lease) = (self.target(step)?, step.kind, self.options.lease);
        let leads = self.generator() == Some(at);
        let act = if kind.is_network() { Act::Mend(at) } else { Act::Thaw(at) };
        self.ends(act, if kind == Kind::Reset { lease } else { step.lasts });
        self.stage.processes[at].hurt = true;
        let (now, term) = (Instant::now(), self.watch.leader.0);
        if leads && kind.is_silent() && step.lasts >= lease * 3 / 2 {
            self.watch.silenced.push((at, term, now));
        }
        if leads && kind == Kind::OneWayOut {
            let more = if step.only { lease * 4 } else { Duration::ZERO };
            self.watch.held_up = Some((at, term, now + step.lasts + more));
        }
        match fault(kind, step) {
            Some(fault) => self.stage.processes[at].network(fault),
            None => self.stage.processes[at].freeze(),
        }
        if leads && step.lasts > lease {
            match kind {
                Kind::FreezeLong => self.outage("generator frozen", false),
                kind if kind.is_silent() => self.outage("generator cut off", false),
                _ => {}
            }
        }
        Some(self.name_of(at))
    }

    /// Begins a new life of a sender, and cuts it off when its first message was added and the
    /// answer was swallowed. Did that happen?
    fn catch_first_answer(&mut self, at: usize) -> Result<bool, Trouble> {
        let before = self.stage.processes[at].swallowed();
        // The head of an envelope: no other request contains it.
        self.stage.processes[at].network(Fault::DropReplyTo(b"-|s".to_vec()));
        self.stage.processes[at].begin()?;
        let begun = Instant::now();
        while self.stage.processes[at].swallowed() == before && begun.elapsed() < CATCH_FIRST {
            std::thread::sleep(Duration::from_millis(1));
        }
        let caught = self.stage.processes[at].swallowed() > before;
        if caught {
            self.stage.processes[at].network(Fault::Cut);
        } else {
            self.ends(Act::Mend(at), Duration::ZERO);
        }
        Ok(caught)
    }

    /// Will the clock of Redis be set back?
    fn goes_back(&self) -> bool {
        self.stage.agenda.iter().any(|Reverse((_, act))| *act == Act::ClockBack)
    }

    /// Records that from now on nobody leads, or nothing flows.
    pub(crate) fn outage(&mut self, cause: &'static str, same: bool) {
        let full = self.stage.agenda.iter().any(|Reverse((_, act))| *act == Act::Memory);
        // For one lease after Redis came back, or after its clock was set, nobody is judged dead.
        let wary = self.stage.redis_back.max(self.stage.clock_set).elapsed()
            < self.options.lease + TAKES_EFFECT;
        self.watch.outages.begin(
            cause,
            self.watch.leader.0,
            same,
            full || wary || self.stage.redis_hurt,
        );
    }

    /// A silent generator can be reached again: counts whether another one took over meanwhile, if
    /// there was time.
    fn replaced(&mut self, at: usize) {
        let (time, leads) = (self.options.lease * 3 / 2, self.watch.leader.0);
        self.watch.silenced.retain(|(who, term, since)| {
            if *who == at && since.elapsed() >= time {
                self.watch.paths.silenced += 1;
                self.watch.paths.replaced += u64::from(leads > *term);
            }
            *who != at
        });
    }

    /// `kill -9`.
    fn end(&mut self, at: usize) {
        self.stage.processes[at].kill();
        self.stage.processes[at].hurt = true;
        self.watch.wakes.gone(at);
    }

    pub(crate) fn ends(&mut self, act: Act, after: Duration) {
        self.stage.agenda.push(Reverse((Instant::now() + after, act)));
    }

    fn neighbour(&mut self) -> bool {
        const KEYS: &str = "for i = 1, 10000 do redis.call('SET', 'other:' .. ARGV[1] .. ':' .. i, i, 'PX', \
                            1000 + (i * 7) % 29000) end";
        (0..30).all(|part| self.stage.books.say(&["EVAL", KEYS, "0", &part.to_string()]).is_ok())
    }

    /// Performs all acts that are due.
    pub(crate) fn acts(&mut self, now: Instant) -> Result<(), Trouble> {
        while self.stage.agenda.peek().is_some_and(|Reverse((due, _))| *due <= now) {
            let Some(Reverse((_, act))) = self.stage.agenda.pop() else { break };
            self.act(act)?;
        }
        Ok(())
    }

    pub(crate) fn act(&mut self, act: Act) -> Result<(), Trouble> {
        // The requests of a stale generator must arrive while another one leads: until then they
        // are held up, within bounds.
        if let (Act::Mend(at), Some((whose, term, until))) = (&act, self.watch.held_up)
            && *at == whose
            && self.watch.leader.0 <= term
            && Instant::now() < until
        {
            self.ends(act, LOOK);
            return Ok(());
        }
        let at = match act {
            Act::Begin(at) | Act::Thaw(at) | Act::Mend(at) => Some(at),
            _ => None,
        };
        let whom = at.map_or_else(redis, |at| self.name_of(at));
        if let Act::Heal(heal) = act {
            return self.heal_servers(heal);
        }
        self.stage.faults.write(&Entry::Over(whom)).map_err(|_| Trouble::NoHistory)?;
        match at {
            Some(at) => self.stage.processes[at].touched = now(),
            None => self.stage.touched = now(),
        }
        match act {
            Act::Begin(at) => {
                self.stage.processes[at].network(Fault::Pass);
                if !self.stage.processes[at].is_alive() {
                    self.stage.processes[at].begin()?;
                }
                self.stage.processes[at].hurt = false;
            }
            Act::Thaw(at) => {
                self.replaced(at);
                self.stage.processes[at].thaw();
                self.stage.processes[at].hurt = false;
            }
            Act::Mend(at) => self.mend(at),
            Act::RedisUp => self.redis_up()?,
            Act::RedisThaw => {
                if let Some(server) = &self.stage.server {
                    server.thaw();
                }
                (self.stage.redis_hurt, self.stage.redis_back) = (false, Instant::now());
            }
            Act::Clock(off) if self.stage.redis_hurt => self.ends(Act::Clock(off), LOOK),
            Act::Clock(off) => {
                let seen = self.stage.books.clock_off().is_ok_and(|now| (now - off).abs() < 500);
                self.watch.paths.clocks_seen += u64::from(seen);
            }
            Act::ClockBack => {
                if let Some(clock) = self.stage.server.as_ref().and_then(PrivateServer::clock) {
                    clock.set(0)?;
                    self.stage.clock_set = Instant::now();
                }
            }
            Act::Memory if self.stage.redis_hurt => self.ends(Act::Memory, LOOK),
            Act::Memory => self.again(|books| books.say(&["CONFIG", "SET", "maxmemory", "0"]))?,
            Act::Heal(_) => {}
        }
        Ok(())
    }

    /// Repairs the network of a process.
    fn mend(&mut self, at: usize) {
        self.replaced(at);
        let held_up = self.watch.held_up.take_if(|(whose, ..)| *whose == at);
        if held_up.is_some_and(|(_, term, _)| self.watch.leader.0 > term) {
            self.watch.paths.stale_requests += 1;
        }
        self.stage.processes[at].network(Fault::Pass);
        self.stage.processes[at].hurt = false;
    }

    /// Starts Redis again, with the data it kept.
    fn redis_up(&mut self) -> Result<(), Trouble> {
        if self.watch.lossy {
            self.look()?;
            self.watch.checker.data_lost();
            self.watch.wakes.lost();
            self.watch.leader = Default::default(); // terms may begin lower
        }
        if let Some(server) = &mut self.stage.server {
            let torn = server.restart();
            let torn = torn.map_err(|error| Trouble::Server(error.to_string()))?;
            self.watch.checker.seen.torn += u64::from(torn);
        }
        if self.options.kinds.contains(&Kind::RedisLoss) {
            self.stage.books.forget();
        }
        (self.stage.redis_hurt, self.stage.redis_back) = (false, Instant::now());
        Ok(())
    }
}

/// The name of Redis in the history of the faults.
pub(crate) fn redis() -> String {
    "redis".to_owned()
}

/// The fault of the proxy for a fault of the network.
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
        // The answer to outcomes that other messages follow: such a call is rare, so it is aimed at.
        Kind::Reset if !step.generator && (step.which >> 8).is_multiple_of(2) => {
            Fault::DropReplyTo(b"\r\nthen\r\n".to_vec())
        }
        Kind::Reset => Fault::DropReplyTo(b"EVALSHA".to_vec()),
        _ => return None,
    })
}
