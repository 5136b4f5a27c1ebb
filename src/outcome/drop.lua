#!lua flags=allow-oom
-- Removes failed messages for good, and counts them.
-- KEYS[1] errors STREAM   KEYS[2] counts HASH
-- ARGV    positions in the error store
-- Returns {'ok', how many were removed: a record that no longer exists is not counted}
-- Uses    denied
-- Why the counter is checked first: Lua has no rollback, and a removed record must be counted.
redis.call('HGET', KEYS[2], 'dropped')
local refusal = denied({{'HINCRBY', KEYS[2], 'dropped', '1'}})
if refusal then return refusal end
local dropped = redis.call('XDEL', KEYS[1], unpack(ARGV))
if dropped > 0 then redis.call('HINCRBY', KEYS[2], 'dropped', dropped) end
return {'ok', dropped}
