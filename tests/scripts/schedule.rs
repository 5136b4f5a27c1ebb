//! A randomized adversary over the bare scripts: crash, freeze, lost reply, late copy, wrong reap,
//! Redis restored from an older state. The whole state is audited after every step, and no counter
//! is trusted. A failure prints its seed; seeds that ever failed are kept.

use std::collections::BTreeMap;

use artel_rig::{Audit, Kind, Snapshot, Taken};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::held::{Held, forget};
use crate::lab::{Answer, Lab, Late};
use crate::rules::Rules;
use crate::witness::Witness;

/// Seeds that once showed a fault, or a fault of the adversary itself.
const SEEDS: [u64; 3] = [1, 42, 20_261_115];
const STEPS_PER_WORLD: u64 = 150;
/// What every run must come to.
const NEEDED: [&str; 72] = [
    "crash",
    "wrong reap",
    "restore",
    "lost reply",
    "push already",
    "push fenced",
    "push full",
    "push gone",
    "push gap",
    "fetch closed",
    "fetch of several blocks",
    "pack read",
    "several packs read",
    "adopted before the pack was read",
    "unread ok",
    "late unread ok",
    "fetch stray",
    "fetch gap",
    "fetch gone",
    "settle already",
    "settle gone",
    "settle gap",
    "give_back already",
    "adopt ok",
    "adopt already",
    "forget ok",
    "forget left",
    "take same",
    "late join ok",
    "late acquire won",
    "late fetch closed",
    "late settle already",
    "resign fenced",
    "send ok",
    "send already",
    "send duplicate",
    "send full",
    "send gap",
    "late send already",
    "requeue ok",
    "requeue already",
    "late requeue already",
    "pick 1",
    "restore ok",
    "restore alive",
    "restore gone",
    "post ok",
    "post already",
    "post duplicate",
    "post full",
    "post refused",
    "post gap",
    "late post already",
    "promote ok",
    "late promote ok",
    "alter ok",
    "alter moved",
    "late alter absent",
    "late alter moved",
    "fire ok",
    "fire skipped",
    "fire already",
    "fire early",
    "fire changed",
    "fire fenced",
    "late fire already",
    "cron_set ok",
    "cron_set same",
    "cron_set moved",
    "settle_jobs ok",
    "settle_jobs already",
    "late settle_jobs already",
];

/// A simulated process: what it knows, which may be wrong.
#[derive(Clone, Default)]
pub(super) struct Process {
    pub(super) id: Option<String>,
    pub(super) term: Option<(String, u64)>,
    pub(super) next: u64,
    pub(super) blocks: BTreeMap<u64, Held>,
    /// A call whose reply was lost: it is repeated before anything else.
    pub(super) unanswered: Option<(Late, Meaning)>,
}

/// What a call means to its sender once it is answered.
#[derive(Clone, Debug)]
pub(super) enum Meaning {
    Acquire,
    Push(u64),
    /// From this number on, at most this many blocks.
    Fetch(u64, u64),
    /// A fetch that was given up.
    Unread,
    Settle {
        n: u64,
        positions: Vec<usize>,
        closing: bool,
    },
    GiveBack {
        n: u64,
        positions: Vec<usize>,
    },
    Nothing,
}

pub(super) struct World<'a> {
    pub(super) lab: &'a mut Lab,
    rng: ChaCha8Rng,
    pub(super) processes: Vec<Process>,
    pub(super) history: Vec<Late>,
    /// Who sends or puts back: a name, the next number, and a call whose reply was lost.
    pub(super) senders: Vec<(String, u64, Option<Late>)>,
    /// The same, for messages with times and duties.
    pub(super) posters: Vec<(String, u64, Option<Late>)>,
    pub(super) witness: Witness,
    /// Workers do not name messages with duties: a fault of theirs.
    pub(super) unnamed: bool,
    /// More is done with times and duties, and less goes wrong.
    busy: bool,
    pub(super) born: u64,
    stored: Option<Vec<(String, Vec<u8>)>>,
    /// How often each kind of thing happened: a run that never did it proves nothing.
    tally: &'a mut BTreeMap<String, u64>,
}

