#!lua flags=allow-oom
-- Deletes records whose bytes were written out. Keeps the drain alive, or deletes it when nothing is left.
-- KEYS[1] drains HASH token -> `owner|deadline_ms`   KEYS[2] drain:<token> STREAM   KEYS[3] counts HASH
-- ARGV    token, owner, life_ms, then ids
-- Returns {'ok', records left}, 'gone' (another taker inherited the drain: it prints the rest)
-- Uses    clock, whole
-- Why an empty stream stays for a minute: it says that all was confirmed here, to a copy of a call whose reply was lost. A drain
-- that was inherited or put back is no longer there.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  if redis.call('EXISTS', KEYS[2]) == 1 and redis.call('XLEN', KEYS[2]) == 0 then return {'ok', 0} end
  return 'gone'
end
local taken = 0
if #ARGV > 3 then taken = redis.call('XDEL', KEYS[2], unpack(ARGV, 4)) end
if taken > 0 then redis.call('HINCRBY', KEYS[3], 'taken', taken) end
local left = redis.call('XLEN', KEYS[2])
if left == 0 then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('PEXPIRE', KEYS[2], 60000)
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. '|' .. whole(clock() + ARGV[3]))
end
return {'ok', left}
