//! A randomized adversary over locks and events: crash, lost reply, late copy, wrong reap, giving up
//! on the way, Redis restored from an older state. After every step: at most one holder, the lists of
//! the members agree with the locks, guarded writes never go back to an older token.

use std::collections::BTreeMap;

use artel_rig::Kind;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::lab::{Lab, Late, NOBODY};
use crate::rules::Rules;

const LOCKS: [&str; 2] = ["l", "m"];
const STEPS_PER_WORLD: u64 = 200;

/// A simulated process, and what it believes.
#[derive(Clone, Default)]
struct Process {
    id: Option<String>,
    attempts: u64,
    /// By lock: the token it believes to hold, or its place in the queue.
    held: BTreeMap<&'static str, String>,
    tickets: BTreeMap<&'static str, String>,
    /// An attempt whose reply was lost: repeated, or given up.
    unanswered: Option<(&'static str, u64, Late)>,
}

struct World<'a> {
    lab: &'a mut Lab,
    rng: ChaCha8Rng,
    processes: Vec<Process>,
    history: Vec<Late>,
    born: u64,
    stored: Option<Vec<(String, Vec<u8>)>>,
    /// How often each kind of thing happened: a run that never did it proves nothing.
    tally: &'a mut BTreeMap<String, u64>,
}

