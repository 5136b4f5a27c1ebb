//! What the random schedule does with times and duties: posts, promotions, alterations, periodic entries, limits, and
//! outcomes that run again or are followed by others.

use serde_json::{Value as Json, json};

use crate::held::Held;
use crate::job_calls::envelope;
use crate::lab::{Answer, Late};
use crate::schedule::{Meaning, World};
use crate::witness::LIMITS;

/// A part of a settle, owned.
type Part = (u64, &'static str, String, String);

impl World<'_> {
    pub(super) fn job_step(&mut self, at: usize) {
        match self.pick(20) {
            0..=6 => self.post_jobs(),
            7..=12 => self.promote(at),
            13..=15 => self.alter(),
            16..=18 => self.fire(at),
            _ => self.change_limits(),
        }
    }

    /// Runs a call, and has the witness check what it did.
    pub(super) fn exec(&mut self, call: &Late) -> Answer {
        let before = self.witness.before(self.lab, call);
        let answer = self.lab.send(call);
        self.note(&format!("{} {}", call.script, answer.tag()));
        self.witness.after(self.lab, call, &before, &answer);
        answer
    }

    pub(super) fn remember(&mut self, call: Late) {
        self.history.push(call);
        if self.history.len() > 64 {
            self.history.remove(0);
        }
    }

    fn due(&mut self, often: u64, below: u64) -> String {
        if self.pick(often) > 0 { String::new() } else { format!("+{}", self.pick(below)) }
    }

    /// The second kind of sender: it repeats what was not answered.
    fn post_jobs(&mut self) {
        let at = self.pick(self.posters.len() as u64) as usize;
        let (name, next, unanswered) = self.posters[at].clone();
        let call = match unanswered {
            Some(call) => call,
            None => {
                let (messages, key) = self.new_jobs(&name, next);
                self.lab.post_call(&name, next, &messages, key)
            }
        };
        let answer = self.exec(&call);
        self.remember(call.clone());
        if self.pick(5) == 0 {
            self.posters[at].2 = Some(call);
            return self.note("lost reply");
        }
        self.posters[at].2 = None;
        match answer.tag() {
            "ok" | "already" | "duplicate" => {
                self.posters[at].1 += (call.args.len() as u64 - 4) / 2;
            }
            "gap" => {
                self.born += 1;
                self.posters[at] = (format!("x{}", self.born), 1, None);
            }
            _ => {}
        }
    }

    fn new_jobs(&mut self, name: &str, next: u64) -> (Vec<(String, String)>, Option<&'static str>) {
        let ms = self.lab.now_ms();
        let id = |count: u64| format!("s{name}-{}", next + count);
        let lane = ['h', 'n', 'l'][self.pick(3) as usize];
        let mut headers = if self.pick(5) == 0 { json!({"result": 600_000}) } else { json!({}) };
        let mut all = Vec::new();
        match self.pick(100) {
            0..=29 => {
                for count in 0..1 + self.pick(4) {
                    let headers = if self.pick(2) == 0 { &Json::Null } else { &headers };
                    let due = self.due(2, 8);
                    all.push((envelope(lane, &id(count), ms, headers, "x"), due));
                }
                let key = (all.len() == 1 && self.pick(3) == 0).then_some("jobs");
                return (all, key);
            }
            30..=61 => {
                let keys = ["o/1", "o/2", "c", "q", "w", "v/1"];
                headers["key"] = keys[self.pick(6) as usize].into();
                for count in 0..1 + self.pick(3) {
                    let due = self.due(4, 5);
                    all.push((envelope('n', &id(count), ms, &headers, "x"), due));
                }
            }
            62..=79 => {
                headers["unique"] = format!("u{}", self.pick(3)).into();
                let due = self.due(2, 6);
                all.push((envelope(lane, &id(0), ms, &headers, "x"), due));
            }
            80..=84 => {
                // A child that comes later, or that nobody waits for.
                let joins = self.lab.key("joins");
                let parents: Vec<String> = self.lab.redis(&["HKEYS", &joins]);
                let parent = parents.first().cloned().unwrap_or_else(|| "snobody-1".to_owned());
                let child = json!({ "parent": parent });
                all.push((envelope('n', &id(0), ms, &child, "x"), String::new()));
            }
            _ => {
                let children = 1 + self.pick(4);
                let whole = self.pick(4) > 0;
                headers["children"] = (children + u64::from(!whole)).into();
                if self.pick(3) == 0 {
                    headers["key"] = "c".into();
                }
                let due = if whole { String::new() } else { self.due(2, 30) };
                all.push((envelope('n', &id(0), ms, &headers, "x"), due));
                for count in 1..=children {
                    let mut child = json!({"parent": id(0)});
                    if self.pick(4) == 0 {
                        child["key"] = "o/1".into();
                    }
                    let due = self.due(2, 5);
                    all.push((envelope('n', &id(count), ms, &child, "x"), due));
                }
            }
        }
        (all, None)
    }

    fn promote(&mut self, at: usize) {
        let Some(me) = self.processes[at].id.clone() else { return };
        if self.processes[at].unanswered.is_some() {
            return;
        }
        let (max, lines) = (1 + self.pick(20), self.pick(2));
        let call = self.lab.promote_call(&me, max, lines);
        self.send(at, call, Meaning::Nothing);
    }

    fn alter(&mut self) {
        let scheduled = self.lab.key("scheduled");
        let ids: Vec<String> = self.lab.redis(&["ZRANGE", &scheduled, "0", "-1"]);
        if ids.is_empty() {
            return;
        }
        let id = ids[self.pick(ids.len() as u64) as usize].clone();
        let Some(mut known) = self.lab.due(&id) else { return };
        if self.pick(5) == 0 {
            known = "7".to_owned();
        }
        let later = format!("+{}", self.pick(9));
        let what = ["cancel", "now", &later][self.pick(3) as usize].to_owned();
        let call = self.lab.alter_call(&id, &known, &what);
        self.exec(&call);
        self.remember(call);
    }

    /// An entry that is due every 7 ms. Its member's clock may be wrong, and its knowledge old.
    fn fire(&mut self, at: usize) {
        let (crons, fired) = (self.lab.key("crons"), self.lab.key("fired"));
        let now: Option<String> = self.lab.redis(&["HGET", &crons, "tick"]);
        let rev = now.as_deref().unwrap_or("0|").split('|').next().unwrap_or_default().to_owned();
        if now.is_none() || self.pick(8) == 0 {
            let json = ["a", "b", ""][self.pick(3) as usize];
            let rev = if self.pick(4) == 0 { "0" } else { &rev };
            let call = self.lab.cron_set_call("tick", json, rev);
            self.exec(&call);
            return self.remember(call);
        }
        let Some(me) = self.processes[at].id.clone() else { return };
        if self.processes[at].unanswered.is_some() {
            return;
        }
        let last: Option<u64> = self.lab.redis(&["HGET", &fired, "tick"]);
        let last = last.unwrap_or(0);
        let mut due = last - last % 7 + 7;
        if self.pick(5) == 0 {
            due += 7;
        }
        let term = self.processes[at].term.clone().map(|(term, _)| term);
        let term = term.filter(|_| self.pick(4) > 0).unwrap_or_default();
        let headers = match self.pick(2) {
            0 => json!({"kind": "tick"}),
            _ => json!({"unique": "cron:tick"}),
        };
        let message = envelope('n', &format!("ctick-{due}"), last, &headers, "tick");
        let message = if self.pick(6) == 0 { String::new() } else { message };
        let rev = if self.pick(6) == 0 { "7" } else { &rev };
        let (last, due) = (last.to_string(), due.to_string());
        let call = self.lab.fire_call((&me, &term), ("tick", rev), &last, &due, &message);
        self.send(at, call, Meaning::Nothing);
    }

    /// Pauses `v`, resumes it, or changes how many of `c` may be open.
    fn change_limits(&mut self) {
        let limits = self.lab.key("limits");
        let (class, rule) = match self.pick(4) {
            0 => ("v", "-1:0:1"),
            1 => ("v", "1:0:1"),
            2 => ("c", "1:0:0"),
            _ => ("c", "4:0:0"),
        };
        let () = self.lab.redis(&["HSET", &limits, class, rule]);
    }

    pub(super) fn set_limits(&mut self) {
        let limits = self.lab.key("limits");
        for (class, rule) in LIMITS {
            let () = self.lab.redis(&["HSET", &limits, class, rule]);
        }
    }

    /// Settles with everything that an outcome can be. Whoever holds a message with duties names it.
    pub(super) fn settle_jobs(&mut self, at: usize, me: &str, n: u64, held: &Held) {
        let Held { stamp, open, first, places, messages } = held.clone();
        let closing = self.pick(3) > 0;
        let (mut named, mut parts, mut positions) = (Vec::new(), Vec::<Part>::new(), Vec::new());
        for position in (0..open.len()).filter(|&position| open[position]) {
            if !closing && self.pick(2) == 0 {
                continue;
            }
            positions.push(position);
            let envelope = messages.get(position).map_or("1n-|", String::as_str);
            let has_duties = !["-", "h"].contains(&&envelope[2..3]);
            let (word, info) = self.word(envelope);
            let place = position as u64;
            let over = ["d", "f", "x"].contains(&word);
            let follow =
                if over && self.pick(8) == 0 { self.follow(me, n, place) } else { Vec::new() };
            let simple = word == "d" && follow.is_empty() && (self.unnamed || !has_duties);
            if closing && simple {
                continue;
            }
            named.push((place, word, info));
            if over && has_duties {
                parts.push((place, "value", "v".to_owned(), String::new()));
            }
            parts.extend(follow);
        }
        let rest = if closing { (positions.len() - named.len()).to_string() } else { "-".into() };
        let mut call = self.lab.settle_jobs_call(me, n, &stamp, &rest, &named, &parts);
        if !first.is_empty() {
            let named: Vec<(u64, &str)> = named.iter().map(|(at, word, _)| (*at, *word)).collect();
            call.name_places(&first, &named, &places);
        }
        self.send(at, call, Meaning::Settle { n, positions, closing });
    }

    fn word(&mut self, envelope: &str) -> (&'static str, String) {
        let again = envelope.split('|').nth(2).is_some_and(|tries| tries.len() > 6);
        match self.pick(100) {
            0..=21 if !again => ("r", self.pick(6).to_string()),
            22..=26 if !again => ("z", self.pick(4).to_string()),
            27..=28 if !again => ("w", self.pick(4).to_string()),
            29..=38 => ("f", "{}".to_owned()),
            39..=43 => ("x", String::new()),
            _ => ("d", String::new()),
        }
    }

    /// Messages that follow an outcome.
    fn follow(&mut self, me: &str, n: u64, position: u64) -> Vec<Part> {
        let (ms, base) = (self.lab.now_ms(), format!("f{me}-{n}-{position}"));
        let then = |id: &str, headers: &Json, due: &str| {
            (position, "then", envelope('n', id, ms, headers, "f"), due.to_owned())
        };
        let first = format!("{base}-1");
        match self.pick(5) {
            0 => vec![then(&first, &Json::Null, "")],
            1 => vec![then(&first, &json!({"kind": "f"}), "+3")],
            2 => vec![then(&first, &json!({"key": format!("o/{}", 1 + self.pick(2))}), "+1")],
            3 => vec![then(&first, &json!({"unique": "u0"}), "")],
            _ => {
                let children = 1 + self.pick(3);
                let mut all = vec![then(&first, &json!({ "children": children }), "")];
                for child in 0..children {
                    let id = format!("{base}-{}", child + 2);
                    all.push(then(&id, &json!({ "parent": first }), ""));
                }
                all
            }
        }
    }

    /// Everybody dies, and one member brings all of it to an end: then nothing may be left.
    pub(super) fn drain(&mut self) -> Result<(), String> {
        self.set_limits();
        let members = self.lab.key("members");
        let all: Vec<String> = self.lab.redis(&["ZRANGE", &members, "0", "-1"]);
        for id in all {
            self.lab.reap(&id);
        }
        self.lab.limit_backlog("1000");
        assert_eq!(self.lab.join("end"), "ok");
        let (mut n, mut quiet) = (0, 0);
        for _ in 0..2_000 {
            self.adopt_as("end");
            let promote = self.lab.promote_call("end", 100, 3);
            self.lab.send(&promote);
            self.cancel_parents();
            n += 1;
            let fetch = self.lab.fetch_call("end", n, 100, "0");
            let fetched = self.lab.send(&fetch);
            match fetched.tag() {
                "ok" => self.settle_all(n, &fetched),
                _ => n -= 1,
            }
            let left = ["scheduled", "parked", "resting"].map(|name| {
                let key = self.lab.key(name);
                self.lab.redis::<u64>(&["ZCARD", &key])
            });
            let orphans = self.lab.key("orphans");
            let is_quiet = fetched == "empty"
                && left == [0; 3]
                && self.lab.redis::<u64>(&["SCARD", &orphans]) == 0;
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet == 2 {
                return Ok(());
            }
            if fetched == "empty" {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        Err("it does not come to an end".to_owned())
    }

    /// Parents whose children were never sent: their sender gives up.
    fn cancel_parents(&mut self) {
        let joins = self.lab.key("joins");
        let waiting: Vec<(String, String)> = self.lab.redis(&["HGETALL", &joins]);
        for (parent, counts) in waiting {
            if !counts.starts_with("0:")
                && let Some(due) = self.lab.due(&parent)
            {
                let call = self.lab.alter_call(&parent, &due, "cancel");
                self.lab.send(&call);
            }
        }
    }

    fn settle_all(&mut self, n: u64, fetched: &Answer) {
        let stamp = fetched.at(1).to_owned();
        if fetched.at(4) != "0" {
            let count = fetched.at(4).to_owned();
            let call = self.lab.settle_jobs_call("end", n, &stamp, &count, &[], &[]);
            assert_eq!(self.lab.send(&call), "ok");
            return;
        }
        let named: Vec<(u64, &str, String)> =
            (0..fetched.messages().len() as u64).map(|at| (at, "d", String::new())).collect();
        let parts: Vec<Part> =
            named.iter().map(|(at, ..)| (*at, "value", "v".to_owned(), String::new())).collect();
        let call = self.lab.settle_jobs_call("end", n, &stamp, "0", &named, &parts);
        assert_eq!(self.lab.send(&call), "ok");
    }
}
