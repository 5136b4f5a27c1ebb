#!lua flags=allow-oom
-- Refreshes the caller's session and tells it what it must know about the fleet.
-- KEYS[1] members ZSET     KEYS[2] lease STRING   KEYS[3] watch HASH     KEYS[4] orphans SET
-- KEYS[5] member:<id> HASH KEYS[6] blocks:<id> HASH KEYS[7] locks:<id> HASH
-- ARGV    me, lease_ms, held (',3,4,' the blocks it knows of, and its next number), hi (its last number),
--         ttl_ms, then field, value … for the member's hash
-- Returns 'gone', or {'ok', lease ('' = nobody leads), its holder's ms left, ms since the last look,
--         orphans, members, stray (1 = an open block the caller does not know of, or numbers were lost),
--         its locks as name, `token:attempt` …}
local me = ARGV[1]
if not redis.call('ZSCORE', KEYS[1], me) then return 'gone' end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', now + ARGV[2]), me)
local lease, left = redis.call('GET', KEYS[2]), 0
if lease then
  local deadline = redis.call('ZSCORE', KEYS[1], string.match(lease, '^[^|]+'))
  if deadline then left = deadline - now else lease = false end
end
local looked = redis.call('HGET', KEYS[3], 'looked')
local stray, hi = 0, 0
local blocks = redis.call('HGETALL', KEYS[6])
for i = 1, #blocks, 2 do
  if blocks[i] == 'hi' then
    hi = tonumber(blocks[i + 1])
  elseif not string.find(ARGV[3], ',' .. blocks[i] .. ',', 1, true) then
    stray = 1
  end
end
if hi < tonumber(ARGV[4]) then stray = 1 end
if #ARGV > 5 then
  redis.call('HSET', KEYS[5], unpack(ARGV, 6))
  redis.call('PEXPIRE', KEYS[5], ARGV[5])
end
return {'ok', lease or '', string.format('%.0f', left), string.format('%.0f', now - (looked or 0)),
  redis.call('SCARD', KEYS[4]), redis.call('ZCARD', KEYS[1]), stray,
  redis.call('HGETALL', KEYS[7])}
