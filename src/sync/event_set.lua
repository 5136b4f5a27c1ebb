#!lua flags=allow-oom
-- Sets an event that is not set, under a new generation, and notifies its waiters.
-- KEYS[1] event:<name> HASH: flag, gen, by, until   KEYS[2] its channel
-- ARGV    state (the one the caller knows: `s` or `c`, set or clear, and the generation), by (names this call),
--         ttl_ms (0 = until cleared)
-- Returns {'ok', state} (set by this call or by an earlier copy of it), {'already', state} (it is set for
--         long enough), {'moved', state} (it is not in the state that the caller knows: nothing changed),
--         {'spent', state} (the next generation would be past 2^52: nothing changed; see acquire)
-- Uses    clock, grow, whole
-- Why the state: if the event was cleared or set since, a late copy of this call must neither set it again nor
-- extend it.
local event = redis.call('HMGET', KEYS[1], 'flag', 'gen', 'by', 'until')
local gen, ends, ttl = whole(tonumber(event[2]) or 0), tonumber(event[4]) or 0, ARGV[3]
local now, now_us = clock()
local set = event[1] == '1' and (ends == 0 or now < ends)
local state = (set and 's' or 'c') .. gen
if event[3] == ARGV[2] then return {'ok', state} end
if set and (ends == 0 or ttl ~= '0' and now + ttl <= ends) then return {'already', state} end
if ARGV[1] ~= state then return {'moved', state} end
ends = ttl == '0' and '0' or whole(now + ttl)
if set then
  redis.call('HSET', KEYS[1], 'by', ARGV[2], 'until', ends)
  return {'ok', state}
end
gen = grow(gen, now_us)
if not gen then return {'spent', state} end
redis.call('HSET', KEYS[1], 'flag', '1', 'gen', gen, 'by', ARGV[2], 'until', ends)
redis.call('SPUBLISH', KEYS[2], gen)
return {'ok', 's' .. gen}
