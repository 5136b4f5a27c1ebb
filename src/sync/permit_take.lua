#!lua flags=allow-oom
-- Takes a permit of a semaphore, if one is free.
-- KEYS[1] members ZSET   KEYS[2] semaphore:<name> HASH: permits, gen, `h:<member>:<n>` (held),
--         `r:<member>` (the highest number it gave back)
-- ARGV    me, n (number of this attempt, rising), permits
-- Returns 'ok', {'full', gen, overdue holders} (wait for a later generation), 'late' (n was given back), 'gone',
--         {'permits', stored} (others hold permits of a semaphore of another size)
-- Uses    clock, deadline_of
-- Why the number: a repeat gets what the first copy got, and a late copy gets nothing.
local me, n = ARGV[1], ARGV[2]
if not deadline_of(KEYS[1], me) then return 'gone' end
local all, held, stored = redis.call('HGETALL', KEYS[2]), 0, false
local gen, back, dead, overdue = '0', 0, {}, 0
local now = clock()
for i = 1, #all, 2 do
  local kind, member = string.match(all[i], '^([hr]):([^:]+)')
  if all[i] == 'permits' then stored = all[i + 1]
  elseif all[i] == 'gen' then gen = all[i + 1]
  elseif kind and not deadline_of(KEYS[1], member) then dead[#dead + 1] = all[i]
  elseif kind == 'h' then
    held = held + 1
    if tonumber(deadline_of(KEYS[1], member)) < now then overdue = overdue + 1 end
  elseif all[i] == 'r:' .. me then back = tonumber(all[i + 1]) end
end
local mine = 'h:' .. me .. ':' .. n
if redis.call('HEXISTS', KEYS[2], mine) == 1 then return 'ok' end
if tonumber(n) <= back then return 'late' end
if stored and stored ~= ARGV[3] and held > 0 then return {'permits', stored} end
for _, field in ipairs(dead) do redis.call('HDEL', KEYS[2], field) end
if held >= tonumber(ARGV[3]) then return {'full', gen, overdue} end
redis.call('HSET', KEYS[2], 'permits', ARGV[3], mine, '1')
return 'ok'
