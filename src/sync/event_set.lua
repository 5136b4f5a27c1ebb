#!lua flags=allow-oom
-- Sets an event that is not set, under a new generation, and tells whoever waits for it.
-- KEYS[1] event:<name>, a HASH of flag, gen, by, until, and the channel of that name
-- ARGV    gen (the generation the caller knows, '' = none), by (names this call), ttl_ms (0 = until cleared)
-- Returns {'ok', gen} (set by this call, if only by an earlier copy of it), {'already', gen} (it is set),
--         {'moved', gen} (it is not set, and its generation is another one: nothing changed)
-- Why the generation: a late copy of this call must not set again what somebody has cleared since.
local event = redis.call('HMGET', KEYS[1], 'flag', 'gen', 'by', 'until')
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local gen, ends = tonumber(event[2]) or 0, tonumber(event[4]) or 0
local wanted = ARGV[3] == '0' and 0 or now + ARGV[3]
local function text(x) return string.format('%.0f', x) end
if event[1] == '1' and (ends == 0 or now < ends) then
  -- It stays set for as long as the most patient of its setters asked.
  if ends > 0 and (wanted == 0 or wanted > ends) then redis.call('HSET', KEYS[1], 'until', text(wanted)) end
  return {'already', text(gen)}
end
if event[3] == ARGV[2] then return {'ok', text(gen)} end
if ARGV[1] ~= text(gen) then return {'moved', text(gen)} end
gen = text(math.max(gen + 1, t[1] * 1000000 + t[2]))
redis.call('HSET', KEYS[1], 'flag', '1', 'gen', gen, 'by', ARGV[2], 'until', text(wanted))
redis.call('SPUBLISH', KEYS[1], gen)
return {'ok', gen}
