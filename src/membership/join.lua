#!lua flags=allow-oom
-- Opens a session: the only script that ever adds a member.
-- KEYS[1] members ZSET     KEYS[2] member:<id> HASH   KEYS[3] watch HASH   KEYS[4] blind SET
-- KEYS[5] config HASH      KEYS[6] alive:<id> channel KEYS[7] ctl channel  KEYS[8] term STRING
-- ARGV    id, ttl_ms, then lease_ms, grace_ms, attempts_max as wanted ('' = whatever the fleet has),
--         the same three as defaults, then field, value … for the member's hash
-- Returns {'ok', highest term granted, lease_ms, grace_ms, attempts_max, blind, born}, {'config', field, stored, wanted},
--         'taken' (the id has a session already: a late copy)
-- Why born: the id of the fleet's first member ever; another one than before means that Redis forgot the fleet.
-- Why blind: a member whose presence cannot be seen (behind a proxy) must be judged by its deadline only.
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 'taken' end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local fields = {'lease_ms', 'grace_ms', 'attempts_max'}
local alive = false -- somebody who works or leads: observers (`o…`) take what they find, and pin nothing
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf')) do
  if string.sub(id, 1, 1) ~= 'o' then alive = true; break end
end
local set = {}
for i, field in ipairs(fields) do
  local wanted, stored = ARGV[2 + i], redis.call('HGET', KEYS[5], field)
  if stored and alive and wanted ~= '' and wanted ~= stored then
    return {'config', field, stored, wanted}
  end
  if wanted ~= '' then set[i] = wanted else set[i] = stored or ARGV[5 + i] end
end
if redis.call('ZCARD', KEYS[1]) == 0 then
  -- The first member opens the watch: there is nobody yet whom it could judge wrongly.
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
  redis.call('HSET', KEYS[3], 'run_id', run, 'looked', string.format('%.0f', now), 'calm', '0')
end
for i, field in ipairs(fields) do redis.call('HSET', KEYS[5], field, set[i]) end
redis.call('HSETNX', KEYS[5], 'born', ARGV[1])
redis.call('ZADD', KEYS[1], string.format('%.0f', now + set[1]), ARGV[1])
local blind = 0
if redis.call('PUBSUB', 'SHARDNUMSUB', KEYS[6])[2] == 0 then
  blind = 1
  redis.call('SADD', KEYS[4], ARGV[1])
end
if #ARGV > 8 then
  redis.call('HSET', KEYS[2], unpack(ARGV, 9))
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
redis.call('SPUBLISH', KEYS[7], 'joined|' .. ARGV[1])
return {'ok', redis.call('GET', KEYS[8]) or '0', set[1], set[2], set[3], blind,
  redis.call('HGET', KEYS[5], 'born')}
