#!lua flags=allow-oom
-- Moves chosen records of the error store into a new drain of the caller's own.
-- KEYS[1] errors STREAM   KEYS[2] drains HASH token -> `owner|deadline_ms`   KEYS[3] drain:<token> STREAM
-- ARGV    token, owner, life_ms, bytes_max, then positions, rising
-- Returns {'ok', moved, number of positions that were read: the rest is for another call}
-- Uses    clock, whole
-- Why it is safe to repeat: a moved record is no longer in the error store. A late copy may find records that
-- were put back meanwhile. It moves them into a drain that nobody refreshes, so they are put back once more.
local moved, bytes, looked = 0, 0, 0
for i = 5, #ARGV do
  local entry = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  for _, field in ipairs(entry and entry[2] or {}) do bytes = bytes + #field end
  if moved > 0 and bytes > tonumber(ARGV[4]) then break end
  looked = looked + 1
  if entry then
    redis.call('XADD', KEYS[3], entry[1], unpack(entry[2]))
    redis.call('XDEL', KEYS[1], entry[1])
    moved = moved + 1
  end
end
if moved > 0 then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. '|' .. whole(clock() + ARGV[3]))
end
return {'ok', moved, looked}
