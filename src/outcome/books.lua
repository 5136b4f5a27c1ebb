#!lua flags=no-writes
-- Reads the books of the fleet in one step, so that the numbers fit together.
-- KEYS[1] members ZSET  KEYS[2] lease STRING  KEYS[3] counts HASH  KEYS[4] errors STREAM
-- KEYS[5…9] lane:returned, high, generated, normal, low   KEYS[10] orphans SET
-- KEYS[11] config HASH  KEYS[12] term STRING  KEYS[13] token STRING   KEYS[14] scheduled ZSET   KEYS[15] parked ZSET
-- KEYS[16] crons HASH   KEYS[17] control HASH
-- KEYS[18…] drain:<token> STREAM, the drains that the caller knows
-- ARGV    none
-- Returns {now_ms, lease or '', counts as field, value …, lengths of the five lanes, ms of the oldest message
--         of each or '', stored errors, members as id, deadline_ms …, number of orphans, config as field, value …,
--         highest term, highest token, now in microseconds, how many messages are scheduled, ms of the first of them
--         or '', how many stand in lines, how many periodic entries there are, control as field, value …}
-- Uses    clock, deadline_of, waiting, whole
local now, now_us = clock()
local lanes, oldest = {}, {}
for i = 5, 9 do
  lanes[#lanes + 1] = waiting(KEYS[i], KEYS[3])
  local head = redis.call('LINDEX', KEYS[i], 0)
  local ms = head and tonumber(string.match(head, '^...|[^|]+|[%d.]+|(%d+)|') or string.match(head, '^#[^|]+|%d+|%d+|(%d+)|'))
  oldest[#oldest + 1] = ms and whole(ms) or ''
end
local stored = redis.call('XLEN', KEYS[4])
for i = 18, #KEYS do stored = stored + redis.call('XLEN', KEYS[i]) end
local lease = redis.call('GET', KEYS[2])
if lease and not deadline_of(KEYS[1], string.match(lease, '^[^|]+')) then lease = false end
local REMOVED = 17 -- a removed entry is only its revision
local entries, first = 0, redis.call('ZRANGE', KEYS[14], 0, 0, 'WITHSCORES')[2]
for _, entry in ipairs(redis.call('HKEYS', KEYS[16])) do
  if redis.call('HSTRLEN', KEYS[16], entry) > REMOVED then entries = entries + 1 end
end
if first == 'inf' then first = nil end
return {whole(now), lease or '', redis.call('HGETALL', KEYS[3]), lanes,
  oldest, stored, redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'),
  redis.call('SCARD', KEYS[10]), redis.call('HGETALL', KEYS[11]), redis.call('GET', KEYS[12]) or '0',
  redis.call('GET', KEYS[13]) or '0', whole(now_us), redis.call('ZCARD', KEYS[14]), first and whole(first) or '',
  redis.call('ZCARD', KEYS[15]), entries, redis.call('HGETALL', KEYS[17])}
