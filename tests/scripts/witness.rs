//! What the random schedule knows beyond the state of Redis: what was accepted, in which order, and what each call may
//! change.

use std::collections::{BTreeMap, BTreeSet};

use artel_rig::Snapshot;
use serde_json::Value as Json;

use crate::lab::{Answer, Lab, Late};

/// The limits in every world: class → rule. `v` is paused and resumed, `c` is changed.
pub(super) const LIMITS: [(&str, &str); 5] =
    [("v", "1:0:1"), ("o", "1:0:1"), ("c", "2:0:0"), ("q", "1:4:0"), ("w", "3:5:1")];
const ATTEMPTS_MAX: i64 = 3;

#[derive(Default)]
pub(super) struct Witness {
    /// Accepted message → its headers.
    pub(super) accepted: BTreeMap<String, Json>,
    /// Key → messages, in the order in which they came.
    order: BTreeMap<String, Vec<String>>,
    /// Messages that were cancelled.
    cancelled: BTreeSet<String>,
    /// Changes of entries, and times for which entries fired.
    made: BTreeSet<Vec<String>>,
    fired: BTreeSet<(String, String)>,
    /// Which scripts ran in this step.
    pub(super) ran: BTreeSet<&'static str>,
    before: Option<Snapshot>,
    /// How far the ledger was checked.
    ended: usize,
    pub(super) wrong: Option<String>,
}

/// What stands in Redis before a call that may change it only under a condition.
pub(super) struct Before {
    due: Option<String>,
    rev: String,
    scheduled: Vec<(String, f64)>,
}