impl World<'_> {
    fn pick(&mut self, below: u64) -> u64 {
        self.rng.next_u64() % below
    }

    fn note(&mut self, what: &str) {
        *self.tally.entry(what.to_owned()).or_default() += 1;
    }

    fn send(&mut self, call: Late) -> crate::lab::Answer {
        let answer = self.lab.send(&call);
        self.history.push(call);
        answer
    }

    fn step(&mut self) {
        let at = self.pick(self.processes.len() as u64) as usize;
        match self.pick(100) {
            0..=2 => {
                // It dies; its session is judged dead at once, or later.
                let id = std::mem::take(&mut self.processes[at]).id;
                if let (Some(id), 0) = (id, self.pick(2)) {
                    self.lab.reap(&id);
                }
                self.note("crash");
            }
            3..=4 => {
                if let Some(id) = self.processes[at].id.clone() {
                    self.lab.reap(&id);
                    self.note("wrong reap");
                }
            }
            5..=19 => {
                if !self.history.is_empty() {
                    let index = self.pick(self.history.len() as u64) as usize;
                    let late = self.history[index].clone();
                    if let Ok(answer) = self.lab.try_send(&late) {
                        self.note(&format!("late {} {}", late.script, answer.tag()));
                    }
                }
            }
            20..=21 => self.store_or_restore(),
            22..=31 => self.adopt(at),
            32..=41 => self.heartbeat(at),
            _ => self.act(at),
        }
    }

    /// Keeps a copy of all keys, or puts the copy back: acknowledged writes are lost.
    fn store_or_restore(&mut self) {
        if self.pick(3) > 0 || self.stored.is_none() {
            self.stored = Some(self.lab.copy());
        } else if let Some(copy) = self.stored.take() {
            self.lab.put_back(copy);
            // A restored Redis has lost its connections: commands on their way died with them.
            self.history.clear();
            self.note("restore");
        }
    }

    /// Frees the locks of a dead member, and forgets it: it has no messages.
    fn adopt(&mut self, at: usize) {
        let Some(me) = self.processes[at].id.clone() else { return };
        let orphans = self.lab.key("orphans");
        let Some(orphan) = self.lab.redis::<Option<String>>(&["SRANDMEMBER", &orphans]) else {
            return;
        };
        let locks = self.lab.key(&format!("locks:{orphan}"));
        let listed: BTreeMap<String, String> = self.lab.redis(&["HGETALL", &locks]);
        for (name, token) in listed {
            let token = token.split(':').next().unwrap_or_default().to_owned();
            let call = self.lab.release_call(&me, &orphan, &name, &token);
            let answer = self.send(call);
            self.note(&format!("free {}", answer.tag()));
        }
        let call = self.lab.forget_call(&me, &orphan);
        self.send(call);
    }

    /// What nobody here holds or asks for is given back; what is not listed is not held any longer.
    fn heartbeat(&mut self, at: usize) {
        let Some(me) = self.processes[at].id.clone() else { return };
        let beat = self.lab.heartbeat(&me, NOBODY, "0");
        if beat == "gone" {
            self.processes[at] = Process::default();
            return;
        }
        let listed: Vec<(String, String)> = beat.0[13..]
            .chunks(2)
            .map(|pair| (pair[0].clone(), pair[1].split(':').next().unwrap_or_default().to_owned()))
            .collect();
        let process = self.processes[at].clone();
        let asks = process.unanswered.as_ref().map(|(name, ..)| *name);
        let is_listed = |name: &str, token: &str| {
            listed.iter().any(|(listed, held)| listed == name && held == token)
        };
        self.processes[at].held.retain(|name, token| is_listed(name, token));
        for (name, token) in &listed {
            let known = process.held.contains_key(name.as_str()) || asks == Some(name.as_str());
            if !known {
                let call = self.lab.release_call(&me, &me, name, token);
                let answer = self.send(call);
                self.note(&format!("give back {}", answer.tag()));
            }
        }
    }

    fn act(&mut self, at: usize) {
        let Some(me) = self.processes[at].id.clone() else {
            self.born += 1;
            let id = format!("p{}", self.born);
            self.lab.join(&id);
            self.processes[at] = Process { id: Some(id), ..Process::default() };
            return;
        };
        if let Some((name, attempt, call)) = self.processes[at].unanswered.take() {
            match self.pick(3) {
                // Given up on its way: asked once more what came of it, and released.
                0 => {
                    let ask = self.lab.lock_call(&me, name, attempt, "-");
                    let answer = self.send(ask);
                    let token =
                        if answer == "won" { answer.at(1).to_owned() } else { "0".to_owned() };
                    let call = self.lab.release_call(&me, &me, name, &token);
                    self.send(call);
                    self.note("given up on its way");
                }
                _ => self.ask(at, name, attempt, call),
            }
            return;
        }
        let name = LOCKS[self.pick(2) as usize];
        let held = self.processes[at].held.get(name).cloned();
        match (held, self.pick(3)) {
            (Some(token), 0) => {
                let call = self.lab.release_call(&me, &me, name, &token);
                let answer = self.send(call);
                self.note(&format!("release {}", answer.tag()));
                if self.pick(4) > 0 {
                    self.processes[at].held.remove(name); // else the reply is lost, and it is repeated
                }
            }
            (Some(token), _) => {
                let call = self.lab.guarded_call(&me, name, &token);
                let written = self.lab.try_send(&call).is_ok();
                self.history.push(call);
                self.note(if written { "guarded write" } else { "refused write" });
                if !written {
                    self.processes[at].held.remove(name);
                }
            }
            (None, _) => {
                let ticket = self.processes[at].tickets.get(name).cloned().unwrap_or_default();
                self.processes[at].attempts += 1;
                let attempt = self.processes[at].attempts;
                let call = self.lab.lock_call(&me, name, attempt, &ticket);
                self.ask(at, name, attempt, call);
            }
        }
    }

    fn ask(&mut self, at: usize, name: &'static str, attempt: u64, call: Late) {
        let answer = self.send(call.clone());
        self.note(&format!("acquire {}", answer.tag()));
        if self.pick(4) == 0 {
            self.processes[at].unanswered = Some((name, attempt, call));
            return self.note("lost reply");
        }
        let process = &mut self.processes[at];
        match answer.tag() {
            "won" => {
                process.tickets.remove(name);
                process.held.insert(name, answer.at(1).to_owned());
            }
            "held" => drop(process.tickets.insert(name, answer.at(3).to_owned())),
            "gone" => *process = Process::default(),
            _ => {}
        }
    }

    /// What must hold at every moment.
    fn check(&mut self) -> Result<(), String> {
        let members = self.lab.key("members");
        let members: Vec<String> = self.lab.redis(&["ZRANGE", &members, "0", "-1"]);
        for name in LOCKS {
            let key = self.lab.key(&format!("lock:{name}"));
            let right: Option<String> = self.lab.redis(&["GET", &key]);
            let right = right.unwrap_or_default();
            let (holder, token) = right.split_once('|').unwrap_or_default();
            for member in &members {
                let locks = self.lab.key(&format!("locks:{member}"));
                let listed: Option<String> = self.lab.redis(&["HGET", &locks, name]);
                let listed =
                    listed.map(|held| held.split(':').next().unwrap_or_default().to_owned());
                let expected = (holder == member).then(|| token.to_owned());
                if listed != expected {
                    return Err(format!("{name} is {right:?}, {member} lists {listed:?}"));
                }
            }
            let written = self.lab.written(name);
            if !written.is_sorted() {
                return Err(format!("{name}: tokens went back: {written:?}"));
            }
            // Whoever believes to hold it under the token in force is the holder.
            for process in &self.processes {
                let believes = process.held.get(name).is_some_and(|held| held == token);
                if believes && process.id.as_deref() != Some(holder) {
                    return Err(format!("{name}: {:?} believes to hold {right:?}", process.id));
                }
            }
        }
        Ok(())
    }
}

