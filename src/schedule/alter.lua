#!lua flags=allow-oom
-- Changes the time of a scheduled message, lets it go now, or ends it.
-- KEYS[1…18] as in jobs.lua   KEYS[19] ledger STREAM   KEYS[20] config HASH   KEYS[21] notices STREAM
-- ARGV    id, its time as the caller knows it, what: 'cancel', 'now', `+ms` from now or ms (its new time), who asks
-- Returns {'ok', its new time, or the one it had}, {'moved', its time} (another one than the caller knows, or that of a
--         parent, which can only be cancelled: nothing changed), 'absent' (it does not wait for a time),
--         {'refused', why}
-- Uses    denied, enter, jobs, note_more
-- Why the known time: a late copy of "now" must not let go the next retry of the same message, too.
local id, known, what = ARGV[1], ARGV[2], ARGV[3]
local due, e = redis.call('ZSCORE', SCHEDULED, id), redis.call('HGET', LATER, id)
if not due or not e then return 'absent' end
if due ~= known then return {'moved', due} end
if what == 'cancel' then
  -- Check everything before the first write: Lua has no rollback.
  for _, count in ipairs(redis.call('HMGET', KEYS[2], 'failed', 'forgotten', 'cancelled')) do
    if not tonumber(count or '0') then return {'refused', 'a counter of the fleet is not a number'} end
  end
  redis.call('XLEN', KEYS[19])
  local refusal = denied({{'ZREM', SCHEDULED, ''}, {'HDEL', LATER, ''}, {'HINCRBY', KEYS[2], 'failed', '1'}})
  if refusal then return refusal end
  redis.call('ZREM', SCHEDULED, id)
  redis.call('HDEL', LATER, id)
  redis.call('HDEL', JOINS, id)
  finish(e, 'failed', 'cancelled')
  for _, count in ipairs({'failed', 'forgotten', 'cancelled'}) do redis.call('HINCRBY', KEYS[2], count, 1) end
  local keep, attempt = redis.call('HGET', KEYS[20], 'ledger') or '0', select(4, read(e))
  enter(KEYS[19], keep, id, 'failed', '', whole(attempt or 1))
  note_more(KEYS[21], NOW, 'scheduled-cancelled', ARGV[4], 1)
  return {'ok', due}
end
if redis.call('HEXISTS', JOINS, id) == 1 then return {'moved', due} end
if what == 'now' then
  local refusal = denied({{'ZREM', SCHEDULED, ''}, {'HDEL', LATER, ''}, {'RPUSH', KEYS[7], ''}})
  if refusal then return refusal end
  for i = 4, 8 do redis.call('LLEN', KEYS[i]) end
  start(e, id)
  note_more(KEYS[21], NOW, 'scheduled-started', ARGV[4], 1)
  return {'ok', due}
end
local new = string.sub(what, 1, 1) == '+' and NOW + string.sub(what, 2) or tonumber(what)
if not new then return {'refused', 'its new time is not a number'} end
if new > NOW + 366 * 86400000 then return {'refused', 'its new time is more than 366 days ahead'} end
redis.call('ZADD', SCHEDULED, 'XX', whole(math.max(new, 0)), id)
note_more(KEYS[21], NOW, 'scheduled-moved', ARGV[4], 1)
return {'ok', redis.call('ZSCORE', SCHEDULED, id)}
