#!lua flags=allow-oom
-- Opens a session. No other script adds a member.
-- KEYS[1] members ZSET     KEYS[2] member:<id> HASH   KEYS[3] watch HASH    KEYS[4] blind SET
-- KEYS[5] config HASH      KEYS[6] term STRING        KEYS[7] suspects HASH KEYS[8] orphans SET
-- KEYS[9] alive:<id> channel                          KEYS[10] ctl channel   KEYS[11] control HASH
-- KEYS[12] lease STRING    KEYS[13] notices STREAM
-- ARGV    id, ttl_ms, protocol, '1' if the caller saw all members overdue for a whole lease,
--         number of settings, then for each: field, value wanted ('' = the fleet's value), default;
--         then field, value … for the member's hash
-- Returns {'ok', highest term granted, blind, born, control as field, value …, the settings …},
--         {'protocol', theirs, wait_ms} or {'config', field, stored, wanted, wait_ms}: nothing was written;
--         wait_ms > 0 = all members are overdue: ask again until that much time has passed,
--         'taken' (the id has a session already: a late copy)
-- Uses    clock, deadline_of, note, reap, tell_dead, tell_joined, whole
-- Why born, the id of the fleet's first member ever: if it is another one than before, Redis has lost the fleet.
-- Why blind: a member whose presence cannot be seen (behind a proxy) must be judged by its deadline only.
-- Why overdue members are reaped before a setting changes: a member that was only frozen would go on with the old
-- lease.
local me = ARGV[1]
if deadline_of(KEYS[1], me) then return 'taken' end
local now = clock()
local here = redis.call('ZRANGE', KEYS[1], 0, -1)
local works = false -- observers (`o…`) follow the settings in config and pin none of them; see below
for _, id in ipairs(here) do
  if string.sub(id, 1, 1) ~= 'o' then works = true; break end
end
local set, conflict = {}, false
local theirs = redis.call('HGET', KEYS[5], 'protocol') or redis.call('EXISTS', KEYS[5]) == 1 and '1'
-- A newer protocol is never replaced by an older one: we may not understand what it wrote.
local newer = theirs and (tonumber(theirs) or 0) > tonumber(ARGV[3])
if theirs and theirs ~= ARGV[3] and (newer or #here > 0) then conflict = {'protocol', theirs} end
local last = 5 + 3 * ARGV[5]
for i = 6, last, 3 do
  local field, wanted = ARGV[i], ARGV[i + 1]
  local stored = redis.call('HGET', KEYS[5], field)
  -- An observer's locks were granted under the old lease. That lease may grow while the observer is here, but not
  -- shrink.
  local shrinks = (field == 'lease_ms' or field == 'grace_ms') and #here > 0
    and wanted ~= '' and stored and tonumber(wanted) < tonumber(stored)
  if stored and (works or shrinks) and wanted ~= '' and wanted ~= stored then
    conflict = conflict or {'config', field, stored, wanted}
  end
  set[#set + 1] = field
  set[#set + 1] = wanted ~= '' and wanted or stored or ARGV[i + 2]
end
if conflict then
  local overdue = not newer and redis.call('ZCOUNT', KEYS[1], whole(now), '+inf') == 0
  if not overdue or ARGV[4] ~= '1' then
    conflict[#conflict + 1] = overdue and redis.call('HGET', KEYS[5], 'lease_ms') or '0'
    return conflict
  end
  for _, id in ipairs(here) do
    reap(KEYS[1], KEYS[7], KEYS[4], KEYS[8], KEYS[11], KEYS[3], KEYS[12], KEYS[13], id, now,
      redis.call('HGET', KEYS[5], 'lease_ms') or 3000)
    tell_dead(KEYS[10], id)
  end
end
if redis.call('ZCARD', KEYS[1]) == 0 then
  -- The first member opens the watch: there is no other member that it could judge wrongly.
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
  redis.call('HSET', KEYS[3], 'run_id', run, 'looked', whole(now), 'calm', '0')
end
redis.call('HSET', KEYS[5], 'protocol', ARGV[3], unpack(set))
redis.call('HSETNX', KEYS[5], 'born', me)
redis.call('ZADD', KEYS[1], whole(now + redis.call('HGET', KEYS[5], 'lease_ms')), me)
local blind = 0
if redis.call('PUBSUB', 'SHARDNUMSUB', KEYS[9])[2] == 0 then
  blind = 1
  redis.call('SADD', KEYS[4], me)
end
if #ARGV > last then
  redis.call('HSET', KEYS[2], unpack(ARGV, last + 1))
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
local card = {}
for i = last + 1, #ARGV - 1, 2 do card[ARGV[i]] = ARGV[i + 1] end
note(KEYS[13], now, 'joined', me, 'label', card.label or '', 'process', (card.host or '') .. ':' .. (card.pid or ''),
  'version', card.version or '')
-- Only ranks want it. Who has many before him is neither a watcher nor a candidate soon, and looks at his rank now and then.
local below = 0
for _, id in ipairs(here) do
  if id < me then below = below + 1 end
  if below >= 64 then break end
end
if below < 64 then tell_joined(KEYS[10], me) end
local reply = {'ok', redis.call('GET', KEYS[6]) or '0', blind, redis.call('HGET', KEYS[5], 'born'), redis.call('HGETALL', KEYS[11])}
for i = 2, #set, 2 do reply[#reply + 1] = set[i] end
return reply
