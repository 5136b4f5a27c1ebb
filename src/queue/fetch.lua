#!lua flags=allow-oom
-- Moves waiting messages into block n of the caller: one message if it was returned, else up to max.
-- KEYS[1] members ZSET  KEYS[2] blocks:<me> HASH   KEYS[3] block:<me>:<n> LIST   KEYS[4] counts HASH
-- KEYS[5] wake LIST     KEYS[6] lane:returned LIST KEYS[7…] further lanes, in the order to serve them
-- ARGV    me, n, max (0 = only use up the number), lease_ms, bytes_max, held (',3,4,' blocks known to the caller)
-- Returns {'ok', stamp, envelopes …} (the same again for an open n), 'empty' (n is not used up), 'burnt',
--         'closed' (a late copy: takes nothing), 'gone', 'gap' or 'stray' (Redis lost data)
local me, n, max = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if not redis.call('ZSCORE', KEYS[1], me) then return 'gone' end
local hi, open = 0, false
local blocks = redis.call('HGETALL', KEYS[2])
for i = 1, #blocks, 2 do
  if blocks[i] == 'hi' then
    hi = tonumber(blocks[i + 1])
  elseif blocks[i] == ARGV[2] then
    open = blocks[i + 1]
  elseif not string.find(ARGV[6], ',' .. blocks[i] .. ',', 1, true) then
    return 'stray'
  end
end
if n > hi + 1 then return 'gap' end
local t = redis.call('TIME')
local function refresh()
  redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[4]), me)
end
if n <= hi then
  if not open then return 'closed' end
  refresh()
  local reply = redis.call('LRANGE', KEYS[3], 0, -1)
  table.insert(reply, 1, string.match(open, ':(.+)$'))
  table.insert(reply, 1, 'ok')
  return reply
end
refresh()
if max == 0 then
  redis.call('HSET', KEYS[2], 'hi', ARGV[2])
  return 'burnt'
end

local reply = {'ok', string.format('%.0f', t[1] * 1000000 + t[2])}
local bytes, left = 0, false
-- A message that was returned may be poison: it gets a block of its own.
local returned = redis.call('LPOP', KEYS[6])
if returned then
  reply[3] = returned
else
  for lane = 7, #KEYS do
    local room = max - (#reply - 2)
    if room <= 0 or bytes >= tonumber(ARGV[5]) then break end
    local got = redis.call('LPOP', KEYS[lane], room) or {}
    for i, message in ipairs(got) do
      bytes = bytes + #message
      if bytes > tonumber(ARGV[5]) and #reply > 2 then
        for back = #got, i, -1 do redis.call('LPUSH', KEYS[lane], got[back]) end
        break
      end
      reply[#reply + 1] = message
    end
  end
end
local count = #reply - 2
if count == 0 then return 'empty' end
for i = 3, #reply, 1000 do
  redis.call('RPUSH', KEYS[3], unpack(reply, i, math.min(i + 999, #reply)))
end
redis.call('HSET', KEYS[2], ARGV[2], string.format('%.0f:%s', count, reply[2]), 'hi', ARGV[2])
redis.call('HINCRBY', KEYS[4], 'claimed', count)
if redis.call('EXISTS', KEYS[5]) == 0 then
  for lane = 6, #KEYS do
    if redis.call('EXISTS', KEYS[lane]) == 1 then redis.call('RPUSH', KEYS[5], '1') break end
  end
end
return reply
