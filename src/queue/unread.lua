#!lua flags=allow-oom
-- Gives back blocks that the caller cannot read over its link. This is not an attempt. A message that came alone
-- is recorded: if several workers could not read it, it fails.
-- KEYS[1…18] as in jobs.lua   KEYS[19] blocks:<me> HASH
-- KEYS[20] unread HASH, message id -> how often it was given back, and the members that could not read it
-- KEYS[21] errors STREAM   KEYS[22] ledger STREAM   KEYS[23] config HASH
-- KEYS[24] pack:<me>:<n> STRING: block n, if its messages came as a pack
-- KEYS[25…] block:<me>:<n> LIST, the blocks of one fetch; behind them: pack:<me>:<n + 1> STRING and so on
-- ARGV    me, n (the number of the first block), lease_ms, workers_max, tries_max (that many workers, or tries of any
--         of them, fail a message)
-- Returns {'ok', the last number of this fetch, then for each message: its id and its result}, 'gone'; the results:
--         'many' (it came with others, so it may be readable: at the head of its lane again), 'back' (at the end
-- of
--         its lane, so that others come first), 'again' (the same, and this worker had reported it before),
-- 'failed'
-- Uses    deadline_of, enter, jobs, lay_open, refresh
-- Why all numbers of the fetch are used up: the fetch may still arrive and must open nothing, and a late copy of
-- this call must not find a block that was opened since.
local me, n = ARGV[1], tonumber(ARGV[2])
if not deadline_of(KEYS[1], me) then return 'gone' end
refresh(KEYS[1], me, NOW, ARGV[3])
local blocks = (#KEYS - 23) / 2
local last = n + blocks - 1
local hi = math.max(tonumber(redis.call('HGET', KEYS[19], 'hi') or '0'), last)
redis.call('HSET', KEYS[19], 'hi', whole(hi))
local found = {}
for i = 25, 24 + blocks do
  local number = whole(n + i - 25)
  if redis.call('HEXISTS', KEYS[19], number) == 1 then
    lay_open(KEYS[i == 25 and 24 or i + blocks - 1], KEYS[i])
    for _, message in ipairs(redis.call('LRANGE', KEYS[i], 0, -1)) do
      if message ~= '' and message ~= '-' then found[#found + 1] = message end
    end
  end
  redis.call('DEL', KEYS[i])
  redis.call('HDEL', KEYS[19], number)
end
local keep = redis.call('HGET', KEYS[23], 'ledger') or '0'
local reply, failed = {'ok', whole(last)}, 0

-- Gives back or fails a message that came alone. Returns its result.
local function alone(message, id, attempt, lane)
  local tries, by = string.match(redis.call('HGET', KEYS[20], id) or '0', '^(%d+) ?(.*)$')
  if not tries then tries, by = 0, '' end
  local known = string.find(by, me, 1, true)
  if not known then by = by == '' and me or by .. ' ' .. me end
  local _, workers = string.gsub(by, '%S+', '')
  tries = tries + 1
  if workers < tonumber(ARGV[4]) and tries < tonumber(ARGV[5]) then
    redis.call('RPUSH', lane, message)
    redis.call('HSET', KEYS[20], id, string.format('%.0f %s', tries, by))
    return known and 'again' or 'back'
  end
  redis.call('XADD', KEYS[21], '*', 'm', finish(message, 'failed', ''), 'e', cjson.encode({v = 1, cause = 'unread', member = me, label = '',
    reason = string.format('%.0f bytes, not read in time by %.0f workers in %.0f tries', #message, workers, tries)}))
  enter(KEYS[22], keep, id, 'failed', me, attempt)
  redis.call('HDEL', KEYS[20], id)
  failed = 1
  return 'failed'
end

for i = #found, 1, -1 do
  local letter, _, id, attempt, _, _, _, died = read(found[i])
  local lane = letter and target_of(letter, died) or KEYS[4]
  reply[#reply + 1] = id or 'unreadable'
  if #found == 1 then
    reply[#reply + 1] = alone(found[i], id or 'unreadable', whole(attempt or 1), lane)
  else
    redis.call('LPUSH', lane, found[i])
    reply[#reply + 1] = 'many'
  end
end
if #found > 0 then redis.call('HINCRBY', KEYS[2], 'claimed', whole(-#found)) end
if failed > 0 then redis.call('HINCRBY', KEYS[2], 'failed', failed) end
if #found > failed then wake_one() end
return reply
