#!lua
-- Enrolls a sender under a new name, before it sends anything.
-- KEYS[1] sent:<sender> STRING, with a time to live
-- ARGV    remember_ms: for how long the name is known without a call
-- Returns {'ok', now_ms}
-- Uses    clock, whole
-- Why it is sent once per name: a late copy could enroll a forgotten name again, and then a late copy of a batch
-- would be accepted.
redis.call('SET', KEYS[1], '0', 'NX', 'PX', ARGV[1])
return {'ok', whole((clock()))}
