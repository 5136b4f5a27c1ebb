#!lua flags=allow-oom
-- Counts a latch down by one. At zero it opens, in the way an event is set.
-- KEYS[1] latch:<name> HASH   KEYS[2] its channel
-- ARGV    round (the one the caller knows), id (names this call)
-- Returns {'ok', count, round}, {'moved', count, round} (another round: nothing changed),
--         {'spent', count, round} (the next generation would be past 2^52: nothing changed; see acquire)
-- Uses    clock, grow
-- Why round and id: a late copy must not count in the next round, and a repeat must not count twice in this one.
local latch = redis.call('HMGET', KEYS[1], 'count', 'round', 'gen')
local count, round = tonumber(latch[1] or '0'), latch[2] or '0'
if ARGV[1] ~= round then return {'moved', count, round} end
local _, now_us = clock()
local gen = grow(latch[3], now_us)
if count == 1 and not gen then return {'spent', count, round} end
if count == 0 or redis.call('HSETNX', KEYS[1], 'c:' .. ARGV[2], '1') == 0 then return {'ok', count, round} end
redis.call('HSET', KEYS[1], 'count', count - 1)
if count == 1 then
  redis.call('HSET', KEYS[1], 'flag', '1', 'gen', gen)
  redis.call('SPUBLISH', KEYS[2], gen)
end
return {'ok', count - 1, round}
