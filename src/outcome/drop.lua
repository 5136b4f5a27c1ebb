#!lua flags=allow-oom
-- Removes failed messages for good, and counts them.
-- KEYS[1] errors STREAM   KEYS[2] counts HASH
-- ARGV    positions in the error store
-- Returns {'ok', how many were removed: what is not there any more is not counted}
-- Uses    denied
-- Why the counter is checked first: Lua has no rollback, and what is gone must be counted.
redis.call('HGET', KEYS[2], 'dropped')
local refusal = denied({{'HINCRBY', KEYS[2], 'dropped', '1'}})
if refusal then return refusal end
local dropped = redis.call('XDEL', KEYS[1], unpack(ARGV))
if dropped > 0 then redis.call('HINCRBY', KEYS[2], 'dropped', dropped) end
return {'ok', dropped}
