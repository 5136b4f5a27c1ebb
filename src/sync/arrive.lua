#!lua flags=allow-oom
-- Arrives at a barrier. The last arrival lets all of them through, under a new generation.
-- KEYS[1] members ZSET   KEYS[2] barrier:<name> HASH: parties, gen, `a:<member>:<n>` (arrived),
--         `p:<member>:<n>` (went through last), `r:<member>` (its highest number)   KEYS[3] its channel
-- ARGV    me, n (number of this arrival, rising), parties
-- Returns {'through', gen}, {'waiting', gen} (wait for a later generation), 'late' (n went through earlier, or was withdrawn), 'gone',
--         {'parties', stored} (others wait at a barrier of another size),
--         'spent' (the next generation would be past 2^52: nothing changed; see acquire)
-- Uses    clock, deadline_of, grow
-- Why the number: a repeat finds what the first copy did, and a late copy does not arrive again.
-- Why overdue members do not count: they are dead, or will refresh their sessions. A waiter asks again until
-- then.
local me, n = ARGV[1], ARGV[2]
if not deadline_of(KEYS[1], me) then return 'gone' end
local now, now_us = clock()
local mine = me .. ':' .. n
local all, here, stored, waits = redis.call('HGETALL', KEYS[2]), {}, false, false
local gen, last, old = '0', 0, {}
for i = 1, #all, 2 do
  local kind, member = string.match(all[i], '^([apr]):([^:]+)')
  local deadline = kind and deadline_of(KEYS[1], member)
  if all[i] == 'parties' then stored = all[i + 1]
  elseif all[i] == 'gen' then gen = all[i + 1]
  elseif kind and not deadline then old[#old + 1] = all[i]
  elseif all[i] == 'p:' .. mine then return {'through', gen}
  elseif all[i] == 'a:' .. mine then waits = true
  elseif kind == 'a' and tonumber(deadline) >= now then here[#here + 1] = string.sub(all[i], 3)
  elseif all[i] == 'r:' .. me then last = tonumber(all[i + 1]) end
end
if not waits then
  if tonumber(n) <= last then return 'late' end
  if stored and stored ~= ARGV[3] and #here > 0 then return {'parties', stored} end
end
local new = grow(gen, now_us)
if #here + 1 >= tonumber(ARGV[3]) and not new then return 'spent' end
for _, field in ipairs(old) do redis.call('HDEL', KEYS[2], field) end
if not waits then redis.call('HSET', KEYS[2], 'parties', ARGV[3], 'r:' .. me, n, 'a:' .. mine, '1') end
if #here + 1 < tonumber(ARGV[3]) then return {'waiting', gen} end
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 2) == 'p:' then redis.call('HDEL', KEYS[2], all[i]) end
end
here[#here + 1] = mine
for _, one in ipairs(here) do
  redis.call('HDEL', KEYS[2], 'a:' .. one)
  redis.call('HSET', KEYS[2], 'p:' .. one, '1')
end
redis.call('HSET', KEYS[2], 'gen', new)
redis.call('SPUBLISH', KEYS[3], new)
return {'through', new}
