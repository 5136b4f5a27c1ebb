#!lua flags=allow-oom
-- Clears a generation of an event for one taker: of all takers that try, one gets it.
-- KEYS[1] event:<name> HASH
-- ARGV    gen, by (names this taker: a repeat gets the same answer)
-- Returns 'taken' (by this taker), 'missed' (it was taken or cleared by others, has cleared itself, or was set again)
-- Uses    clock, whole
local event = redis.call('HMGET', KEYS[1], 'flag', 'gen', 'taken', 'until')
local ends = tonumber(event[4]) or 0
local taken = ARGV[1] .. ' ' .. ARGV[2]
if event[3] == taken then return 'taken' end
if event[1] ~= '1' or whole(tonumber(event[2]) or 0) ~= ARGV[1] then return 'missed' end
if ends > 0 and clock() >= ends then return 'missed' end
redis.call('HSET', KEYS[1], 'flag', '0', 'until', '0', 'taken', taken)
return 'taken'