/// Runs one world; what went wrong, if anything did.
fn world(lab: &mut Lab, seed: u64, tally: &mut BTreeMap<String, u64>) -> Result<(), String> {
    let () = lab.redis(&["FLUSHALL"]);
    let mut world = World {
        lab,
        rng: ChaCha8Rng::seed_from_u64(seed),
        processes: vec![Process::default(); 4],
        history: Vec::new(),
        born: 0,
        stored: None,
        tally,
    };
    for step in 0..STEPS_PER_WORLD {
        world.step();
        world.check().map_err(|wrong| format!("seed {seed}, step {step}: {wrong}"))?;
    }
    Ok(())
}

fn worlds() -> u64 {
    if std::env::var_os("ARTEL_SOAK").is_some() { 5_000 } else { 40 }
}

#[test]
fn a_random_schedule_never_breaks_a_lock() {
    for kind in [Kind::Redis, Kind::Valkey] {
        if kind.program().is_none() {
            continue;
        }
        let (mut lab, mut tally) = (Lab::new(kind), BTreeMap::new());
        for seed in 0..worlds() {
            world(&mut lab, seed, &mut tally).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
        for path in [
            "acquire won",
            "acquire held",
            "acquire gone",
            "lost reply",
            "given up on its way",
            "release ok",
            "release fenced",
            "guarded write",
            "refused write",
            "free ok",
            "give back ok",
            "late acquire won",
            "late acquire late",
            "late resign fenced",
            "restore",
            "wrong reap",
        ] {
            assert!(tally.contains_key(path), "never seen: {path}: {tally:?}");
        }
    }
}

/// The checker is checked: it finds each of these missing rules.
#[test]
fn the_adversary_finds_a_missing_rule_of_locks() {
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    for (script, rule, instead) in [
        ("guarded", " or redis.call('GET', KEYS[2]) ~= right", ""),
        ("acquire", "redis.call('HSET', KEYS[4], name, token .. ':' .. ARGV[4])", ""),
        ("resign", "local held = holder == whose .. '|' .. token", "local held = holder"),
    ] {
        let mut lab = Lab::new(kind);
        lab.rules = Rules::all().without(script, rule, instead);
        let mut tally = BTreeMap::new();
        let found = (0..400).any(|seed| world(&mut lab, seed, &mut tally).is_err());
        assert!(found, "nobody misses {rule:?} of {script}.lua");
    }
}
