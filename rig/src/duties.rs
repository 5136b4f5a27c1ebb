//! [`Duties`]: messages that wait for a time or for others, and what their ends mean to others.
//!
//! **Invariant:** what Redis keeps about duties is compared with the messages themselves: a slot, a unique name or a place
//! among the children exists exactly as long as its message is open.

use std::collections::{BTreeMap, BTreeSet};

use redis::{RedisResult, Value};
use serde_json::Value as Json;

/// A message that is not over, and that has headers or was run before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Open {
    /// The list it is in, or `later`.
    pub place: String,
    /// `-`, `h`, `j`, `k` or `s`.
    pub flag: char,
    /// Runs, retries, and snoozes with waits for a member that knows its kind.
    pub tries: (u64, u64, u64),
    /// Its headers, if it has any.
    pub headers: Json,
}

impl Open {
    /// Reads an envelope that is at this place: its id, and what it is. `None` if it is simple or not readable.
    pub fn read(place: &str, envelope: &[u8]) -> Option<(String, Open)> {
        let mut parts = envelope.splitn(5, |&byte| byte == b'|');
        let mut next = || parts.next().map(|part| String::from_utf8_lossy(part).into_owned());
        let (head, id, tries) = (next()?, next()?, next()?);
        next()?;
        let body = parts.next()?;
        let flag = head.chars().nth(2)?;
        if flag == '-' && tries == "1" && place != "later" {
            return None;
        }
        let numbers: Vec<u64> = tries.split('.').filter_map(|n| n.parse().ok()).collect();
        let tries = match numbers[..] {
            [runs] => (runs, 0, 0),
            [runs, retries, snoozes] => (runs, retries, snoozes),
            [runs, retries, snoozes, waits] => (runs, retries, snoozes + waits),
            _ => return None,
        };
        let headers = match flag {
            '-' => Json::Null,
            _ => {
                let colon = body.iter().position(|&byte| byte == b':')?;
                let length: usize = std::str::from_utf8(&body[..colon]).ok()?.parse().ok()?;
                serde_json::from_slice(body.get(colon + 1..colon + 1 + length)?).ok()?
            }
        };
        Some((id, Open { place: place.to_owned(), flag, tries, headers }))
    }

    /// A header that is a text.
    pub fn text(&self, header: &str) -> Option<&str> {
        self.headers.get(header)?.as_str()
    }

    /// How many workers died over it.
    pub fn deaths(&self) -> i64 {
        let (runs, retries, snoozes) = self.tries;
        runs as i64 - 1 - retries as i64 - snoozes as i64
    }
}

/// Everything that waits for a time or for others, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Duties {
    /// Messages with headers, or that were run before, by id; and all that are in `later`.
    pub open: BTreeMap<String, Open>,
    /// Message → when it is due, Redis ms; infinite: it waits for its children.
    pub scheduled: BTreeMap<String, f64>,
    /// Key, order and message of those in line.
    pub parked: Vec<(String, String, String)>,
    /// Key → slots taken.
    pub slots: BTreeMap<String, i64>,
    /// The keys of slots that rest.
    pub resting: Vec<String>,
    /// Unique name → message.
    pub unique: BTreeMap<String, String>,
    /// Parent → children not sent, open, failed.
    pub joins: BTreeMap<String, (i64, i64, i64)>,
    /// Periodic entry → the time for which it fired last.
    pub fired: BTreeMap<String, u64>,
    /// Ids and flags of the messages in the error store.
    pub failed: Vec<(String, char)>,
}

/// The script's part of a snapshot.
pub(crate) const READ: &str = r#"
local function duties()
  return {redis.call('HGETALL', p .. 'later'), redis.call('ZRANGE', p .. 'scheduled', 0, -1, 'WITHSCORES'),
    redis.call('ZRANGE', p .. 'parked', 0, -1), redis.call('HGETALL', p .. 'slots'),
    redis.call('ZRANGE', p .. 'resting', 0, -1), redis.call('HGETALL', p .. 'unique'),
    redis.call('HGETALL', p .. 'joins'), redis.call('HGETALL', p .. 'fired')}
end
"#;

pub(crate) type Raw = (
    Vec<(String, Vec<u8>)>,
    Vec<(String, f64)>,
    Vec<String>,
    Vec<(String, String)>,
    Vec<String>,
    BTreeMap<String, String>,
    BTreeMap<String, String>,
    BTreeMap<String, u64>,
);

impl Duties {
    pub(crate) fn of(raw: Raw) -> Duties {
        let (later, scheduled, parked, slots, resting, unique, joins, fired) = raw;
        let parked = parked.iter().map(|place| {
            let mut parts = place.rsplitn(3, '\0').map(str::to_owned);
            let mut next = || parts.next().unwrap_or_default();
            let (id, order, key) = (next(), next(), next());
            (key, order, id)
        });
        let counts = |text: &String| {
            let mut counts = text.split(':').map(|n| n.parse().unwrap_or(i64::MIN));
            let mut next = || counts.next().unwrap_or(i64::MIN);
            (next(), next(), next())
        };
        let mut duties = Duties {
            scheduled: scheduled.into_iter().collect(),
            parked: parked.collect(),
            slots: slots
                .into_iter()
                .filter(|(key, _)| !key.starts_with('\0'))
                .map(|(key, taken)| (key, taken.parse().unwrap_or(i64::MIN)))
                .collect(),
            resting: resting
                .iter()
                .map(|slot| slot.rsplit_once('\0').map_or(slot.as_str(), |(key, _)| key).to_owned())
                .collect(),
            unique,
            joins: joins.iter().map(|(parent, text)| (parent.clone(), counts(text))).collect(),
            fired,
            ..Duties::default()
        };
        for (id, envelope) in later {
            let open = Open::read("later", &envelope).unwrap_or_default();
            let id = if open.0.is_empty() { id } else { open.0 };
            duties.open.insert(id, Open { place: "later".to_owned(), ..open.1 });
        }
        duties
    }

