#!lua
-- Makes a sender known under a new name, before it sends anything.
-- KEYS[1] sent:<sender> STRING, with a time to live
-- ARGV    none
-- Returns {'ok', now_ms}
-- Uses    clock, whole
-- Why it is sent once per name: a copy that came after the name was forgotten would let a copy of a batch in.
redis.call('SET', KEYS[1], '0', 'NX', 'PX', 3600000)
return {'ok', whole((clock()))}
