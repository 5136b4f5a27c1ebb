#!lua flags=allow-oom
-- Gives a permit back, or gives an attempt up, and notifies the waiters.
-- KEYS[1] members ZSET   KEYS[2] semaphore:<name> HASH   KEYS[3] its channel
-- ARGV    me, n
-- Returns 'ok', 'already' (it was not held), 'gone'
-- Uses    clock, deadline_of, grow
-- Why waiters are not notified past 2^52 (see acquire): the permit must be given back anyway, and waiters also
-- ask.
local me, n = ARGV[1], ARGV[2]
if not deadline_of(KEYS[1], me) then return 'gone' end
local back = tonumber(redis.call('HGET', KEYS[2], 'r:' .. me) or '0')
if tonumber(n) > back then redis.call('HSET', KEYS[2], 'r:' .. me, n) end
if redis.call('HDEL', KEYS[2], 'h:' .. me .. ':' .. n) == 0 then return 'already' end
local _, now_us = clock()
local gen = grow(redis.call('HGET', KEYS[2], 'gen'), now_us)
if not gen then return 'ok' end
redis.call('HSET', KEYS[2], 'gen', gen)
redis.call('SPUBLISH', KEYS[3], gen)
return 'ok'