    /// Notes the envelopes of a list.
    pub(crate) fn note(&mut self, place: &str, envelopes: &[Value]) {
        for envelope in envelopes {
            if let Value::BulkString(bytes) = envelope
                && let Some((id, open)) = Open::read(place, bytes)
            {
                self.open.insert(id, open);
            }
        }
    }

    pub(crate) fn note_failed(&mut self, envelopes: &[Value]) -> RedisResult<()> {
        for envelope in envelopes {
            let bytes: Vec<u8> = redis::from_redis_value_ref(envelope)?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let id = text.split('|').nth(1).unwrap_or_default().to_owned();
            self.failed.push((id, text.chars().nth(2).unwrap_or('?')));
        }
        Ok(())
    }

    /// What is wrong.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        self.places(&mut problems);
        self.lines(&mut problems);
        self.names(&mut problems);
        self.parents(&mut problems);
        problems
    }

    /// What is later is either scheduled or in line, and nothing else is.
    fn places(&self, problems: &mut Vec<String>) {
        let later = self.open.iter().filter(|(_, open)| open.place == "later");
        let later: BTreeSet<&str> = later.map(|(id, _)| id.as_str()).collect();
        let scheduled: BTreeSet<&str> = self.scheduled.keys().map(String::as_str).collect();
        let parked: BTreeSet<&str> = self.parked.iter().map(|(_, _, id)| id.as_str()).collect();
        if parked.len() < self.parked.len() {
            problems.push("a message stands in two lines".to_owned());
        }
        for id in scheduled.intersection(&parked) {
            problems.push(format!("{id} is scheduled and in line"));
        }
        let both: BTreeSet<&str> = scheduled.union(&parked).copied().collect();
        for id in both.symmetric_difference(&later) {
            problems.push(format!("{id} is scheduled or in line without its envelope, or neither"));
        }
        for (id, flag) in &self.failed {
            if *flag == 's' {
                problems.push(format!("{id} failed and holds a slot"));
            }
        }
    }

    /// Slots are facts: those who hold one, and those that rest.
    fn lines(&self, problems: &mut Vec<String>) {
        let mut facts: BTreeMap<&str, i64> = BTreeMap::new();
        for key in &self.resting {
            *facts.entry(key).or_default() += 1;
        }
        for (id, open) in &self.open {
            let key = open.text("key");
            match (open.flag, key) {
                ('s', Some(key)) => *facts.entry(key).or_default() += 1,
                ('s', None) => problems.push(format!("{id} holds a slot of nothing")),
                ('k', _) if open.place != "later" => {
                    problems.push(format!("{id} is in {} without a slot", open.place));
                }
                _ => {}
            }
        }
        for (key, _, id) in &self.parked {
            let open = self.open.get(id);
            if open.is_some_and(|open| open.flag != 'k' || open.text("key") != Some(key)) {
                problems.push(format!("{id} stands in a line that is not its own: {key:?}"));
            }
        }
        let keys: BTreeSet<&str> =
            facts.keys().copied().chain(self.slots.keys().map(String::as_str)).collect();
        for key in keys {
            let (fact, count) =
                (facts.get(key).copied().unwrap_or(0), self.slots.get(key).copied().unwrap_or(0));
            if fact != count {
                problems.push(format!("{count} slots of {key:?} are taken, {fact} are in use"));
            }
        }
    }

    /// A unique name has one open message, and names it.
    fn names(&self, problems: &mut Vec<String>) {
        let mut open: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (id, message) in self.open.iter().filter(|(_, message)| message.flag != 'h') {
            if let Some(name) = message.text("unique") {
                open.entry(name).or_default().push(id);
            }
        }
        for (name, id) in &self.unique {
            match open.remove(name.as_str()).as_deref() {
                Some([one]) if one == id => {}
                other => problems.push(format!("{name:?} names {id}, but open are {other:?}")),
            }
        }
        for (name, ids) in open {
            problems.push(format!("{name:?} names nothing, but open are {ids:?}"));
        }
    }

    /// A parent waits while children are open or still to be sent.
    fn parents(&self, problems: &mut Vec<String>) {
        let mut children: BTreeMap<&str, i64> = BTreeMap::new();
        for parent in self.open.values().filter_map(|open| open.text("parent")) {
            *children.entry(parent).or_default() += 1;
        }
        for (parent, &(unsent, open, _)) in &self.joins {
            let found = children.get(parent.as_str()).copied().unwrap_or(0);
            if !self.scheduled.contains_key(parent) {
                problems.push(format!("{parent} waits for children and is not scheduled"));
            }
            if found != open {
                problems
                    .push(format!("{parent} has {open} open children on record, found {found}"));
            }
            if unsent + open <= 0 {
                problems.push(format!("{parent} waits for nobody"));
            }
        }
        for (id, message) in &self.open {
            let told = message.headers.get("children_open").is_some();
            let is_parent = message.headers.get("children").is_some() && message.flag != 'h';
            if is_parent
                && !told
                && !self.joins.contains_key(id)
                && children.contains_key(id.as_str())
            {
                problems.push(format!("{id} goes on before its children are over"));
            }
        }
    }

    /// What is left; empty if nothing is.
    pub fn left(&self) -> String {
        let all = [
            ("scheduled", self.scheduled.len()),
            ("parked", self.parked.len()),
            ("slots", self.slots.len()),
            ("resting", self.resting.len()),
            ("unique", self.unique.len()),
            ("joins", self.joins.len()),
        ];
        let left = all.iter().filter(|(_, count)| *count > 0);
        left.map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    }
}
