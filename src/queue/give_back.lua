#!lua flags=allow-oom
-- Returns messages of the caller's block that were not started to the head of their lane. This is not an attempt.
-- Uses    clock, deadline_of, deaths, lay_open, refresh, wake, whole
-- KEYS[1] members ZSET  KEYS[2] blocks:<me> HASH   KEYS[3] counts HASH   KEYS[4] wake LIST
-- KEYS[5] lane:returned LIST   KEYS[6…9] further lanes   KEYS[10] block:<me>:<n> LIST
-- KEYS[11] pack:<me>:<n> STRING: the block, while no script has looked at its single messages
-- ARGV    me, n, stamp, lease_ms, the lanes' letters in the order of KEYS[6…9], then positions (0-based, rising)
-- Returns {'ok', given back}, 'already' (the block is closed), 'gone', 'gap' (Redis lost data)
local me, n = ARGV[1], ARGV[2]
if not deadline_of(KEYS[1], me) then return 'gone' end
refresh(KEYS[1], me, clock(), ARGV[4])
local block = redis.call('HGET', KEYS[2], n)
if not block then
  if tonumber(n) <= tonumber(redis.call('HGET', KEYS[2], 'hi') or '0') then return 'already' end
  return 'gap'
end
local left, stamp = string.match(block, '^(%d+):(.+)$')
if stamp ~= ARGV[3] then return 'gap' end
lay_open(KEYS[11], KEYS[10])
local moves = {}
for i = #ARGV, 6, -1 do
  local message = redis.call('LINDEX', KEYS[10], ARGV[i])
  if not message then return 'gap' end
  if message ~= '' and message ~= '-' then
    local letter, tries = string.match(message, '^.(.).|[^|]+|(%d[%d.]*)|')
    local at = letter and string.find(ARGV[5], letter, 1, true)
    -- A message over which workers died goes to the lane of returned messages, where it travels alone.
    local lane = (not at or deaths(tries) > 0) and KEYS[5] or KEYS[5 + at]
    moves[#moves + 1] = {lane, message, ARGV[i]}
  end
end
if #moves == 0 then return {'ok', 0} end
for _, move in ipairs(moves) do
  redis.call('LPUSH', move[1], move[2])
  redis.call('LSET', KEYS[10], move[3], '-')
end
left = left - #moves
if left == 0 then
  redis.call('DEL', KEYS[10])
  redis.call('HDEL', KEYS[2], n)
else
  redis.call('HSET', KEYS[2], n, string.format('%.0f:%s', left, stamp))
end
redis.call('HINCRBY', KEYS[3], 'claimed', whole(-#moves))
wake(KEYS[4])
return {'ok', #moves}
