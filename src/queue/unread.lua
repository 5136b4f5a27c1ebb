#!lua flags=allow-oom
-- Gives back blocks whose messages the caller cannot read over its link, uncounted; what five workers could not
-- read is failed.
-- KEYS[1] members ZSET  KEYS[2] blocks:<me> HASH   KEYS[3] counts HASH   KEYS[4] wake LIST
-- KEYS[5] lane:returned LIST   KEYS[6…9] further lanes
-- KEYS[10] unread HASH, message id -> the members that could not read it   KEYS[11] errors STREAM
-- KEYS[12] ledger STREAM   KEYS[13] config HASH   KEYS[14…] block:<me>:<n> LIST, the blocks of one fetch
-- ARGV    me, n (the number of the first block), lease_ms, the lanes' letters in the order of KEYS[6…9],
--         workers_max (that many workers fail a message)
-- Returns {'ok', the caller's last number, then for each message: its id, 'back', 'again' (given back by this
--         worker before) or 'failed'}, 'gone'
-- Why all their numbers are used up: the fetch may still arrive, and must open nothing; and a late copy of this call
-- must not find a block that was opened since.
local me, n = ARGV[1], tonumber(ARGV[2])
if not redis.call('ZSCORE', KEYS[1], me) then return 'gone' end
local t = redis.call('TIME')
redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[3]), me)
local hi = math.max(tonumber(redis.call('HGET', KEYS[2], 'hi') or '0'), n + #KEYS - 14)
local ledger = redis.call('HGET', KEYS[13], 'ledger') or '0'
local reply, back, failed = {'ok', string.format('%.0f', hi)}, 0, 0
redis.call('HSET', KEYS[2], 'hi', reply[2])
for i = #KEYS, 14, -1 do
  local number = string.format('%.0f', n + i - 14)
  local messages = redis.call('HEXISTS', KEYS[2], number) == 1 and redis.call('LRANGE', KEYS[i], 0, -1) or {}
  for at = #messages, 1, -1 do
    local message = messages[at]
    if message ~= '' and message ~= '-' then
      local letter, id, attempt = string.match(message, '^.(.).|([^|]+)|(%d+)|')
      id, attempt = id or 'unreadable', attempt or '1'
      local by = redis.call('HGET', KEYS[10], id) or ''
      local known = string.find(by, me, 1, true)
      if not known then by = by == '' and me or by .. ' ' .. me end
      local _, workers = string.gsub(by, '%S+', '')
      if workers >= tonumber(ARGV[5]) then
        redis.call('XADD', KEYS[11], '*', 'm', message, 'e', cjson.encode({v = 1, cause = 'unread', member = me, label = '',
          reason = workers .. ' workers could not read its ' .. #message .. ' bytes in time'}))
        if ledger == '-1' then
          redis.call('XADD', KEYS[12], '*', 'id', id, 'outcome', 'failed', 'member', me, 'attempt', attempt)
        elseif ledger ~= '0' then
          redis.call('XADD', KEYS[12], 'MAXLEN', '~', ledger, '*',
            'id', id, 'outcome', 'failed', 'member', me, 'attempt', attempt)
        end
        redis.call('HDEL', KEYS[10], id)
        failed = failed + 1
      else
        local lane = letter and string.find(ARGV[4], letter, 1, true)
        redis.call('LPUSH', attempt == '1' and lane and KEYS[5 + lane] or KEYS[5], message)
        redis.call('HSET', KEYS[10], id, by)
        back = back + 1
      end
      reply[#reply + 1] = id
      reply[#reply + 1] = workers >= tonumber(ARGV[5]) and 'failed' or known and 'again' or 'back'
    end
  end
  redis.call('DEL', KEYS[i])
  redis.call('HDEL', KEYS[2], number)
end
if back + failed > 0 then
  redis.call('HINCRBY', KEYS[3], 'claimed', string.format('%.0f', -(back + failed)))
  if failed > 0 then redis.call('HINCRBY', KEYS[3], 'failed', failed) end
end
if back > 0 and redis.call('EXISTS', KEYS[4]) == 0 then redis.call('RPUSH', KEYS[4], '1') end
return reply
