#!lua flags=allow-oom
-- Puts back messages of a dead member: a chunk from the tails of the named blocks, in order, each with attempt +
-- 1.
-- KEYS[1] members ZSET     KEYS[2] orphans SET     KEYS[3] blocks:<dead> HASH  KEYS[4] lane:returned LIST
-- KEYS[5] errors STREAM    KEYS[6] counts HASH     KEYS[7] wake LIST           KEYS[8] ledger STREAM
-- KEYS[9] config HASH      KEYS[10] unread HASH    KEYS[11…] block:<dead>:<n> LIST
--         and pack:<dead>:<n> STRING, in pairs
-- ARGV    me, dead, chunk, bytes_max, then the numbers n of the pairs, falling
-- Returns {'ok', returned, failed, number of blocks emptied}, 'already' (not an orphan), 'gone'
-- Uses    deadline_of, enter, lay_open, wake, whole
local me, dead = ARGV[1], ARGV[2]
if not deadline_of(KEYS[1], me) then return 'gone' end
if redis.call('SISMEMBER', KEYS[2], dead) == 0 or deadline_of(KEYS[1], dead) then return 'already' end
local config = redis.call('HMGET', KEYS[9], 'attempts_max', 'ledger')
local attempts_max, keep = config[1] or '5', config[2] or '0'
local returned, failed, emptied = 0, 0, 0

local function fail(message, id, attempt, cause, reason)
  redis.call('XADD', KEYS[5], '*', 'm', message,
    'e', cjson.encode({v = 1, cause = cause, member = dead, label = '', reason = reason}))
  enter(KEYS[8], keep, id, 'failed', dead, attempt)
  redis.call('HDEL', KEYS[10], id)
  failed = failed + 1
end

local moved, bytes = 0, 0
for i = 11, #KEYS, 2 do
  local n = ARGV[5 + (i - 11) / 2]
  local block = redis.call('HGET', KEYS[3], n)
  local before = returned + failed
  if moved >= tonumber(ARGV[3]) then break end
  if block then lay_open(KEYS[i + 1], KEYS[i]) end
  local message = block and redis.call('LINDEX', KEYS[i], -1)
  while message and moved < tonumber(ARGV[3]) and (moved == 0 or bytes + #message <= tonumber(ARGV[4])) do
    if message ~= '' and message ~= '-' then
      local head, id, attempt, rest = string.match(message, '^(...)|([^|]+)|(%d+)(|.*)$')
      if not head then
        fail(message, 'unreadable', '1', 'decode', 'not a message of this version')
      elseif tonumber(attempt) >= tonumber(attempts_max) then
        fail(message, id, attempt, 'attempts', 'its worker died in attempt ' .. attempt .. ' of ' .. attempts_max)
      else
        redis.call('LPUSH', KEYS[4], string.format('%s|%s|%.0f', head, id, attempt + 1) .. rest)
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
      redis.call('HSET', KEYS[3], n, string.format('%.0f:%s', left - (returned + failed - before), stamp))
    end
    break
  end
  if block then redis.call('HDEL', KEYS[3], n) end
  emptied = emptied + 1
end
if returned + failed > 0 then
  redis.call('HINCRBY', KEYS[6], 'claimed', whole(-(returned + failed)))
  redis.call('HINCRBY', KEYS[6], 'returned', returned)
  redis.call('HINCRBY', KEYS[6], 'failed', failed)
end
if returned > 0 then wake(KEYS[7]) end
return {'ok', returned, failed, emptied}
