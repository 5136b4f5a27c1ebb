#!lua flags=allow-oom
-- Notes that an alert was told, or that its teller gives up and others may try.
-- KEYS[1] alerts HASH, as in alert_step.lua
-- ARGV    who claimed it, sink, rule, 'firing' or 'resolved', episode, '1' = it was told, '0' = it may have been told,
--         '-' = it was not told
-- Returns 'ok', 'moved' (somebody else tells it now, or it is told)
-- Why what was given up stays in the record: nobody knows whether it arrived, so the next try is marked.
local field = 'told:' .. ARGV[2] .. ':' .. ARGV[3]
local fired, resolved, what, of, who = string.match(redis.call('HGET', KEYS[1], field) or '', '^(%d+)|(%d+)|(%a*)|(%d*)|(.*)$')
if what ~= ARGV[4] or of ~= ARGV[5] or who ~= ARGV[1] then return 'moved' end
if ARGV[6] == '0' then
  redis.call('HSET', KEYS[1], field, fired .. '|' .. resolved .. '|' .. what .. '|' .. of .. '|')
  return 'ok'
end
if ARGV[6] == '1' then
  if what == 'firing' then fired = of else resolved = of end
  redis.call('HDEL', KEYS[1], 'telling:' .. ARGV[2] .. ':' .. ARGV[3])
end
redis.call('HSET', KEYS[1], field, fired .. '|' .. resolved .. '|||')
return 'ok'
