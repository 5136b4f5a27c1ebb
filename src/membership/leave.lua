#!lua flags=allow-oom
-- Ends the caller's own session. If it still holds messages or locks, it becomes an orphan.
-- KEYS[1] members ZSET   KEYS[2] suspects HASH      KEYS[3] blind SET         KEYS[4] orphans SET
-- KEYS[5] lease STRING   KEYS[6] member:<id> HASH   KEYS[7] blocks:<id> HASH  KEYS[8] ctl channel
-- KEYS[9] locks:<id> HASH   KEYS[10] control HASH   KEYS[11] watch HASH   KEYS[12] notices STREAM
-- ARGV    me
-- Returns {'ok', blocks and locks left behind}, 'gone' (no session: nothing to end)
-- Uses    clock, drain_field, note, tell_dead, tell_free, tell_left, vacate
local me = ARGV[1]
if redis.call('ZREM', KEYS[1], me) == 0 then return 'gone' end
redis.call('HDEL', KEYS[2], me)
redis.call('SREM', KEYS[3], me)
redis.call('HDEL', KEYS[10], drain_field(me))
redis.call('DEL', KEYS[6])
local open = redis.call('HLEN', KEYS[7]) - redis.call('HEXISTS', KEYS[7], 'hi')
if open == 0 then redis.call('DEL', KEYS[7]) end
open = open + redis.call('HLEN', KEYS[9])
if open > 0 then redis.call('SADD', KEYS[4], me) end
local now = clock()
local term = vacate(KEYS[5], KEYS[11], me, now, 'left')
note(KEYS[12], now, 'left', me, 'role', term and 'generator' or '', 'term', term or '', 'open', open)
if term then
  redis.call('DEL', KEYS[5])
  tell_free(KEYS[8], me)
end
if open > 0 then tell_dead(KEYS[8], me) else tell_left(KEYS[8], me) end
return {'ok', open}