impl World<'_> {
    pub(super) fn pick(&mut self, below: u64) -> u64 {
        self.rng.next_u64() % below
    }

    pub(super) fn note(&mut self, what: &str) {
        *self.tally.entry(what.to_owned()).or_default() += 1;
    }

    fn step(&mut self) {
        let at = self.pick(self.processes.len() as u64) as usize;
        if self.busy {
            return self.busy_step(at);
        }
        match self.pick(100) {
            0..=1 => self.crash(at),
            2 => self.wrong_reap(at),
            3..=10 => self.late_copy(),
            11..=12 => self.restore_or_store(),
            13..=16 => self.take_errors(),
            17..=22 => self.adopt(at),
            23..=28 => self.post(),
            29..=30 => self.pick_errors(),
            31..=34 => self.restore(),
            35..=51 => self.job_step(at),
            _ => self.act(at),
        }
    }

    fn busy_step(&mut self, at: usize) {
        match self.pick(100) {
            0 => self.crash(at),
            1 => self.wrong_reap(at),
            2..=7 => self.late_copy(),
            8 => self.restore_or_store(),
            9..=15 => self.adopt(at),
            16..=19 => self.post(),
            20..=49 => self.job_step(at),
            _ => self.act(at),
        }
    }

    /// The process dies; its session is judged dead some time later, or at once.
    fn crash(&mut self, at: usize) {
        let id = self.processes[at].id.clone();
        self.processes[at] = Process::default();
        if let Some(id) = id
            && self.pick(2) == 0
        {
            self.lab.reap(&id);
        }
        self.note("crash");
    }

    fn wrong_reap(&mut self, at: usize) {
        if let Some(id) = self.processes[at].id.clone() {
            self.lab.reap(&id);
            self.note("wrong reap");
        }
    }

    fn late_copy(&mut self) {
        if !self.history.is_empty() {
            let index = self.pick(self.history.len() as u64) as usize;
            let late = self.history[index].clone();
            let before = self.witness.before(self.lab, &late);
            if let Ok(answer) = self.lab.try_send(&late) {
                self.note(&format!("late {} {}", late.script, answer.tag()));
                self.witness.after(self.lab, &late, &before, &answer);
            }
        }
    }

    /// Keeps a copy of all keys, or puts the copy back: acknowledged writes are lost.
    fn restore_or_store(&mut self) {
        if self.pick(3) > 0 || self.stored.is_none() {
            self.stored = Some(self.lab.copy());
        } else if let Some(copy) = self.stored.take() {
            self.lab.put_back(copy);
            // A restored Redis has lost its connections: commands on their way died with them.
            self.history.clear();
            self.witness.forget();
            self.note("restore");
        }
    }

    fn adopt(&mut self, at: usize) {
        if let Some(me) = self.processes[at].id.clone() {
            self.adopt_as(&me);
        }
    }

    pub(super) fn adopt_as(&mut self, me: &str) {
        let orphans = self.lab.key("orphans");
        let orphan: Option<String> = self.lab.redis(&["SRANDMEMBER", &orphans]);
        let Some(orphan) = orphan else { return };
        let blocks = self.lab.key(&format!("blocks:{orphan}"));
        let fields: Vec<String> = self.lab.redis(&["HKEYS", &blocks]);
        let highest = fields.iter().filter_map(|n| n.parse().ok()).max().unwrap_or(0);
        let chunk = 1 + self.pick(3);
        let call = self.lab.adopt_call(me, &orphan, highest, chunk);
        self.exec(&call);
        self.history.push(call);
        let call = self.lab.forget_call(me, &orphan);
        let answer = self.lab.send(&call);
        self.note(&format!("forget {}", answer.tag()));
        self.history.push(call);
    }

    fn act(&mut self, at: usize) {
        let Some(me) = self.processes[at].id.clone() else { return self.join(at) };
        if let Some((mut call, mut meaning)) = self.processes[at].unanswered.clone() {
            // An answer that does not come through is given up.
            if let Meaning::Fetch(n, blocks) = meaning
                && self.pick(3) == 0
            {
                call = self.lab.unread_call(&me, n, blocks);
                meaning = Meaning::Unread;
            }
            return self.send(at, call, meaning);
        }
        let what = if self.busy { 9 + self.pick(26) } else { self.pick(40) };
        match what {
            0 => {
                let call = self.lab.leave_call(&me);
                self.send(at, call, Meaning::Nothing);
                self.processes[at] = Process::default();
            }
            1..=3 => {
                let call = self.lab.acquire_call(&me);
                self.send(at, call, Meaning::Acquire);
            }
            4..=9 => self.push(at, &me),
            10..=21 => self.fetch(at, &me),
            22..=33 => self.settle(at, &me),
            34..=35 => self.give_back(at, &me),
            36 => {
                if let Some((term, _)) = self.processes[at].term.take() {
                    let call = self.lab.resign_call(&me, &term);
                    self.send(at, call, Meaning::Nothing);
                }
            }
            _ => self.heartbeat(at, &me),
        }
    }

    /// A join is sent once per id, answered or not.
    fn join(&mut self, at: usize) {
        self.born += 1;
        let id = format!("p{}", self.born);
        let call = self.lab.join_call(&id);
        let answer = self.lab.send(&call);
        self.history.push(call);
        if answer == "ok" && self.pick(5) > 0 {
            self.processes[at] = Process { id: Some(id), next: 1, ..Process::default() };
        }
    }

    fn push(&mut self, at: usize, me: &str) {
        let Some((term, next)) = self.processes[at].term.clone() else { return };
        let payloads = self.payloads();
        let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
        let call = match self.pick(2) {
            0 => self.lab.push_packed(me, &term, next, &payloads),
            _ => self.lab.push_call(me, &term, next, &payloads),
        };
        self.send(at, call, Meaning::Push(payloads.len() as u64));
    }

    /// What a batch carries: also texts that look like the inside of a pack.
    pub(super) fn payloads(&mut self) -> Vec<String> {
        let odd = ["", "x", "3:x", "12:", "#", "|", "xxxxxxxxxxxx"];
        (0..1 + self.pick(3))
            .map(|_| odd[self.pick(odd.len() as u64) as usize].to_owned())
            .collect()
    }

    fn held(&self, at: usize) -> String {
        self.processes[at].blocks.len().to_string()
    }

    fn fetch(&mut self, at: usize, me: &str) {
        // Now and then enough for several packs.
        let max = if self.pick(4) == 0 { 12 } else { self.pick(4) };
        let (n, held) = (self.processes[at].next, self.held(at));
        let blocks = 1 + self.pick(3);
        let known: Vec<u64> = self.processes[at].blocks.keys().copied().collect();
        assert_eq!(held, known.len().to_string());
        let call = self.lab.fetch_known(me, n, max, &known, blocks);
        self.send(at, call, Meaning::Fetch(n, blocks));
    }

    fn heartbeat(&mut self, at: usize, me: &str) {
        let next = self.processes[at].next;
        let held = self.held(at);
        let call = self.lab.heartbeat_call(me, &held, &(next - 1).to_string());
        let answer = self.lab.send(&call);
        if answer == "gone" || answer.at(6) == "1" {
            self.end_session(at, me);
        }
    }

    /// What a member does that learns that it, or Redis, is not what it thought.
    pub(super) fn end_session(&mut self, at: usize, me: &str) {
        let leave = self.lab.leave_call(me);
        self.lab.send(&leave);
        self.processes[at] = Process::default();
    }

    fn settle(&mut self, at: usize, me: &str) {
        let Some((&n, held)) = self.processes[at].blocks.iter().next() else { return };
        let held = held.clone();
        if self.pick(2) == 0 || held.has_duties() {
            return self.settle_jobs(at, me, n, &held);
        }
        let Held { stamp, open, first, places, .. } = held;
        let left: Vec<usize> = (0..open.len()).filter(|&position| open[position]).collect();
        let closing = self.pick(3) > 0;
        let mut named = Vec::new();
        let mut positions = Vec::new();
        for position in left {
            let fails = self.pick(4) == 0;
            if closing {
                positions.push(position);
                if fails {
                    named.push((position as u64, "f"));
                }
            } else if self.pick(2) == 0 {
                positions.push(position);
                named.push((position as u64, if fails { "f" } else { "d" }));
            }
        }
        let rest = if closing { (positions.len() - named.len()).to_string() } else { "-".into() };
        let mut call = self.lab.settle_call(me, n, &stamp, &rest, &named, &[]);
        if !first.is_empty() {
            call.name_places(&first, &named, &places);
        }
        self.send(at, call, Meaning::Settle { n, positions, closing });
    }

    fn give_back(&mut self, at: usize, me: &str) {
        let Some((&n, held)) = self.processes[at].blocks.iter().next() else { return };
        let Held { stamp, open, .. } = held.clone();
        let positions: Vec<usize> = (0..open.len()).filter(|&position| open[position]).collect();
        let numbers: Vec<u64> = positions.iter().map(|&position| position as u64).collect();
        let call = self.lab.give_back_call(me, n, &stamp, &numbers);
        self.send(at, call, Meaning::GiveBack { n, positions });
    }

    pub(super) fn send(&mut self, at: usize, call: Late, meaning: Meaning) {
        let answer = self.exec(&call);
        self.remember(call.clone());
        if self.pick(6) == 0 {
            self.processes[at].unanswered = Some((call, meaning));
            self.note("lost reply");
            return;
        }
        self.processes[at].unanswered = None;
        self.take_in(at, &answer, meaning);
    }

    fn take_in(&mut self, at: usize, answer: &Answer, meaning: Meaning) {
        let me = self.processes[at].id.clone().unwrap_or_default();
        let process = &mut self.processes[at];
        match (answer.tag(), meaning) {
            ("gone" | "stray", _) => self.end_session(at, &me),
            ("won", Meaning::Acquire) => process.term = Some((answer.at(1).to_owned(), 1)),
            ("ok" | "already", Meaning::Push(n)) => {
                if let Some((_, next)) = &mut process.term {
                    *next += n;
                }
            }
            ("fenced" | "gap", Meaning::Push(_)) => process.term = None,
            ("ok", Meaning::Fetch(n, _)) if answer.at(4) != "0" => {
                self.take_pack(at, &me, n, answer)
            }
            ("ok", Meaning::Fetch(n, _)) => {
                let open: Vec<bool> =
                    answer.messages().iter().map(|m| !m.is_empty() && m != "-").collect();
                let (stamp, count) = (answer.at(1).to_owned(), answer.at(2).parse().unwrap_or(0));
                process.next = n + count;
                let messages = answer.messages().to_vec();
                if count == 1 {
                    process.blocks.insert(n, Held { stamp, open, messages, ..Held::default() });
                } else {
                    for ((n, open), message) in (n..).zip(open).zip(messages) {
                        let (open, messages) = (vec![open], vec![message]);
                        let held = Held { stamp: stamp.clone(), open, messages, ..Held::default() };
                        process.blocks.insert(n, held);
                    }
                    self.note("fetch of several blocks");
                }
            }
            ("ok", Meaning::Unread) => {
                process.next = answer.at(1).parse::<u64>().expect("a number") + 1;
            }
            ("burnt" | "closed", Meaning::Fetch(n, _)) => process.next = n + 1,
            ("ok" | "already", Meaning::Settle { n, positions, closing }) => {
                forget(process, n, &positions, closing);
            }
            ("ok" | "already", Meaning::GiveBack { n, positions }) => {
                forget(process, n, &positions, false);
            }
            ("gap", _) => self.end_session(at, &me),
            _ => {}
        }
    }
}

