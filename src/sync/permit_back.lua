#!lua flags=allow-oom
-- Gives a permit back, or an attempt up, and tells whoever waits.
-- KEYS[1] members ZSET   KEYS[2] semaphore:<name> HASH, and channel
-- ARGV    me, n
-- Returns 'ok', 'already' (it was not held), 'gone'
local me, n = ARGV[1], ARGV[2]
if not redis.call('ZSCORE', KEYS[1], me) then return 'gone' end
local back = tonumber(redis.call('HGET', KEYS[2], 'r:' .. me) or '0')
if tonumber(n) > back then redis.call('HSET', KEYS[2], 'r:' .. me, n) end
if redis.call('HDEL', KEYS[2], 'h:' .. me .. ':' .. n) == 0 then return 'already' end
local t = redis.call('TIME')
local gen = math.max(tonumber(redis.call('HGET', KEYS[2], 'gen') or '0') + 1, t[1] * 1000000 + t[2])
gen = string.format('%.0f', gen)
redis.call('HSET', KEYS[2], 'gen', gen)
redis.call('SPUBLISH', KEYS[2], gen)
return 'ok'
