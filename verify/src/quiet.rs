//! Quiet points: everything is repaired, the fleet heals, and the books are checked. At the last
//! quiet point nothing is generated any more, and every message must have its outcome.
//!
//! **Invariant:** nothing is judged before everything that was broken is whole again.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use crate::books::{Books, Snapshot};
use crate::director::{Director, LOOK, PAUSE};
use crate::history;
use crate::member::REST;
use crate::options::{Progress, Trouble};
use crate::process::Process;
use crate::promise::Invariant;
use crate::report::Paths;
use crate::strike::Act;
use artel_rig::TAKES_EFFECT;

/// After this time, a push that was under way when generating ended has arrived.
const REST_AFTER: Duration = Duration::from_secs(1);
/// How much longer than two leases the fleet may take to heal, on a busy machine.
const HEAL_MORE: Duration = Duration::from_secs(10);
/// When nothing is generated any more, a message must be settled at least this often until none is
/// left.
const EMPTY_MAX: Duration = Duration::from_secs(20);
/// At a quiet point nothing may be overdue for longer than this.
const OVERDUE_MS: u64 = 1000;
/// When a generator is silent for this long and still leads, others have let go what is due.
const STAND_IN_AFTER: Duration = Duration::from_millis(850);
/// Then nothing may be overdue for longer than this.
const STAND_IN_MS: u64 = 700;
/// It is a violation if this many generators were silent and none of them was ever replaced. With
/// fewer, a busy machine may be the cause.
const SILENCED_MIN: u64 = 4;

