#!lua flags=allow-oom
-- Forgets a dead member if nothing is left of it: its messages are put back and its locks are freed.
-- KEYS[1] members ZSET   KEYS[2] orphans SET   KEYS[3] blocks:<dead> HASH   KEYS[4] locks:<dead> HASH
-- ARGV    me, dead
-- Returns 'ok', 'already' (not an orphan), 'left' (it still has blocks or locks: nothing changed), 'alive' (it is a
--         member: nothing changed), 'gone'
-- Uses    deadline_of
-- Why both are checked here: a lock or a block that nobody looks for any longer would stay for ever.
local me, dead = ARGV[1], ARGV[2]
if not deadline_of(KEYS[1], me) then return 'gone' end
if redis.call('SISMEMBER', KEYS[2], dead) == 0 then return 'already' end
if deadline_of(KEYS[1], dead) then return 'alive' end
if redis.call('HLEN', KEYS[3]) > redis.call('HEXISTS', KEYS[3], 'hi') then return 'left' end
if redis.call('EXISTS', KEYS[4]) == 1 then return 'left' end
redis.call('DEL', KEYS[3])
redis.call('SREM', KEYS[2], dead)
return 'ok'
