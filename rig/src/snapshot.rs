//! [`Snapshot`]: all data of a fleet in Redis at one moment.
//!
//! **Invariant:** it is read in one piece, and no counter of the fleet is trusted: the messages
//! themselves are counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use redis::{Connection, RedisResult, Value};

use crate::duties::{self, Duties};

/// All data of a fleet in Redis at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Ids of waiting messages, by lane.
    pub lanes: BTreeMap<String, Vec<String>>,
    /// Ids of claimed messages, by block (`block:<member>:<n>`).
    pub blocks: BTreeMap<String, Vec<String>>,
    /// How many messages each block has according to the fleet's own record.
    pub recorded: BTreeMap<String, u64>,
    /// Settled messages, in order; empty if it was read without the ledger.
    pub ledger: Vec<Settled>,
    /// Entries ever added to the ledger.
    pub settled: u64,
    /// Ids in the error store and in drains.
    pub errors: Vec<String>,
    /// The origins of messages in lanes and blocks: the failed messages that were put back to work.
    pub origins: Vec<String>,
    /// The fleet's own counters.
    pub counts: HashMap<String, i64>,
    /// Members, by deadline.
    pub members: Vec<String>,
    /// Dead members.
    pub orphans: BTreeSet<String>,
    /// `member|term`, if the holder of the lease is a member.
    pub lease: Option<String>,
    /// The state that generators keep.
    pub state: Option<String>,
    /// Wake tokens.
    pub wakes: u64,
    /// What must not be: chunks without a reference, references without their chunk, blocks that are packed and open, a
    /// stage that was left behind, a count of `extra` that is wrong.
    pub torn: Vec<String>,
    /// Data that effects wrote, by name: the fields of hashes. Other types have no fields here.
    pub data: BTreeMap<String, HashMap<String, String>>,
    /// What waits for a time or for others.
    pub duties: Duties,
    /// The time of Redis, ms.
    pub now_ms: u64,
}

/// One entry of the ledger.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Settled {
    /// The message.
    pub id: String,
    /// `done` or `failed`.
    pub outcome: String,
    /// The member that settled it.
    pub member: String,
    /// The attempt that settled it.
    pub attempt: u32,
}

