#!lua
-- Adds messages that anybody sent, numbered from..from+n-1 by their sender: all of them or none, once.
-- KEYS[1] sent:<sender> STRING `last` or `last|id of the duplicate`, with a time to live
-- KEYS[2] lane:<name> LIST   KEYS[3] counts HASH   KEYS[4] wake LIST
-- KEYS[5] dedup:<key> STRING, only for one message sent under a key: the id that was sent under it
-- ARGV    sender, from, made_ms (when the call was put together, Redis time), backlog_max, dedup_ms, then the envelopes
-- Returns 'ok', 'already' (a repeat), {'duplicate', id} (sent under this key before), 'full' (backlog bound reached),
--         'gap' (numbers are missing: the sender slept for long, or Redis lost data), 'late' (made too long ago)
-- Why late: a copy that arrives after `sent` has expired could not be told from a new message. Every copy of a late
-- call is late, so its sender may number the same messages again.
local from, made = tonumber(ARGV[2]), tonumber(ARGV[3])
local n = #ARGV - 5
local SENT_MS, LATE_MS = 3600000, 600000
local seen = redis.call('GET', KEYS[1])
local last, duplicate = string.match(seen or '0', '^(%d+)|?(.*)$')
last = tonumber(last)
if from + n - 1 <= last then
  if from + n - 1 == last and duplicate ~= '' then return {'duplicate', duplicate} end
  return 'already'
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if now > made + LATE_MS then return 'late' end
if from ~= last + 1 then return 'gap' end
local upto = string.format('%.0f', from + n - 1)
if KEYS[5] then
  local id = redis.call('GET', KEYS[5])
  if id then
    redis.call('SET', KEYS[1], upto .. '|' .. id, 'PX', SENT_MS)
    return {'duplicate', id}
  end
end
if redis.call('LLEN', KEYS[2]) + n > tonumber(ARGV[4]) then return 'full' end
for i = 6, #ARGV, 1000 do
  redis.call('RPUSH', KEYS[2], unpack(ARGV, i, math.min(i + 999, #ARGV)))
end
redis.call('SET', KEYS[1], upto, 'PX', SENT_MS)
if KEYS[5] then redis.call('SET', KEYS[5], 's' .. ARGV[1] .. '-' .. upto, 'PX', ARGV[5]) end
redis.call('HINCRBY', KEYS[3], 'sent', n)
if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('RPUSH', KEYS[4], '1') end
return 'ok'
