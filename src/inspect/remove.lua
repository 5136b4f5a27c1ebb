#!lua flags=allow-oom
-- Removes keys of a fleet, only while nobody is in it, and keeps everybody out until the last key is gone.
-- KEYS[1] members ZSET   KEYS[2] config HASH   KEYS[3…] the keys to remove
-- ARGV    what: 'begin', 'piece' or 'last'; the name of this removal; to begin: the protocol of a fleet that is being
--         removed, `born` as the caller saw it ('' = none), and the ms until which this call counts
-- Returns {'ok', how many were removed} ({'ok', the name of the removal} to begin: that of an earlier one that was not
--         finished, if there is one), {'busy', number of members}, 'over' (this removal is finished, or never
-- began)
-- Uses    clock
-- Why the protocol: a process that joined or sent between two calls would find half a fleet.
-- Why a name, and an end to begin with: a late copy must not remove a fleet that was created since.
local here = redis.call('ZCARD', KEYS[1])
if here > 0 then return {'busy', here} end
local config = redis.call('HMGET', KEYS[2], 'removing', 'born')
if ARGV[1] == 'begin' then
  if config[1] then return {'ok', config[1]} end
  if (config[2] or '') ~= ARGV[4] or clock() > tonumber(ARGV[5]) then return 'over' end
  redis.call('HSET', KEYS[2], 'protocol', ARGV[3], 'removing', ARGV[2])
  return {'ok', ARGV[2]}
end
if config[1] ~= ARGV[2] then return 'over' end
if ARGV[1] == 'last' then return {'ok', redis.call('UNLINK', KEYS[2])} end
local removed = 0
for i = 3, #KEYS do
  if KEYS[i] ~= KEYS[2] then removed = removed + redis.call('UNLINK', KEYS[i]) end
end
return {'ok', removed}