/// Runs one world; what went wrong, if anything did.
pub(super) fn world(
    lab: &mut Lab,
    seed: u64,
    unnamed: bool,
    tally: &mut BTreeMap<String, u64>,
) -> Result<(), String> {
    let rules = lab.rules.clone();
    lab.rules = rules.clone().witnessed(seed);
    let result = play(lab, seed, unnamed, tally);
    lab.rules = rules;
    result
}

fn play(
    lab: &mut Lab,
    seed: u64,
    unnamed: bool,
    tally: &mut BTreeMap<String, u64>,
) -> Result<(), String> {
    let () = lab.redis(&["FLUSHALL"]);
    lab.limit_backlog(["5", "12", "1000"][(seed % 3) as usize]);
    let config = lab.key("config");
    let () = lab.redis(&["HSET", &config, "ledger", "-1"]);
    let mut world = World {
        lab,
        rng: ChaCha8Rng::seed_from_u64(seed),
        processes: vec![Process::default(); 4],
        history: Vec::new(),
        senders: (0..3).map(|at| (format!("a{at}"), 1, None)).collect(),
        posters: (0..2).map(|at| (format!("j{at}"), 1, None)).collect(),
        witness: Witness::default(),
        unnamed,
        busy: seed % 4 == 3,
        born: 0,
        stored: None,
        tally,
    };
    world.set_limits();
    for step in 0..STEPS_PER_WORLD {
        world.step();
        if let Err(problem) = world.check() {
            let last = world.history.last();
            return Err(format!("seed {seed}, step {step}: {problem}; last: {last:?}"));
        }
    }
    world
        .drain()
        .and_then(|()| world.check())
        .map_err(|problem| format!("seed {seed}, at the end: {problem}"))?;
    let last = Snapshot::read(&mut world.lab.connection, "lab");
    match last.unsettled() == 0 && last.duties.left().is_empty() {
        true => Ok(()),
        false => Err(format!("seed {seed}: left behind: {:?}", last.duties)),
    }
}