impl Director<'_> {
    /// Ends all faults, waits until the fleet has healed, and checks the books.
    pub(crate) fn quiet(
        &mut self,
        tell: &mut dyn FnMut(&Progress),
        doing: &'static str,
    ) -> Result<(), Trouble> {
        if let Some((.., until)) = &mut self.watch.held_up {
            *until = Instant::now();
        }
        let mut acts: Vec<Act> = self.stage.agenda.drain().map(|Reverse((_, act))| act).collect();
        // Redis first: the others may need it.
        acts.sort_by_key(|act| !matches!(act, Act::RedisUp | Act::RedisThaw));
        let (servers, acts): (Vec<Act>, Vec<Act>) =
            acts.into_iter().partition(|act| matches!(act, Act::Heal(_)));
        servers.into_iter().for_each(|act| self.ends(act, Duration::ZERO));
        self.make_whole()?;
        let (clocks, acts): (Vec<Act>, Vec<Act>) =
            acts.into_iter().partition(|act| matches!(act, Act::Clock(_)));
        for act in acts {
            self.act(act)?;
        }
        let _ = self.again(|books| books.say(&["CLIENT", "UNPAUSE"]));
        // A new clock setting takes effect only after a while.
        std::thread::sleep(
            (self.stage.clock_set + TAKES_EFFECT).saturating_duration_since(Instant::now()),
        );
        for act in clocks {
            self.act(act)?;
        }
        let (begun, since) = (Instant::now(), history::now());
        let most = self.options.lease * 2 + self.patience(HEAL_MORE);
        let members = self.options.members as u64;
        let mut last;
        loop {
            self.look()?;
            last = self.stage.books.snapshot().ok();
            let well = |now: &Snapshot| {
                now.leads.is_some() && now.members == members && now.overdue_ms < OVERDUE_MS
            };
            let flows = self.watch.made.min(self.watch.begun_with) > since;
            let here = self.members().all(|process| process.joined);
            if flows && here && last.as_ref().is_some_and(well) {
                break;
            }
            if begun.elapsed() > most {
                return self.not_healed(most, last.as_ref(), flows && here);
            }
            tell(&self.progress(doing));
            std::thread::sleep(LOOK);
        }
        if self.watch.checker.clock_right(history::now()) {
            self.again(Books::bring_forward)?;
            self.read_clock()?;
        }
        if let Some(last) = self.again(Books::last)? {
            self.watch.checker.accepted(last);
        }
        self.watch.heals.push(begun.elapsed());
        let now = self.again(Books::snapshot)?;
        self.watch.checker.quiet(&now);
        self.watch.paths.drain_recovered |=
            self.watch.drained && self.stage.books.drains().is_ok_and(|drains| drains == 0);
        self.beat()
    }

    /// Tells the checker what the clock of Redis shows.
    pub(crate) fn read_clock(&mut self) -> Result<(), Trouble> {
        let time = self.again(Books::time)?;
        self.watch.checker.clock_shows(history::now(), time);
        Ok(())
    }

    /// The fleet has not healed in time, or something is overdue. `goes_on`: all members take part, and work flows.
    fn not_healed(
        &mut self,
        most: Duration,
        last: Option<&Snapshot>,
        goes_on: bool,
    ) -> Result<(), Trouble> {
        let leads = last.is_some_and(|now| now.leads.is_some());
        let (members, late) = last.map_or((0, 0), |now| (now.members, now.overdue_ms));
        let what = format!(
            "{} s after the last fault, {members} of {} members take part, {} leads and {} flows",
            most.as_secs(),
            self.options.members,
            if leads { "one" } else { "nobody" },
            if goes_on { "work" } else { "nothing, or not everywhere," },
        );
        let is_given = self.stage.server.is_none() && self.stage.servers.is_none();
        if is_given && self.watch.counts.is_empty() {
            return Err(Trouble::NotStarted(what));
        }
        let (broken, what) = match late >= OVERDUE_MS && leads && goes_on {
            true => {
                let what = format!("a message that waits for a time is overdue by {late} ms");
                (Invariant::NotLate, what)
            }
            false => (Invariant::Heals, what),
        };
        self.watch.checker.blame(broken, what, Vec::new());
        Ok(())
    }

    /// After the first violation it is not worth waiting long for the rest.
    fn patience(&self, time: Duration) -> Duration {
        if self.watch.checker.violations.is_empty() { time } else { time / 5 }
    }

    /// Sets the event: every waiter must return.
    fn beat(&mut self) -> Result<(), Trouble> {
        let generation = self.again(Books::beat)?;
        let begun = Instant::now();
        loop {
            self.look()?;
            let asleep = self.members().find(|process| process.woken < generation);
            let asleep = asleep.map(|process| process.name().to_owned());
            // Also no waiter may be left whose wait began before this.
            let late = self.watch.wakes.asleep(Instant::now(), begun.elapsed());
            let Some(asleep) = asleep.or_else(|| late.map(str::to_owned)) else { return Ok(()) };
            if begun.elapsed() > HEAL_MORE {
                let what = format!("{asleep} still waits for an event set {HEAL_MORE:?} ago");
                let about = vec![generation.to_string(), asleep];
                self.watch.checker.blame(Invariant::NoWakeUpMissed, what, about);
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends generating, waits for the last messages, and judges.
    pub(crate) fn settle(&mut self, tell: &mut dyn FnMut(&Progress)) -> Result<(), Trouble> {
        self.quiet(tell, "repairing")?;
        std::fs::write(self.options.dir.join(REST), b"")?;
        let begun = Instant::now();
        let (mut settled, mut moved) = (0, begun);
        let now = loop {
            self.look()?;
            // Read the last accepted message first, then the snapshot: in the other order a message
            // could be missed.
            if let Some(last) = self.again(Books::last)? {
                self.watch.checker.accepted(last);
            }
            let now = self.again(Books::snapshot)?;
            let read = self.watch.read == 0
                && (self.watch.lossy || self.watch.checker.seen.settled >= now.settled);
            let time = history::now();
            let moves = self
                .stage
                .processes
                .iter()
                .any(|process| self.watch.trusts.moves(process.name(), time));
            // The generator and the sender have seen that it is time to rest. From earlier
            // generators nothing is accepted.
            let rested = |process: &Process| self.watch.rested.contains(process.name());
            let rests = self.members().any(rested)
                && rested(&self.stage.processes[self.sender()])
                && begun.elapsed() > REST_AFTER
                && !moves;
            let empty = now.waiting + now.held + now.later == 0;
            if rests && empty && now.errors.is_empty() && read {
                break now;
            }
            if now.settled > settled {
                (settled, moved) = (now.settled, Instant::now());
            }
            if moved.elapsed() > self.patience(EMPTY_MAX) {
                let open = if rests { "" } else { ", and somebody still makes or sends messages" };
                let what = format!(
                    "nothing was settled for {:?}, and {} wait, {} are scheduled, {} are held and {} errors are not \
                     taken{open}",
                    self.patience(EMPTY_MAX),
                    now.waiting,
                    now.later,
                    now.held,
                    now.errors.len()
                );
                self.watch.checker.blame(Invariant::Heals, what, Vec::new());
                break now;
            }
            tell(&self.progress("settling"));
            std::thread::sleep(LOOK);
        };
        self.look()?;
        self.watch.paths.drain_recovered |= self.watch.drained && now.errors.is_empty();
        if !self.watch.lossy && self.watch.checker.seen.settled != now.settled {
            let (read, there) = (self.watch.checker.seen.settled, now.settled);
            let what =
                format!("{read} different messages were settled, the ledger had {there} entries");
            self.watch.checker.blame(Invariant::BooksBalance, what, Vec::new());
        }
        self.judge_silence();
        if self.options.loses_told() {
            self.watch.checker.judge_names(&self.watch.losses);
        }
        self.watch.checker.finish(&now);
        Ok(())
    }

    /// A silent generator must be replaced, and what it held up must be let go by others: at least once, if it happened often
    /// enough.
    fn judge_silence(&mut self) {
        let Paths { silenced, replaced, .. } = self.watch.paths;
        if silenced >= SILENCED_MIN && replaced == 0 {
            let what =
                format!("a generator was silent {silenced} times, and nobody ever took over");
            self.watch.checker.blame(Invariant::Heals, what, Vec::new());
        }
        let Paths { stood_in, held_back, .. } = self.watch.paths;
        if held_back >= SILENCED_MIN && stood_in == 0 {
            let what = format!(
                "a silent generator held up what was due {held_back} times, and nobody ever stood in"
            );
            self.watch.checker.blame(Invariant::NotLate, what, Vec::new());
        }
    }

    /// While a silent generator still leads: do others let go what is due? Judged once for each.
    pub(crate) fn watch_over_due(&mut self) {
        let Some(&(_, term, since)) = self.watch.silenced.last() else { return };
        let is_wary = self.stage.redis_hurt || self.stage.clock_set.elapsed() < TAKES_EFFECT * 2;
        if is_wary || self.watch.stood_in == term || since.elapsed() < STAND_IN_AFTER {
            return;
        }
        // Somebody must have been well all the time.
        let long = since.elapsed().as_micros() as u64;
        let is_well = |process: &&Process| {
            !process.hurt && process.joined && process.touched + long < history::now()
        };
        let can_stand_in = self.members().filter(is_well).count() > 0;
        if let Ok((overdue, leads)) = self.stage.books.overdue()
            && can_stand_in
            && leads == Some(term)
        {
            self.watch.stood_in = term;
            match overdue < STAND_IN_MS {
                true => self.watch.paths.stood_in += 1,
                false => self.watch.paths.held_back += 1,
            }
        }
    }
}
