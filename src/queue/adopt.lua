#!lua flags=allow-oom
-- Puts back what a dead member held: a chunk from the tail of its block n, attempt + 1, in order.
-- KEYS[1] members ZSET     KEYS[2] orphans SET     KEYS[3] blocks:<dead> HASH  KEYS[4] block:<dead>:<n> LIST
-- KEYS[5] lane:returned    KEYS[6] errors STREAM   KEYS[7] counts HASH         KEYS[8] wake LIST
-- KEYS[9] ledger STREAM    KEYS[10] locks:<dead> HASH, emptied before
-- ARGV    me, dead, n (0 = it has no block), attempts_max, chunk, ledger (0 off, -1 all, else its cap)
-- Returns {'ok', returned, failed, 1 if the orphan is done with}, 'already' (not an orphan), 'gone'
local me, dead, n = ARGV[1], ARGV[2], ARGV[3]
if not redis.call('ZSCORE', KEYS[1], me) then return 'gone' end
if redis.call('SISMEMBER', KEYS[2], dead) == 0 or redis.call('ZSCORE', KEYS[1], dead) then return 'already' end
local block = redis.call('HGET', KEYS[3], n)
local returned, failed = 0, 0
if block then
  local left, stamp = string.match(block, '^(%d+):(.+)$')
  local chunk = redis.call('LRANGE', KEYS[4], '-' .. ARGV[5], -1)
  for i = #chunk, 1, -1 do
    local message = chunk[i]
    if message ~= '' and message ~= '-' then
      local head, id, attempt, rest = string.match(message, '^(...)|([^|]+)|(%d+)(|.*)$')
      if not head or tonumber(attempt) >= tonumber(ARGV[4]) then
        local why = {v = 1, cause = 'attempts', member = dead, label = ''}
        if head then
          why.reason = 'its worker died in attempt ' .. attempt .. ' of ' .. ARGV[4]
        else
          why.cause, why.reason, id, attempt = 'decode', 'not a message of this version', 'unreadable', '1'
        end
        why = cjson.encode(why)
        redis.call('XADD', KEYS[6], '*', 'm', message, 'e', why)
        if ARGV[6] == '-1' then
          redis.call('XADD', KEYS[9], '*', 'id', id, 'outcome', 'failed', 'member', dead, 'attempt', attempt)
        elseif ARGV[6] ~= '0' then
          redis.call('XADD', KEYS[9], 'MAXLEN', '~', ARGV[6], '*',
            'id', id, 'outcome', 'failed', 'member', dead, 'attempt', attempt)
        end
        failed = failed + 1
      else
        redis.call('LPUSH', KEYS[5], string.format('%s|%s|%.0f', head, id, attempt + 1) .. rest)
        returned = returned + 1
      end
    end
  end
  redis.call('LTRIM', KEYS[4], 0, -1 - #chunk)
  if redis.call('EXISTS', KEYS[4]) == 0 then
    redis.call('HDEL', KEYS[3], n)
  else
    redis.call('HSET', KEYS[3], n, string.format('%.0f:%s', left - returned - failed, stamp))
  end
  if returned + failed > 0 then
    redis.call('HINCRBY', KEYS[7], 'claimed', string.format('%.0f', -(returned + failed)))
    redis.call('HINCRBY', KEYS[7], 'returned', returned)
    redis.call('HINCRBY', KEYS[7], 'failed', failed)
  end
  if returned > 0 and redis.call('EXISTS', KEYS[8]) == 0 then redis.call('RPUSH', KEYS[8], '1') end
end
local done = 0
if redis.call('HLEN', KEYS[3]) - redis.call('HEXISTS', KEYS[3], 'hi') == 0 and redis.call('EXISTS', KEYS[10]) == 0 then
  redis.call('DEL', KEYS[3])
  redis.call('SREM', KEYS[2], dead)
  done = 1
end
return {'ok', returned, failed, done}