impl World<'_> {
    /// Audits the whole state.
    fn check(&mut self) -> Result<(), String> {
        let snapshot = Snapshot::try_read(&mut self.lab.connection, "lab", true);
        let snapshot = snapshot.map_err(|error| error.to_string())?;
        let audit = Audit::of(&snapshot, Taken::Counted);
        if let Some(problem) = audit.problems.first() {
            return Err(problem.clone());
        }
        self.witness.check(self.lab, snapshot);
        self.witness.wrong.take().map_or(Ok(()), Err)
    }
}

fn run(kind: Kind, steps: u64, first_seed: u64) {
    let mut lab = Lab::new(kind);
    let mut tally = BTreeMap::new();
    let worlds = steps / STEPS_PER_WORLD;
    let never =
        |tally: &BTreeMap<String, u64>| NEEDED.into_iter().find(|what| !tally.contains_key(*what));
    for (number, seed) in (0..).zip(SEEDS.into_iter().chain(first_seed..first_seed + 10 * worlds)) {
        // A search that never got there proves nothing. What is rare may take a little longer.
        if number > worlds && never(&tally).is_none() {
            break;
        }
        if let Err(wrong) = world(&mut lab, seed, false, &mut tally) {
            panic!("{kind:?}: {wrong}");
        }
    }
    if let Some(what) = never(&tally) {
        panic!("{kind:?}: {what} never happened: {tally:?}");
    }
}

