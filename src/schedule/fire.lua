#!lua
-- Adds the message of a periodic entry for one due time: once for an entry and a time, and never beside a leader.
-- KEYS[1…18] as in jobs.lua
-- KEYS[19] lease STRING `member|term`   KEYS[20] crons HASH, entry -> `rev|JSON`   KEYS[21] fired HASH, entry -> ms, and
--         `entry!` -> ms: the last time with a message, for people
-- KEYS[22] config HASH
-- ARGV    me, term ('' = does not lead: fires only while nobody does), entry, rev, the time for which it fired last as
--         the caller knows it, due_ms, lease_ms, protocol, envelope ('' = this time passes without a message)
-- Returns 'ok', 'skipped' (the message of an earlier time is still open), 'already' (it fired for this time or a later
--         one), 'early' (not yet due by the clock of Redis), 'changed' (the entry is another one, or removed), 'gone',
--         'fenced', {'full', backlog_max}, {'protocol', theirs}
-- Uses    deadline_of, denied, jobs, refresh, waiting, whole
local me, entry, due = ARGV[1], ARGV[3], tonumber(ARGV[6])
if not deadline_of(KEYS[1], me) then return 'gone' end
local config = redis.call('HMGET', KEYS[22], 'protocol', 'backlog_max')
if config[1] ~= ARGV[8] then return {'protocol', config[1] or '1'} end
refresh(KEYS[1], me, NOW, ARGV[7])
local lease = redis.call('GET', KEYS[19])
if lease and lease ~= me .. '|' .. ARGV[2] and deadline_of(KEYS[1], string.match(lease, '^[^|]*')) then return 'fenced' end
if string.match(redis.call('HGET', KEYS[20], entry) or '', '^(%d+)|.') ~= ARGV[4] then return 'changed' end
local last = redis.call('HGET', KEYS[21], entry) or '0'
if tonumber(last) >= due then return 'already' end
if last ~= ARGV[5] then return 'changed' end
if due > NOW then return 'early' end
if ARGV[9] == '' then
  redis.call('HSET', KEYS[21], entry, ARGV[6])
  return 'ok'
end
local new = check_new(ARGV[9], '', 0, {})
if not new then return 'changed' end
local unique = new[5].unique
local is_open = unique and redis.call('HEXISTS', UNIQUE, unique) == 1
-- Check everything before the first write: Lua has no rollback. A counter that is not a number fails here, too.
local refusal = denied({{'HSET', KEYS[21], '', ''}, {'HSET', UNIQUE, '', ''}, {'RPUSH', KEYS[7], ''},
  {'HINCRBY', KEYS[2], 'sent', '1'}})
if refusal then return refusal end
for _, count in ipairs(redis.call('HMGET', KEYS[2], 'sent', 'fired', 'skipped')) do whole((count or 0) + 1) end
if not is_open and waiting(LANES[new[2]], KEYS[2]) >= tonumber(config[2] or '1000000') then return {'full', config[2]} end
redis.call('HSET', KEYS[21], entry, ARGV[6])
if is_open then
  redis.call('HINCRBY', KEYS[2], 'skipped', 1)
  return 'skipped'
end
redis.call('HSET', KEYS[21], entry .. '!', ARGV[6])
place(unpack(new, 1, 6))
flush()
redis.call('HINCRBY', KEYS[2], 'sent', 1)
redis.call('HINCRBY', KEYS[2], 'fired', 1)
return 'ok'
