#!lua
-- Adds the generator's messages, numbered from..from+n-1 within its term: all of them or none.
-- KEYS[1] members ZSET          KEYS[2] lease STRING `member|term`  KEYS[3] last STRING `term-seq`
-- KEYS[4] lane:generated LIST   KEYS[5] counts HASH                 KEYS[6] wake LIST
-- ARGV    me, term, from, lease_ms, backlog_max, then the envelopes
-- Returns 'ok', 'already' (a repeat), 'gone', 'fenced' (another term leads), 'full' (backlog bound reached),
--         'gap' (numbers are missing: Redis lost data)
-- Why no allow-oom: a full Redis must refuse new work, and only that.
local me, term, from = ARGV[1], ARGV[2], tonumber(ARGV[3])
local n = #ARGV - 5
if not redis.call('ZSCORE', KEYS[1], me) then return 'gone' end
if redis.call('GET', KEYS[2]) ~= me .. '|' .. term then return 'fenced' end
local last_term, last = string.match(redis.call('GET', KEYS[3]) or '', '^(%d+)-(%d+)$')
if last_term ~= term then return 'gap' end
last = tonumber(last)
if from + n - 1 <= last then return 'already' end
if from ~= last + 1 then return 'gap' end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', now + ARGV[4]), me)
if redis.call('LLEN', KEYS[4]) + n > tonumber(ARGV[5]) then return 'full' end
for i = 6, #ARGV, 1000 do
  redis.call('RPUSH', KEYS[4], unpack(ARGV, i, math.min(i + 999, #ARGV)))
end
redis.call('SET', KEYS[3], string.format('%s-%.0f', term, from + n - 1))
redis.call('HINCRBY', KEYS[5], 'generated', n)
redis.call('HSET', KEYS[5], 'pushed_ms', string.format('%.0f', now))
if redis.call('EXISTS', KEYS[6]) == 0 then redis.call('RPUSH', KEYS[6], '1') end
return 'ok'
