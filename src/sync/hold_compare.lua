#!lua flags=allow-oom
-- Compares what a member holds of a semaphore, or that it waits at a barrier, with what is there: another server may have
-- forgotten the last steps.
-- KEYS[1] members ZSET   KEYS[2] semaphore:<name> or barrier:<name> HASH   KEYS[3] its channel
-- ARGV    me, 'h' (it holds) or 'a' (it has arrived), the last number it has used, then the numbers it wants
-- Returns {'ok', the wanted numbers that are not there …}, 'gone'
-- Uses    clock, deadline_of, grow
-- Why the last number: a late copy must not take away what the member got later.
local me, last, wanted = ARGV[1], tonumber(ARGV[3]), {}
if not deadline_of(KEYS[1], me) then return 'gone' end
for i = 4, #ARGV do wanted[ARGV[i]] = true end
local own, dropped = ARGV[2] .. ':' .. me .. ':', false
for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
  if string.sub(field, 1, #own) == own then
    local n = string.sub(field, #own + 1)
    if wanted[n] then wanted[n] = nil
    elseif (tonumber(n) or 0) <= last then dropped = redis.call('HDEL', KEYS[2], field) end
  end
end
if dropped and ARGV[2] == 'h' then
  local _, now_us = clock()
  local gen = grow(redis.call('HGET', KEYS[2], 'gen'), now_us)
  if gen then
    redis.call('HSET', KEYS[2], 'gen', gen)
    redis.call('SPUBLISH', KEYS[3], gen)
  end
end
local answer = {'ok'}
for i = 4, #ARGV do
  if wanted[ARGV[i]] then answer[#answer + 1] = ARGV[i] end
end
return answer
