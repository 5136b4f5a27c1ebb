#!lua flags=allow-oom
-- Removes failed messages for good, and counts them.
-- KEYS[1] errors STREAM   KEYS[2] counts HASH   KEYS[3] notices STREAM
-- ARGV    who asks, then positions in the error store
-- Returns {'ok', how many were removed: a record that no longer exists is not counted}
-- Uses    clock, denied, note_more
-- Why the counter is checked first: Lua has no rollback, and a removed record must be counted.
redis.call('HGET', KEYS[2], 'dropped')
local refusal = denied({{'HINCRBY', KEYS[2], 'dropped', '1'}})
if refusal then return refusal end
local dropped = redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
if dropped > 0 then
  redis.call('HINCRBY', KEYS[2], 'dropped', dropped)
  note_more(KEYS[3], clock(), 'errors-dropped', ARGV[1], dropped)
end
return {'ok', dropped}
