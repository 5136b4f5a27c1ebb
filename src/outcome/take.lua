#!lua flags=allow-oom
-- Moves all stored errors into the caller's own drain, or inherits the drain of a taker that died.
-- KEYS[1] errors STREAM   KEYS[2] drains HASH token -> `owner|deadline_ms`
-- KEYS[3] drain:<token>   KEYS[4] drain:<heir of> STREAM (only to inherit)
-- ARGV    token, owner, life_ms, token to inherit from ('' = take from the error store)
-- Returns 'ok', 'same' (the drain is the caller's already: a repeat), 'empty' (nothing to take),
--         'alive' (its taker still refreshes it)
-- Uses    clock
-- Why a deadline is cut if it is later than any taker sets it: the clock of Redis was set back, and a dead taker
-- would count as alive until the old time comes again.
-- Why same: RENAME would replace the errors that the caller has not printed yet with newer ones.
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return 'same' end
local now = clock()
local from = KEYS[1]
if ARGV[4] ~= '' then
  local held = redis.call('HGET', KEYS[2], ARGV[4])
  if not held then return 'empty' end
  local taker, ends = string.match(held, '^(.*)|(%d+)$')
  ends = tonumber(ends or 0) -- a value that no taker wrote has ended
  if ends > now then
    if ends - now > tonumber(ARGV[3]) then
      redis.call('HSET', KEYS[2], ARGV[4], string.format('%s|%.0f', taker, now + ARGV[3]))
    end
    return 'alive'
  end
  from = KEYS[4]
  redis.call('HDEL', KEYS[2], ARGV[4])
end
-- A stream that was emptied still exists, and an empty drain would never end.
if redis.call('XLEN', from) == 0 then
  if ARGV[4] ~= '' then redis.call('DEL', from) end
  return 'empty'
end
redis.call('RENAME', from, KEYS[3])
redis.call('HSET', KEYS[2], ARGV[1], string.format('%s|%.0f', ARGV[2], now + ARGV[3]))
return 'ok'
