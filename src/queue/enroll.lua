#!lua
-- Enrolls a sender under a new name, before it sends anything.
-- KEYS[1] sent:<sender> STRING, with a time to live
-- KEYS[2] sent:<sender>:request STRING, with a time to live, only for a name that belongs to a key: what is sent under it
-- ARGV    remember_ms: for how long the name is known without a call; what is sent, if the name belongs to a key
-- Returns {'ok', now_ms}, 'other' (something else is sent under this key)
-- Uses    clock, whole
-- Why it is sent once per name: a late copy could enroll a forgotten name again, and then a late copy of a batch
-- would be accepted.
if KEYS[2] then
  local known = redis.call('GET', KEYS[2])
  if known and known ~= ARGV[2] then return {'other'} end
  -- It is remembered for longer than the numbers, so they never belong to something else.
  redis.call('SET', KEYS[2], ARGV[2], 'PX', whole(2 * ARGV[1]))
end
redis.call('SET', KEYS[1], '0', 'NX', 'PX', ARGV[1])
return {'ok', whole((clock()))}
