//! Reads ledger, lanes, blocks and error store of a fleet in one piece, and finds gaps and doubles
//! in them. It trusts no counter of the fleet's own.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use redis::Connection;

/// Everything a fleet has in Redis, as of one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Ids by the lane they wait in.
    pub lanes: BTreeMap<String, Vec<String>>,
    /// Ids by the block they are claimed in.
    pub blocks: BTreeMap<String, Vec<String>>,
    /// `(id, outcome, member, attempt)` of settled messages, in order.
    pub ledger: Vec<(String, String, String, u32)>,
    /// Ids in the error store and in drains.
    pub errors: Vec<String>,
    /// The fleet's own counters.
    pub counts: HashMap<String, i64>,
    /// Members and their deadlines.
    pub members: Vec<String>,
    /// `member|term`, if somebody valid leads.
    pub lease: Option<String>,
}

const READ: &str = r"
local lists, errors = {}, {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  local rest = string.sub(key, #ARGV[1] + 1)
  if string.match(rest, '^lane:') or string.match(rest, '^block:') then
    lists[#lists + 1] = rest
    lists[#lists + 1] = redis.call('LRANGE', key, 0, -1)
  elseif rest == 'errors' or string.match(rest, '^drain:') then
    for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
      for i = 1, #entry[2], 2 do
        if entry[2][i] == 'm' then errors[#errors + 1] = entry[2][i + 1] end
      end
    end
  end
end
local ledger = {}
for _, entry in ipairs(redis.call('XRANGE', ARGV[1] .. 'ledger', '-', '+')) do ledger[#ledger + 1] = entry[2] end
local lease = redis.call('GET', ARGV[1] .. 'lease')
if lease and not redis.call('ZSCORE', ARGV[1] .. 'members', string.match(lease, '^[^|]+')) then lease = false end
return {lists, errors, ledger, redis.call('HGETALL', ARGV[1] .. 'counts'),
  redis.call('ZRANGE', ARGV[1] .. 'members', 0, -1), lease or ''}
";

type Raw = (redis::Value, Vec<redis::Value>, Vec<Vec<String>>, Vec<String>, Vec<String>, String);

fn id_of(envelope: &redis::Value) -> Option<String> {
    let redis::Value::BulkString(bytes) = envelope else { return None };
    if bytes.is_empty() || bytes == b"-" {
        return None;
    }
    let mut parts = bytes.split(|&byte| byte == b'|');
    parts.next();
    parts.next().map(|id| String::from_utf8_lossy(id).into_owned())
}

impl Snapshot {
    /// Reads a fleet.
    pub fn read(connection: &mut Connection, fleet: &str) -> Snapshot {
        let prefix = format!("artel:{{{fleet}}}:");
        let raw: Raw = redis::cmd("EVAL")
            .arg(READ)
            .arg(0)
            .arg(prefix)
            .query(connection)
            .expect("the server answers");
        let mut snapshot = Snapshot::default();
        let redis::Value::Array(lists) = raw.0 else { panic!("a list of lists") };
        for pair in lists.chunks_exact(2) {
            let name: String = redis::from_redis_value_ref(&pair[0]).expect("a name");
            let redis::Value::Array(envelopes) = &pair[1] else { panic!("a list") };
            let ids = envelopes.iter().filter_map(id_of).collect();
            match name.strip_prefix("lane:") {
                Some(lane) => snapshot.lanes.insert(lane.to_owned(), ids),
                None => snapshot.blocks.insert(name, ids),
            };
        }
        snapshot.errors = raw.1.iter().filter_map(id_of).collect();
        for entry in raw.2 {
            let field = |name: &str| {
                entry.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1].clone())
            };
            snapshot.ledger.push((
                field("id").unwrap_or_default(),
                field("outcome").unwrap_or_default(),
                field("member").unwrap_or_default(),
                field("attempt").and_then(|n| n.parse().ok()).unwrap_or(0),
            ));
        }
        for pair in raw.3.chunks_exact(2) {
            snapshot.counts.insert(pair[0].clone(), pair[1].parse().unwrap_or(0));
        }
        snapshot.members = raw.4;
        snapshot.lease = (!raw.5.is_empty()).then_some(raw.5);
        snapshot
    }

    /// Who leads, if anybody valid does.
    pub fn leader(&self) -> Option<&str> {
        self.lease.as_deref().and_then(|lease| lease.split('|').next())
    }

    /// Messages in a lane or in a block.
    pub fn unsettled(&self) -> usize {
        self.lanes.values().chain(self.blocks.values()).map(Vec::len).sum()
    }

    /// A counter of the fleet's own.
    pub fn count(&self, name: &str) -> i64 {
        self.counts.get(name).copied().unwrap_or(0)
    }
}

/// What an auditor found.
#[derive(Debug, Default)]
pub struct Audit {
    /// Every violation, in words.
    pub problems: Vec<String>,
    /// Messages by term, seen anywhere.
    pub terms: BTreeMap<u64, BTreeSet<u64>>,
    /// Settled messages.
    pub settled: usize,
}

impl Audit {
    /// Audits a fleet that runs with the ledger on. `taken` are the ids that takers have printed, or
    /// that were put back to work.
    pub fn of(snapshot: &Snapshot, taken: &[String]) -> Audit {
        let mut audit = Audit::default();
        let mut seen: HashMap<&str, String> = HashMap::new();
        let places = snapshot.lanes.iter().map(|(lane, ids)| (format!("lane {lane}"), ids));
        let places = places.chain(snapshot.blocks.iter().map(|(name, ids)| (name.clone(), ids)));
        for (place, ids) in places {
            for id in ids {
                audit.put(&mut seen, id, place.clone());
            }
        }
        for (id, outcome, member, _) in &snapshot.ledger {
            audit.put(&mut seen, id, format!("settled {outcome} by {member}"));
        }
        audit.settled = snapshot.ledger.len();
        for (term, seqs) in &audit.terms {
            let last = seqs.last().copied().unwrap_or(0);
            for missing in (1..=last).filter(|seq| !seqs.contains(seq)) {
                audit.problems.push(format!("{term}-{missing} is nowhere"));
            }
        }
        audit.errors(snapshot, taken);
        audit.counters(snapshot);
        audit
    }

    fn put<'a>(&mut self, seen: &mut HashMap<&'a str, String>, id: &'a str, place: String) {
        if let Some((term, seq)) = id.split_once('-')
            && let (Ok(term), Ok(seq)) = (term.parse(), seq.parse())
        {
            self.terms.entry(term).or_default().insert(seq);
        }
        if let Some(other) = seen.insert(id, place.clone()) {
            self.problems.push(format!("{id} is in two places: {other} and {place}"));
        }
    }

    fn errors(&mut self, snapshot: &Snapshot, taken: &[String]) {
        let failed: BTreeSet<&str> = snapshot
            .ledger
            .iter()
            .filter(|(_, outcome, ..)| outcome == "failed")
            .map(|(id, ..)| id.as_str())
            .collect();
        let mut kept: BTreeSet<&str> = BTreeSet::new();
        for id in snapshot.errors.iter().chain(taken) {
            if !kept.insert(id) {
                self.problems
                    .push(format!("{id} is in the error store twice, or stored and taken"));
            }
        }
        for id in failed.symmetric_difference(&kept) {
            self.problems.push(format!("{id}: ledger and error store disagree"));
        }
    }

    fn counters(&mut self, snapshot: &Snapshot) {
        let claimed: usize = snapshot.blocks.values().map(Vec::len).sum();
        let waiting: usize = snapshot.lanes.values().map(Vec::len).sum();
        let failed = snapshot.ledger.iter().filter(|(_, outcome, ..)| outcome == "failed").count();
        let facts =
            [("claimed", claimed), ("failed", failed), ("done", snapshot.ledger.len() - failed)];
        let added = snapshot.count("generated") + snapshot.count("sent");
        let there = (claimed + waiting + snapshot.ledger.len()) as i64;
        if added != there {
            self.problems.push(format!("{added} were generated or sent, {there} are there"));
        }
        for (name, fact) in facts {
            if snapshot.count(name) != fact as i64 {
                let count = snapshot.count(name);
                self.problems.push(format!("counter {name} is {count}, in fact it is {fact}"));
            }
        }
    }

    /// Panics unless nothing is wrong.
    #[track_caller]
    pub fn assert_clean(&self) {
        let shown = self.problems.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
        assert!(self.problems.is_empty(), "{} problems:\n{shown}", self.problems.len());
    }
}
