#!lua flags=allow-oom
-- Writes something small, so that a WAIT behind it waits for everything that was done until now.
-- KEYS[1] mark STRING: any number, for a minute
-- ARGV    the number
-- Returns 'ok'
-- Why: since Redis 7.2, and in Valkey, WAIT waits for the last write of its own connection, and not for what others wrote.
-- Why allow-oom: a full Redis goes on with everything but new messages, and that must get to the replicas, too.
redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000)
return 'ok'
