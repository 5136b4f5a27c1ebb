#!lua
-- Enrolls a sender under a new name, before it sends anything.
-- KEYS[1] sent:<sender> STRING, with a time to live
-- KEYS[2] sent:<sender>:request STRING `what|base`, with a time to live, only for a name that belongs to a key: what is sent
--         under it, and its first number
-- ARGV    remember_ms: for how long the name is known without a call; what is sent, if the name belongs to a key
-- Returns {'ok', now_ms, base (its first number)}, 'other' (something else is sent under this key)
-- Uses    clock, whole
-- Why it is sent once per name: a late copy could enroll a forgotten name again, and then a late copy of a batch
-- would be accepted.
-- Why the numbers of a key begin at the time of its first use: what was sent under it before it was forgotten may still wait,
-- and must not get a second message with its id. A batch that is repeated late has the numbers of before, and is refused.
local now = clock()
local base = 1
if KEYS[2] then
  local what, first = string.match(redis.call('GET', KEYS[2]) or '', '^(.*)|(%d+)$')
  local last = tonumber(string.match(redis.call('GET', KEYS[1]) or '', '^%d+'))
  if what and last then
    if what ~= ARGV[2] then return {'other'} end
    base = tonumber(first)
    redis.call('PEXPIRE', KEYS[1], ARGV[1])
  else
    base = math.max(now, (last or 0) + 1, (tonumber(first) or 0) + 1000000)
    redis.call('SET', KEYS[1], whole(base - 1), 'PX', ARGV[1])
  end
  redis.call('SET', KEYS[2], ARGV[2] .. '|' .. whole(base), 'PX', ARGV[1])
else
  redis.call('SET', KEYS[1], '0', 'NX', 'PX', ARGV[1])
end
return {'ok', whole(now), whole(base)}
