#!lua
-- Enrolls a sender under a new name, before it sends anything.
-- KEYS[1] sent:<sender> STRING, with a time to live
-- ARGV    none
-- Returns {'ok', now_ms}
-- Uses    clock, whole
-- Why it is sent once per name: a late copy could enroll a forgotten name again, and then a late copy of a batch
-- would be accepted.
redis.call('SET', KEYS[1], '0', 'NX', 'PX', 3600000)
return {'ok', whole((clock()))}
