#!lua flags=allow-oom
-- Gives up the lease the caller holds; changes nothing for anyone else.
-- KEYS[1] members ZSET   KEYS[2] lease STRING `member|term`   KEYS[3] ctl channel
-- ARGV    me, term
-- Returns 'ok', 'gone' (no session), 'fenced' (another term leads)
-- Why the term too: a late copy from a member's first term must not end its second.
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 'gone' end
if redis.call('GET', KEYS[2]) ~= ARGV[1] .. '|' .. ARGV[2] then return 'fenced' end
redis.call('DEL', KEYS[2])
redis.call('SPUBLISH', KEYS[3], 'free|' .. ARGV[1])
return 'ok'
