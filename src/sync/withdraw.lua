#!lua flags=allow-oom
-- Withdraws an arrival at a barrier that has not opened yet.
-- KEYS[1] members ZSET   KEYS[2] barrier:<name> HASH
-- ARGV    me, n
-- Returns 'ok', 'already' (it was not waiting), 'gone'
-- Uses    deadline_of
local me, n = ARGV[1], ARGV[2]
if not deadline_of(KEYS[1], me) then return 'gone' end
local last = tonumber(redis.call('HGET', KEYS[2], 'r:' .. me) or '0')
if tonumber(n) > last then redis.call('HSET', KEYS[2], 'r:' .. me, n) end
return redis.call('HDEL', KEYS[2], 'a:' .. me .. ':' .. n) == 1 and 'ok' or 'already'
