#!lua flags=allow-oom
-- Counts a latch down by one; at zero it opens, as an event is set.
-- KEYS[1] latch:<name> HASH   KEYS[2] its channel
-- ARGV    round (the one the caller knows), id (names this call)
-- Returns {'ok', count, round}, {'moved', count, round} (another round: nothing changed),
--         {'spent', count, round} (the next generation would be past 2^52: nothing changed; see acquire)
-- Why round and id: a late copy must not count in the next round, a repeat not twice in this one.
local latch = redis.call('HMGET', KEYS[1], 'count', 'round', 'gen')
local count, round = tonumber(latch[1] or '0'), latch[2] or '0'
if ARGV[1] ~= round then return {'moved', count, round} end
local t = redis.call('TIME')
local gen = math.max(tonumber(latch[3] or '0') + 1, t[1] * 1000000 + t[2])
if count == 1 and gen > 4503599627370496 then return {'spent', count, round} end
if count == 0 or redis.call('HSETNX', KEYS[1], 'c:' .. ARGV[2], '1') == 0 then return {'ok', count, round} end
redis.call('HSET', KEYS[1], 'count', count - 1)
if count == 1 then
  gen = string.format('%.0f', gen)
  redis.call('HSET', KEYS[1], 'flag', '1', 'gen', gen)
  redis.call('SPUBLISH', KEYS[2], gen)
end
return {'ok', count - 1, round}
