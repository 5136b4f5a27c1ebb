#!lua flags=allow-oom
-- Lists a server with the steps that the fleet has there, before the caller takes any.
-- KEYS[1] counts HASH      KEYS[2] servers LIST    KEYS[3] notices STREAM
-- ARGV    the server
-- Returns 'ok'
-- Uses    clock, enlist, steps_of
local now = clock()
enlist(KEYS[2], KEYS[3], ARGV[1], steps_of(KEYS[1]), now, '')
return 'ok'
