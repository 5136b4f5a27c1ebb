#!lua
-- Adds messages that wait for a time, or that have duties. They are numbered as by send: all of them or none, once.
-- KEYS[1…18] as in jobs.lua
-- KEYS[19] sent:<sender> STRING `last` or `last|id of the duplicate`, with a time to live; made by enroll
-- KEYS[20] config HASH   KEYS[21] errors STREAM
-- KEYS[22] dedup:<key> STRING, only for one message sent under a key: the id that was sent under that key
-- ARGV    sender, from, protocol, dedup_ms, then for each message: envelope, due ('' = now, `+ms` from now, else ms)
-- Returns 'ok', 'already' (a repeat), {'duplicate', id} (sent under this key before, or a message of its unique name is
--         open), {'full', 'backlog', 'scheduled' or 'errors', the bound that is reached}, 'gap' (as send),
--         {'protocol', theirs}, {'refused', number of the message, why}: nothing was added
-- Uses    denied, jobs, waiting
local from, n = tonumber(ARGV[2]), (#ARGV - 4) / 2
local SENT_MS = #ARGV[1] > 16 and 86400000 or 3600000 -- as send
local config = redis.call('HMGET', KEYS[20], 'protocol', 'backlog_max', 'errors_max')
if config[1] ~= ARGV[3] and (config[1] or redis.call('EXISTS', KEYS[20]) == 1) then
  return {'protocol', config[1] or '1'}
end
local seen = redis.call('GET', KEYS[19])
if not seen then return 'gap' end
local last, duplicate = string.match(seen, '^(%d+)|?(.*)$')
last = tonumber(last)
if from + n - 1 <= last then
  if from + n - 1 == last and duplicate ~= '' then return {'duplicate', duplicate} end
  return 'already'
end
if from ~= last + 1 then return 'gap' end
local upto = whole(from + n - 1)

-- Check everything before the first write: Lua has no rollback. A counter that is not a number fails here, too.
local backlog_max, errors_max = config[2] or '1000000', config[3] or '1000000'
local all, more, room, taken = {}, {}, {}, KEYS[22] and redis.call('GET', KEYS[22])
for i = 1, n do
  local new, why = check_new(ARGV[3 + 2 * i], ARGV[4 + 2 * i], i - 1, room)
  if new and new[5].unique and n > 1 then why = 'a unique message is sent alone' end
  if why then return {'refused', i, why} end
  all[i] = new
  local h = new[5]
  taken = taken or h.unique and redis.call('HGET', UNIQUE, h.unique)
  local target = (new[6] or h.children) and SCHEDULED or new[3] == 'k' and PARKED or LANES[new[2]]
  local is_lane = target == LANES[new[2]]
  more[target] = (more[target] or (is_lane and waiting(target, KEYS[2])) or redis.call('ZCARD', target)) + 1
  if not taken and more[target] > tonumber(backlog_max) then
    return {'full', is_lane and 'backlog' or 'scheduled', backlog_max}
  end
end
if taken then
  redis.call('SET', KEYS[19], upto .. '|' .. taken, 'PX', SENT_MS)
  redis.pcall('HINCRBY', KEYS[2], 'duplicates', 1)
  return {'duplicate', taken}
end
if redis.call('XLEN', KEYS[21]) >= tonumber(errors_max) then return {'full', 'errors', errors_max} end
local sent = whole((redis.call('HGET', KEYS[2], 'sent') or 0) + n)
redis.call('ZCARD', SCHEDULED)
redis.call('HLEN', LATER)
local refusal = denied({{'RPUSH', KEYS[7], ''}, {'ZADD', SCHEDULED, '0', ''}, {'HSET', LATER, '', ''}, {'SET', KEYS[19], ''},
  {'HSET', KEYS[2], 'sent', '1'}}) or KEYS[22] and denied({{'SET', KEYS[22], ''}})
if refusal then return refusal end
for _, message in ipairs(all) do place(unpack(message, 1, 6)) end
flush()
redis.call('SET', KEYS[19], upto, 'PX', SENT_MS)
if KEYS[22] then redis.call('SET', KEYS[22], 's' .. ARGV[1] .. '-' .. upto, 'PX', ARGV[4]) end
redis.call('HSET', KEYS[2], 'sent', sent)
return 'ok'
