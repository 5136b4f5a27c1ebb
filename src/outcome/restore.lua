#!lua flags=allow-oom
-- Puts a drain back into the error store, in chunks: the caller's own drain, or that of a taker that died.
-- KEYS[1] errors STREAM   KEYS[2] drains HASH token -> `owner|deadline_ms`   KEYS[3] drain:<token> STREAM
-- ARGV    token, '1' if it is the caller's own, chunk, life_ms (a later deadline is cut to that: see take),
--         bytes_max
-- Returns {'ok', records left}, 'alive' (its taker still refreshes it), 'gone' (there is no such drain)
-- Uses    clock
-- Why a field `t`: a record that joins others gets a new position. The old position said when it failed; `t`
-- keeps that.
local held = redis.call('HGET', KEYS[2], ARGV[1])
if not held then return 'gone' end
local now = clock()
local taker, ends = string.match(held, '^(.*)|(%d+)$')
ends = tonumber(ends or 0) -- a value that no taker wrote has ended
if ARGV[2] ~= '1' and ends > now then
  if ends - now > tonumber(ARGV[4]) then
    redis.call('HSET', KEYS[2], ARGV[1], string.format('%s|%.0f', taker, now + ARGV[4]))
  end
  return 'alive'
end
local left = 0
if redis.call('EXISTS', KEYS[1]) == 0 and redis.call('EXISTS', KEYS[3]) == 1 then
  redis.call('RENAME', KEYS[3], KEYS[1])
else
  local bytes = 0
  for moved = 0, ARGV[3] - 1 do
    local entry = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)[1]
    if not entry then break end
    local fields, timed = entry[2], false
    for i = 1, #fields, 2 do
      timed = timed or fields[i] == 't'
      bytes = bytes + #fields[i] + #fields[i + 1]
    end
    if moved > 0 and bytes > tonumber(ARGV[5]) then break end
    if not timed then
      fields[#fields + 1] = 't'
      fields[#fields + 1] = string.match(entry[1], '^%d+')
    end
    redis.call('XADD', KEYS[1], '*', unpack(fields))
    redis.call('XDEL', KEYS[3], entry[1])
  end
  left = redis.call('XLEN', KEYS[3])
end
if left == 0 then
  redis.call('DEL', KEYS[3])
  redis.call('HDEL', KEYS[2], ARGV[1])
end
return {'ok', left}
