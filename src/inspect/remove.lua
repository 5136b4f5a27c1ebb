#!lua flags=allow-oom
-- Removes keys of a fleet, only while nobody is in it, and keeps everybody out of it until the last of them is gone.
-- KEYS[1] members ZSET   KEYS[2] config HASH   KEYS[3…] the keys to remove
-- ARGV    the protocol that says that it is being removed; '1' if these are the last: then config goes, too
-- Returns {'ok', how many were removed}, {'busy', how many members are in it} (nothing was removed)
-- Why the protocol: somebody who joined, or sent, between two calls would find half a fleet.
local here = redis.call('ZCARD', KEYS[1])
if here > 0 then return {'busy', here} end
if ARGV[2] == '1' then return {'ok', redis.call('UNLINK', KEYS[2])} end
redis.call('HSET', KEYS[2], 'protocol', ARGV[1])
local removed = 0
for i = 3, #KEYS do
  if KEYS[i] ~= KEYS[2] then removed = removed + redis.call('UNLINK', KEYS[i]) end
end
return {'ok', removed}