impl Witness {
    pub(super) fn fail(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// Redis is an older one: nothing is known about the future of that state.
    pub(super) fn forget(&mut self) {
        let Witness { wrong, .. } = std::mem::take(self);
        self.wrong = wrong;
        self.ended = usize::MAX;
    }

    pub(super) fn before(&self, lab: &mut Lab, call: &Late) -> Before {
        let (crons, scheduled) = (lab.key("crons"), lab.key("scheduled"));
        let due = (call.script == "alter").then(|| lab.due(&call.args[0])).flatten();
        let entry = match call.script {
            "cron_set" => Some(call.args[0].clone()),
            "fire" => Some(call.args[2].clone()),
            _ => None,
        };
        let rev: Option<String> = entry.and_then(|entry| lab.redis(&["HGET", &crons, &entry]));
        let scheduled = match call.script {
            "promote" => lab.redis(&["ZRANGE", &scheduled, "0", "-1", "WITHSCORES"]),
            _ => Vec::new(),
        };
        Before { due, rev: rev.unwrap_or_else(|| "0|".to_owned()), scheduled }
    }

    /// Checks what a call did.
    pub(super) fn after(&mut self, lab: &mut Lab, call: &Late, before: &Before, answer: &Answer) {
        self.ran.insert(call.script);
        let arg = |at: usize| call.args[at].as_str();
        match (call.script, answer.tag()) {
            ("post", "ok") => self.accept_posted(call),
            ("alter", "ok") => {
                if before.due.as_deref() != Some(arg(1)) {
                    self.fail(format!("{} was altered, but not as its caller knew it", arg(0)));
                }
                if arg(2) == "cancel" {
                    self.cancelled.insert(arg(0).to_owned());
                }
            }
            ("cron_set", "ok") => {
                if !self.made.insert(call.args.clone()) {
                    self.fail("a late copy made an entry again".to_owned());
                }
                if before.rev.split('|').next() != Some(arg(2)) {
                    self.fail("an entry was changed that the caller did not mean".to_owned());
                }
            }
            ("fire", "ok" | "skipped") => {
                if before.rev.ends_with('|') {
                    self.fail("a removed entry fired".to_owned());
                }
                if arg(5).parse::<u64>().expect("a time") > lab.now_ms() {
                    self.fail(format!("{} fired early", arg(2)));
                }
                if !self.fired.insert((arg(2).to_owned(), arg(5).to_owned())) {
                    self.fail(format!("{} fired twice for {}", arg(2), arg(5)));
                }
                if answer == &"ok" {
                    self.accept(arg(8));
                }
            }
            ("promote", "ok") => {
                let scheduled = lab.key("scheduled");
                let now = lab.now_ms() as f64;
                let left: Vec<String> = lab.redis(&["ZRANGE", &scheduled, "0", "-1"]);
                for (id, due) in &before.scheduled {
                    if due.is_finite() && *due > now && !left.contains(id) {
                        self.fail(format!("{id} was let go before its time"));
                    }
                }
            }
            _ => {}
        }
    }

    fn accept(&mut self, envelope: &str) -> Option<(String, Json)> {
        let id = envelope.split('|').nth(1)?.to_owned();
        let headers = artel_rig::Open::read("later", envelope.as_bytes())?.1.headers;
        self.accepted.insert(id.clone(), headers.clone());
        Some((id, headers))
    }

    fn accept_posted(&mut self, call: &Late) {
        for pair in call.args[4..].chunks_exact(2) {
            let Some((id, headers)) = self.accept(&pair[0]) else { continue };
            if let Some(key) = headers.get("key").and_then(Json::as_str)
                && pair[1].is_empty()
                && headers.get("children").is_none()
            {
                self.order.entry(key.to_owned()).or_default().push(id);
            }
        }
    }

    /// Checks the whole state after a step.
    pub(super) fn check(&mut self, lab: &mut Lab, snapshot: Snapshot) {
        let ended: BTreeMap<&str, &str> =
            snapshot.ledger.iter().map(|it| (it.id.as_str(), it.outcome.as_str())).collect();
        let is_open = |id: &str| {
            snapshot.duties.open.contains_key(id)
                || snapshot
                    .lanes
                    .values()
                    .chain(snapshot.blocks.values())
                    .flatten()
                    .any(|it| it == id)
        };
        for id in self.accepted.keys() {
            if !ended.contains_key(id.as_str()) && !is_open(id) {
                self.wrong.get_or_insert(format!("{id} is lost"));
            }
        }
        for open in snapshot.duties.open.iter() {
            let (id, open) = open;
            let returned = open.place == "lane:returned";
            if open.place.starts_with("lane:") && returned != (open.deaths() > 0) {
                self.wrong
                    .get_or_insert(format!("{id} with {:?} is in {}", open.tries, open.place));
            }
        }
        self.check_parents(&snapshot, &ended);
        self.check_limits(&snapshot);
        self.check_order(&snapshot, &ended);
        self.check_results(lab, &snapshot);
        self.check_moves(&snapshot);
        self.ran.clear();
        self.before = Some(snapshot);
    }

    /// A parent goes on when all its children are over, or is told how many are not.
    fn check_parents(&mut self, snapshot: &Snapshot, ended: &BTreeMap<&str, &str>) {
        let mut wrong = None;
        for (id, open) in &snapshot.duties.open {
            let Some(children) = self.accepted.get(id).and_then(|it| it.get("children")?.as_u64())
            else {
                continue;
            };
            let is_told = open.headers.get("children_open").is_some();
            if is_told || snapshot.duties.joins.contains_key(id) {
                continue;
            }
            let of_it = |it: &Json| it.get("parent").and_then(Json::as_str) == Some(id.as_str());
            let over = self
                .accepted
                .iter()
                .filter(|(child, it)| of_it(it) && ended.contains_key(child.as_str()))
                .count();
            if over as u64 != children {
                wrong = Some(format!("{id} goes on after {over} of {children} children"));
            }
        }
        wrong.into_iter().for_each(|what| self.fail(what));
    }

    /// No more than the limit hold or rest. The limit of `c` changes.
    fn check_limits(&mut self, snapshot: &Snapshot) {
        for (key, taken) in &snapshot.duties.slots {
            let class = key.split('/').next().unwrap_or_default();
            let rule = LIMITS.iter().find(|(name, _)| *name == class && class != "c");
            let most = rule.and_then(|(_, rule)| rule.split(':').next()?.parse::<i64>().ok());
            if most.is_some_and(|most| *taken > most) {
                self.fail(format!("{taken} slots of {key} are taken"));
            }
        }
        let lines: BTreeSet<&str> =
            snapshot.duties.parked.iter().map(|(key, _, _)| key.as_str()).collect();
        for key in lines {
            let changes = key == "c" || key.starts_with('v');
            if !changes && !snapshot.duties.slots.contains_key(key) {
                self.fail(format!("nobody holds a slot of {key}, and messages stand in line"));
            }
        }
    }

    /// Of a key with one slot, messages end in the order in which they came.
    fn check_order(&mut self, snapshot: &Snapshot, ended: &BTreeMap<&str, &str>) {
        for key in ["o/1", "o/2", "v/1"] {
            let came = self.order.get(key).into_iter().flatten();
            let came: Vec<&str> =
                came.map(String::as_str).filter(|id| !self.cancelled.contains(*id)).collect();
            let is_one = |id: &&str| came.contains(id);
            let over: Vec<&str> =
                snapshot.ledger.iter().map(|it| it.id.as_str()).filter(is_one).collect();
            if !came.starts_with(&over) {
                let came = &came[..over.len()];
                self.wrong.get_or_insert(format!("{key}: came {came:?}, ended {over:?}"));
            }
        }
        let _ = ended;
    }

    /// Whoever asked for a result finds the outcome of the ledger.
    fn check_results(&mut self, lab: &mut Lab, snapshot: &Snapshot) {
        let from = std::mem::replace(&mut self.ended, snapshot.ledger.len());
        for settled in snapshot.ledger.iter().skip(from) {
            let headers = self.accepted.get(&settled.id);
            if headers.is_some_and(|headers| headers.get("result").is_some()) {
                let key = lab.key(&format!("event:result.{}", settled.id));
                let outcome: Option<String> = lab.redis(&["HGET", &key, "outcome"]);
                if outcome.as_deref() != Some(settled.outcome.as_str()) {
                    self.fail(format!("the result of {} is {outcome:?}", settled.id));
                }
            }
        }
    }

    /// A message that left its block without an end was given back, or begins another run.
    fn check_moves(&mut self, now: &Snapshot) {
        let Some(before) = &self.before else { return };
        let tries = |snapshot: &Snapshot, id: &str| {
            snapshot.duties.open.get(id).map_or((1, 0, 0), |open| open.tries)
        };
        let given_back = self.ran.contains("give_back") || self.ran.contains("unread");
        let mut wrong = Vec::new();
        for (block, ids) in &before.blocks {
            for id in ids {
                let stays = now.blocks.get(block).is_some_and(|ids| ids.contains(id));
                let over = now.ledger.iter().skip(before.ledger.len()).find(|it| it.id == *id);
                let died = tries(before, id);
                let deaths = died.0 as i64 - 1 - died.1 as i64 - died.2 as i64;
                match over {
                    // `failed` in the name of a dead member: by whoever put back its messages.
                    Some(over)
                        if over.outcome == "failed"
                            && self.ran.contains("adopt")
                            && !self.ran.contains("settle")
                            && !self.ran.contains("settle_jobs")
                            && deaths + 1 < ATTEMPTS_MAX =>
                    {
                        wrong.push(format!("{id} was given up with {died:?}"));
                    }
                    None if !stays && !given_back && tries(now, id) == died => {
                        wrong.push(format!("{id} left {block} and runs its attempt again"));
                    }
                    _ => {}
                }
            }
        }
        wrong.into_iter().for_each(|what| self.fail(what));
    }
}
