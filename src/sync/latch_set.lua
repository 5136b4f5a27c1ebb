#!lua flags=allow-oom
-- Begins a new round of a latch that is not being counted down.
-- KEYS[1] latch:<name> HASH: flag, gen, until as of an event; count, round, `c:<id>` (the calls that counted)
-- ARGV    count, by (names this call), round (the one the caller knows)
-- Returns {'ok', round}, {'running', round} (a round is under way), {'moved', round} (another round),
--         {'spent', round} (the next round would be past 2^52; see acquire): nothing changed
-- Uses    clock, grow
-- Why the round: a late copy must not begin a round that nobody counts down.
local latch = redis.call('HMGET', KEYS[1], 'count', 'round', 'made', 'gen')
if latch[3] == ARGV[2] then return {'ok', latch[2]} end
if tonumber(latch[1] or '0') > 0 then return {'running', latch[2]} end
if ARGV[3] ~= (latch[2] or '0') then return {'moved', latch[2] or '0'} end
local _, now_us = clock()
local round = grow(latch[2], now_us)
if not round then return {'spent', latch[2] or '0'} end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'count', ARGV[1], 'round', round, 'made', ARGV[2], 'flag', '0', 'gen', latch[4] or '0', 'until', '0')
return {'ok', round}
