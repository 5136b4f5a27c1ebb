#!lua flags=allow-oom
-- Clears an event if it has the generation that the caller knows. A newer generation stays set.
-- KEYS[1] event:<name> HASH
-- ARGV    gen
-- Returns {'ok', state} (it is not set), {'moved', state} (it is set under another generation: nothing changed);
--         the state is `s` or `c`, set or clear, and the generation
-- Uses    whole
-- Why the generation: if the event was set again since, a late copy of this call must not clear it.
local event = redis.call('HMGET', KEYS[1], 'flag', 'gen')
local gen = whole(tonumber(event[2]) or 0)
if event[1] ~= '1' then return {'ok', 'c' .. gen} end
if ARGV[1] ~= gen then return {'moved', 's' .. gen} end
redis.call('HSET', KEYS[1], 'flag', '0', 'until', '0')
return {'ok', 'c' .. gen}