const READ: &str = r#"
local p = ARGV[1]
local lists, records, errors, data, ledger, torn = {}, {}, {}, {}, {}, {}
local chunks, extras = {}, {}
-- The envelopes of a pack, without the first `skip`.
local function unpacked(text, skip)
  local head, seq, tail, from = string.match(text, '^(...|[^|]*%-)(%d+)(|%d+|%d+|)()')
  local list, count = {}, 0
  while head and from <= #text do
    local length, at = string.match(text, '^(%d+):()', from)
    if not length or at + length - 1 > #text then torn[#torn + 1] = 'a pack of ' .. seq .. ' is cut short'; break end
    if count >= skip then
      list[#list + 1] = head .. string.format('%.0f', seq + count) .. tail .. string.sub(text, at, at + length - 1)
    end
    count, from = count + 1, at + length
  end
  return list
end
-- The messages of a lane, those of chunks in place of their references.
local function waiting(lane, entries)
  local list, extra = {}, 0
  for _, entry in ipairs(entries) do
    local id, total, taken = string.match(entry, '^#([^|]+)|(%d+)|%d+|%d+|(%d+)|%d+$')
    local text = id and redis.call('GET', p .. 'chunk:' .. id)
    if text then
      chunks[id] = true
      local messages = unpacked(text, tonumber(taken))
      if #messages ~= total - taken then torn[#torn + 1] = entry .. ' has ' .. #messages end
      extra = extra + #messages - 1
      for _, message in ipairs(messages) do list[#list + 1] = message end
    else
      if id then torn[#torn + 1] = entry .. ' has no chunk' end
      list[#list + 1] = entry
    end
  end
  extras[lane] = extra
  return list
end
for _, key in ipairs(redis.call('KEYS', p .. '*')) do
  local rest = string.sub(key, #p + 1)
  local kind = string.match(rest, '^(%a+)')
  if kind == 'stage' then torn[#torn + 1] = 'a stage was left behind' end
  if kind == 'lane' or kind == 'block' or kind == 'pack' then
    local list
    if kind == 'pack' then
      list = unpacked(redis.call('GET', key), 0)
      rest = 'block' .. string.sub(rest, 5)
      if redis.call('EXISTS', p .. rest) == 1 then torn[#torn + 1] = rest .. ' is packed and open' end
    else
      list = redis.call('LRANGE', key, 0, -1)
      if kind == 'lane' then list = waiting(string.sub(rest, 6), list) end
    end
    lists[#lists + 1] = rest
    lists[#lists + 1] = list
    local member, n = string.match(rest, '^block:(.*):(%d+)$')
    if member then
      records[#records + 1] = rest
      records[#records + 1] = redis.call('HGET', p .. 'blocks:' .. member, n) or ''
    end
  elseif rest == 'errors' or kind == 'drain' then
    for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
      for i = 1, #entry[2], 2 do
        if entry[2][i] == 'm' then errors[#errors + 1] = entry[2][i + 1] end
      end
    end
  elseif kind == 'data' then
    data[#data + 1] = string.sub(rest, 6)
    data[#data + 1] = redis.call('TYPE', key).ok == 'hash' and redis.call('HGETALL', key) or {}
  end
end
for _, key in ipairs(redis.call('KEYS', p .. 'chunk:*')) do
  local id = string.sub(key, #p + 7)
  if not chunks[id] then torn[#torn + 1] = 'chunk ' .. id .. ' has no reference' end
end
for _, lane in ipairs({'returned', 'high', 'generated', 'normal', 'low'}) do
  local counted = tonumber(redis.call('HGET', p .. 'counts', 'extra:' .. lane) or 0)
  local found = extras[lane] or 0
  if counted ~= found then torn[#torn + 1] = 'extra:' .. lane .. ' is ' .. counted .. ', found ' .. found end
end
local settled = 0
if redis.call('EXISTS', p .. 'ledger') == 1 then
  local info = redis.call('XINFO', 'STREAM', p .. 'ledger')
  for i = 1, #info, 2 do if info[i] == 'entries-added' then settled = info[i + 1] end end
end
if ARGV[2] == '1' then
  for _, entry in ipairs(redis.call('XRANGE', p .. 'ledger', '-', '+')) do ledger[#ledger + 1] = entry[2] end
end
lists[#lists + 1] = 'torn'
lists[#lists + 1] = torn
local lease = redis.call('GET', p .. 'lease')
if lease and not redis.call('ZSCORE', p .. 'members', string.match(lease, '^[^|]+')) then lease = false end
return {lists, records, errors, ledger, settled, redis.call('HGETALL', p .. 'counts'),
  redis.call('ZRANGE', p .. 'members', 0, -1), redis.call('SMEMBERS', p .. 'orphans'), lease,
  redis.call('HGET', p .. 'state', 'state'), redis.call('LLEN', p .. 'wake'), {data, duties(), redis.call('TIME')}}
"#;

type Raw = (
    Vec<Value>,
    Vec<String>,
    Vec<Value>,
    Vec<HashMap<String, String>>,
    u64,
    HashMap<String, i64>,
    Vec<String>,
    BTreeSet<String>,
    Option<String>,
    Option<String>,
    u64,
    (Vec<Value>, duties::Raw, (u64, u64)),
);

/// The bytes of a message; `None` for a removed one.
fn message(envelope: &Value) -> Option<&[u8]> {
    match envelope {
        Value::BulkString(bytes) if !bytes.is_empty() && bytes != b"-" => Some(bytes),
        _ => None,
    }
}

fn id_of(envelope: &Value) -> Option<String> {
    let mut parts = message(envelope)?.split(|&byte| byte == b'|').skip(1);
    parts.next().map(|id| String::from_utf8_lossy(id).into_owned())
}

/// The id of the failed message from which this one was made, if it has an origin.
fn origin_of(envelope: &Value) -> Option<String> {
    let bytes = message(envelope)?;
    let headers = String::from_utf8_lossy(bytes.get(..bytes.len().min(1024))?).into_owned();
    let flagged = headers.as_bytes().get(2) != Some(&b'-');
    let origin = headers.split_once("\"origin\":\"").filter(|_| flagged)?.1;
    origin.split('"').next().map(str::to_owned)
}

impl Snapshot {
    /// Reads a fleet with its ledger.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    pub fn read(connection: &mut Connection, fleet: &str) -> Snapshot {
        Snapshot::try_read(connection, fleet, true).expect("the server answers")
    }

    /// Reads a fleet; with its ledger only if `with_ledger`.
    pub fn try_read(
        connection: &mut Connection,
        fleet: &str,
        with_ledger: bool,
    ) -> RedisResult<Snapshot> {
        let mut read = redis::cmd("EVAL");
        let script = READ.replacen(
            "local p = ARGV[1]\n",
            &format!("local p = ARGV[1]\n{}", duties::READ),
            1,
        );
        read.arg(script).arg(0).arg(format!("artel:{{{fleet}}}:")).arg(u8::from(with_ledger));
        let raw: Raw = read.query(connection)?;
        let (lists, records, errors, ledger, settled, counts, ..) = raw;
        let (members, orphans, lease, state, wakes, (data, duties, (seconds, micros))) =
            (raw.6, raw.7, raw.8, raw.9, raw.10, raw.11);
        let mut duties = Duties::of(duties);
        duties.note_failed(&errors)?;
        let errors = errors.iter().filter_map(id_of).collect();
        let mut snapshot = Snapshot {
            settled,
            errors,
            counts,
            members,
            orphans,
            lease,
            state,
            wakes,
            duties,
            now_ms: seconds * 1000 + micros / 1000,
            ..Snapshot::default()
        };
        for pair in lists.chunks_exact(2) {
            let name: String = redis::from_redis_value_ref(&pair[0])?;
            if name == "torn" {
                snapshot.torn = redis::from_redis_value_ref(&pair[1])?;
                continue;
            }
            let envelopes: Vec<Value> = redis::from_redis_value_ref(&pair[1])?;
            let ids = envelopes.iter().filter_map(id_of).collect();
            snapshot.origins.extend(envelopes.iter().filter_map(origin_of));
            snapshot.duties.note(&name, &envelopes);
            match name.strip_prefix("lane:") {
                Some(lane) => snapshot.lanes.insert(lane.to_owned(), ids),
                None => snapshot.blocks.insert(name, ids),
            };
        }
        for pair in records.chunks_exact(2) {
            let left = pair[1].split(':').next().and_then(|left| left.parse().ok());
            snapshot.recorded.extend(left.map(|left| (pair[0].clone(), left)));
        }
        for pair in data.chunks_exact(2) {
            let name = redis::from_redis_value_ref(&pair[0])?;
            snapshot.data.insert(name, redis::from_redis_value_ref(&pair[1])?);
        }
        snapshot.ledger = ledger.into_iter().map(Settled::read).collect();
        Ok(snapshot)
    }

    /// The member that leads, if any.
    pub fn leader(&self) -> Option<&str> {
        self.lease.as_deref().and_then(|lease| lease.split('|').next())
    }

    /// Messages in a lane.
    pub fn waiting(&self) -> usize {
        self.lanes.values().map(Vec::len).sum()
    }

    /// Messages in a block.
    pub fn claimed(&self) -> usize {
        self.blocks.values().map(Vec::len).sum()
    }

    /// Messages that wait for a time, or in line.
    pub fn later(&self) -> usize {
        self.duties.scheduled.len() + self.duties.parked.len()
    }

    /// For how long the first of those that wait for a time is overdue, ms.
    pub fn overdue_ms(&self) -> u64 {
        let first = self.duties.scheduled.values().copied().fold(f64::INFINITY, f64::min);
        (self.now_ms as f64 - first).max(0.0) as u64
    }

    /// Messages that are not over.
    pub fn unsettled(&self) -> usize {
        self.waiting() + self.claimed() + self.later()
    }

    /// One of the fleet's own counters.
    pub fn count(&self, name: &str) -> i64 {
        self.counts.get(name).copied().unwrap_or(0)
    }
}

impl Settled {
    fn read(mut fields: HashMap<String, String>) -> Settled {
        let mut field = |name: &str| fields.remove(name).unwrap_or_default();
        Settled {
            id: field("id"),
            outcome: field("outcome"),
            member: field("member"),
            attempt: field("attempt").parse().unwrap_or(0),
        }
    }
}
