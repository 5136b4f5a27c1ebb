#!lua flags=allow-oom
-- Takes the lease if nobody valid holds it, always under a new term.
-- KEYS[1] members ZSET  KEYS[2] lease STRING `member|term`  KEYS[3] term STRING  KEYS[4] last STRING `term-seq`
-- KEYS[5] ctl channel   KEYS[6] counts HASH
-- ARGV    me, lease_ms
-- Returns {'won', term, now_ms, generated so far, ms of the last push}, {'held', lease, holder's ms left}, 'gone'
-- Why a new term even when the lease is mine: `last` starts again, so a late copy of a push numbered
-- under the old term would otherwise be accepted a second time.
local me = ARGV[1]
if not redis.call('ZSCORE', KEYS[1], me) then return 'gone' end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local lease = redis.call('GET', KEYS[2])
if lease then
  local holder = string.match(lease, '^[^|]+')
  local deadline = holder ~= me and redis.call('ZSCORE', KEYS[1], holder)
  if deadline then return {'held', lease, string.format('%.0f', deadline - now)} end
end
local stored = tonumber(redis.call('GET', KEYS[3]) or '0')
local term = string.format('%.0f', math.max(stored + 1, t[1] * 1000000 + t[2]))
redis.call('SET', KEYS[3], term)
redis.call('SET', KEYS[2], me .. '|' .. term)
redis.call('SET', KEYS[4], term .. '-0')
redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', now + ARGV[2]), me)
redis.call('SPUBLISH', KEYS[5], 'lead|' .. me .. '|' .. term)
return {'won', term, string.format('%.0f', now), redis.call('HGET', KEYS[6], 'generated') or '0',
  redis.call('HGET', KEYS[6], 'pushed_ms') or '0'}
