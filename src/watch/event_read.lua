#!lua flags=no-writes
-- Reads an event.
-- KEYS[1] event:<name> HASH
-- ARGV    none
-- Returns {'set' or 'clear', gen, ms until it clears itself (0 = it does not)}
-- Uses    clock, whole
local event = redis.call('HMGET', KEYS[1], 'flag', 'gen', 'until')
local now = clock()
local gen, ends = tonumber(event[2]) or 0, tonumber(event[3]) or 0
local set = event[1] == '1' and (ends == 0 or now < ends)
return {set and 'set' or 'clear', whole(gen), whole(set and ends > 0 and ends - now or 0)}
