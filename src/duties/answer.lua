#!lua flags=allow-oom
-- Records the answer of a member in one round.
-- KEYS[1] members ZSET   KEYS[2] stats:<round> HASH, member -> its numbers as JSON
-- ARGV    me, numbers, ttl_ms
-- Returns 'ok', 'gone'
-- Uses    deadline_of
if not deadline_of(KEYS[1], ARGV[1]) then return 'gone' end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 'ok'