/// `ARTEL_STEPS` says how many steps on each server.
fn steps() -> u64 {
    let usual = if std::env::var_os("ARTEL_SOAK").is_some() { 10_000_000 } else { 100_000 };
    std::env::var("ARTEL_STEPS")
        .map_or(usual, |steps| steps.parse().expect("ARTEL_STEPS is a number"))
}

#[test]
fn a_random_schedule_never_breaks_the_books_on_redis() {
    if Kind::Redis.program().is_some() {
        run(Kind::Redis, steps(), 1_000);
    }
}

#[test]
fn a_random_schedule_never_breaks_the_books_on_valkey() {
    if Kind::Valkey.program().is_some() {
        run(Kind::Valkey, steps(), 2_000_000);
    }
}

/// The adversary is worth something: with a rule switched off it finds the fault.
#[test]
fn the_adversary_finds_a_missing_rule() {
    let gone = "if not deadline_of(KEYS[1], me) then return 'gone' end";
    let faults = [
        (
            "push",
            "if from + math.max(n, 1) - 1 <= last then return 'already' end",
            "last = from - 1",
        ),
        (
            "fetch",
            "if n <= hi and not open then return 'closed' end",
            "if n <= hi then hi = n - 1 open = false end",
        ),
        ("settle", "elseif message ~= '' and not named", "elseif not named"),
        ("fetch", gone, ""),
        ("send", "if from + n - 1 <= last then", "last = from - 1 if false then"),
        ("requeue", "redis.call('XDEL', KEYS[19], move[1])", ""),
    ];
    let kind = if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey };
    for (script, rule, instead) in faults {
        let mut lab = Lab::new(kind);
        lab.rules = Rules::all().without(script, rule, instead);
        let found = (0..2_000).any(|seed| {
            let lab = std::panic::AssertUnwindSafe(&mut lab);
            // A script that was broken may also fail outright: that is a find, too.
            std::panic::catch_unwind(move || world({ lab }.0, seed, false, &mut BTreeMap::new()))
                .is_ok_and(|result| result.is_ok())
                .then_some(())
                .is_none()
        });
        assert!(found, "{script}.lua without {rule:?} went unnoticed");
    }
}
