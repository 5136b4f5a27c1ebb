#!lua flags=allow-oom
-- Gives an order to the fleet, or takes it back: to pause, to drain a member, to step down.
-- KEYS[1] control HASH   KEYS[2] members ZSET   KEYS[3] ctl channel   KEYS[4] notices STREAM
-- ARGV    field, value ('now' = since now, '' = take the order back, else as it is), value as the caller knows it
--         ('' = there is none), until_ms, id of the member that must be here ('' = none), who asks
-- Returns {'ok', value}, {'same', value} (it is so already), {'moved', value} (another one: nothing changed),
--         'late' (a copy that was on its way for too long), 'absent' (that member is not here)
-- Uses    clock, deadline_of, note, tell_ordered, whole
-- Why until_ms: a late copy of "pause" must not pause again what was resumed since.
local field, wanted = ARGV[1], ARGV[2]
local now = clock()
local value = redis.call('HGET', KEYS[1], field) or ''
local is_so = wanted == value or (wanted == 'now' and value ~= '')
if not is_so and now > tonumber(ARGV[4]) then return 'late' end
if ARGV[5] ~= '' and not deadline_of(KEYS[2], ARGV[5]) then return 'absent' end
if is_so then return {'same', value} end
if value ~= ARGV[3] then return {'moved', value} end
if wanted == 'now' then wanted = whole(now) end
if wanted == '' then redis.call('HDEL', KEYS[1], field) else redis.call('HSET', KEYS[1], field, wanted) end
note(KEYS[4], now, wanted ~= '' and 'ordered' or 'order-ended', ARGV[5], 'order', field, 'by', ARGV[6])
tell_ordered(KEYS[3])
return {'ok', wanted}
