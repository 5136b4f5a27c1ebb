#!lua flags=allow-oom
-- Counts a latch down by one; at zero it opens, as an event is set.
-- KEYS[1] latch:<name> HASH, and channel
-- ARGV    round (the one the caller knows), id (names this call)
-- Returns {'ok', count, round}, {'moved', count, round} (another round: nothing changed)
-- Why round and id: a late copy must not count in the next round, a repeat not twice in this one.
local latch = redis.call('HMGET', KEYS[1], 'count', 'round', 'gen')
local count, round = tonumber(latch[1] or '0'), latch[2] or '0'
if ARGV[1] ~= round then return {'moved', count, round} end
if count == 0 or redis.call('HSETNX', KEYS[1], 'c:' .. ARGV[2], '1') == 0 then return {'ok', count, round} end
redis.call('HSET', KEYS[1], 'count', count - 1)
if count == 1 then
  local t = redis.call('TIME')
  local gen = string.format('%.0f', math.max(tonumber(latch[3] or '0') + 1, t[1] * 1000000 + t[2]))
  redis.call('HSET', KEYS[1], 'flag', '1', 'gen', gen)
  redis.call('SPUBLISH', KEYS[1], gen)
end
return {'ok', count - 1, round}
