#!lua flags=allow-oom
-- Lists a server with the steps that the fleet has there, before the caller takes any.
-- KEYS[1] counts HASH      KEYS[2] servers LIST    KEYS[3] notices STREAM   KEYS[4] config HASH
-- ARGV    the server, protocol
-- Returns 'ok', or 'other': there is no fleet with this protocol
-- Uses    clock, enlist, steps_of
if redis.call('HGET', KEYS[4], 'protocol') ~= ARGV[2] then return 'other' end
local now = clock()
enlist(KEYS[2], KEYS[3], ARGV[1], steps_of(KEYS[1]), now, '')
return 'ok'
