#!lua flags=allow-oom
-- Puts back messages of a dead member: a chunk from the tails of the named blocks, in order, each with attempt +
-- 1.
-- KEYS[1…18] as in jobs.lua
-- KEYS[19] orphans SET     KEYS[20] blocks:<dead> HASH   KEYS[21] errors STREAM   KEYS[22] ledger STREAM
-- KEYS[23] config HASH     KEYS[24] unread HASH          KEYS[25] notices STREAM
-- KEYS[26…] block:<dead>:<n> LIST and pack:<dead>:<n> STRING, in pairs
-- ARGV    me, dead, chunk, bytes_max, then the numbers n of the pairs, falling
-- Returns {'ok', returned, failed, number of blocks emptied}, 'already' (not an orphan), 'gone'
-- Uses    clock, deadline_of, enter, jobs, lay_open, note
local me, dead = ARGV[1], ARGV[2]
if not deadline_of(KEYS[1], me) then return 'gone' end
if redis.call('SISMEMBER', KEYS[19], dead) == 0 or deadline_of(KEYS[1], dead) then return 'already' end
local config = redis.call('HMGET', KEYS[23], 'attempts_max', 'ledger')
local attempts_max, keep = config[1] or '5', config[2] or '0'
local returned, failed, emptied = 0, 0, 0

local function fail(message, id, attempt, cause, reason)
  redis.call('XADD', KEYS[21], '*', 'm', finish(message, 'failed', ''),
    'e', cjson.encode({v = 1, cause = cause, member = dead, label = '', reason = reason}))
  enter(KEYS[22], keep, id, 'failed', dead, attempt)
  redis.call('HDEL', KEYS[24], id)
  failed = failed + 1
end

local moved, bytes = 0, 0
for i = 26, #KEYS, 2 do
  local n = ARGV[5 + (i - 26) / 2]
  local block = redis.call('HGET', KEYS[20], n)
  local before = returned + failed
  if moved >= tonumber(ARGV[3]) then break end
  if block then lay_open(KEYS[i + 1], KEYS[i]) end
  local message = block and redis.call('LINDEX', KEYS[i], -1)
  while message and moved < tonumber(ARGV[3]) and (moved == 0 or bytes + #message <= tonumber(ARGV[4])) do
    if message ~= '' and message ~= '-' then
      -- Only runs that ended with the death of a worker count: a message that was retried five times is not poison.
      local lane, _, id, a, r, s, at, died, w = read(message)
      if not lane then
        fail(message, 'unreadable', '1', 'decode', 'not a message of this version')
      elseif died + 1 >= tonumber(attempts_max) then
        fail(message, id, whole(a), 'attempts', string.format(died + 1 == a and 'its worker died in attempt %.0f of %s'
          or 'its worker died in attempt %.0f: %s workers died over it', a, attempts_max))
      else
        redis.call('LPUSH', KEYS[4], with_tries(message, id, a + 1, r, s, at, w))
        returned = returned + 1
      end
    end
    redis.call('LTRIM', KEYS[i], 0, -2)
    moved, bytes = moved + 1, bytes + #message
    message = redis.call('LINDEX', KEYS[i], -1)
  end
  if message then
    if returned + failed > before then
      local left, stamp = string.match(block, '^(%d+):(.+)$')
      redis.call('HSET', KEYS[20], n, string.format('%.0f:%s', left - (returned + failed - before), stamp))
    end
    break
  end
  if block then redis.call('HDEL', KEYS[20], n) end
  emptied = emptied + 1
end
if returned + failed > 0 then
  redis.call('HINCRBY', KEYS[2], 'claimed', whole(-(returned + failed)))
  redis.call('HINCRBY', KEYS[2], 'returned', returned)
  redis.call('HINCRBY', KEYS[2], 'failed', failed)
  note(KEYS[25], clock(), 'adopted', me, 'whose', dead, 'returned', returned, 'failed', failed)
end
if returned > 0 then wake_one() end
return {'ok', returned, failed, emptied}
