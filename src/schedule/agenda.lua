#!lua flags=no-writes
-- Reads messages that wait for a time, the first due first, or one of them.
-- KEYS[1] scheduled ZSET   KEYS[2] later HASH
-- ARGV    after which time and id ('' and '' = from the beginning), how many, bytes_max; or '' and an id and 0: that one
-- Returns {now_ms, then for each: id, its time, envelope …}
-- Uses    clock, whole
local score, id, count, bytes_max = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local reply = {whole((clock()))}
local function add(id, due)
  local e = redis.call('HGET', KEYS[2], id) or ''
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = id, due, e
  return #e
end
if count == 0 then
  local due = redis.call('ZSCORE', KEYS[1], id)
  if due then add(id, due) end
  return reply
end
-- What was read last may be gone: then begin with the first of its time.
local from = 0
if score ~= '' then
  from = redis.call('ZSCORE', KEYS[1], id) == score and redis.call('ZRANK', KEYS[1], id) + 1
    or redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. score)
end
local found, bytes = redis.call('ZRANGE', KEYS[1], from, from + count - 1, 'WITHSCORES'), 0
for i = 1, #found, 2 do
  if bytes > bytes_max then break end
  bytes = bytes + add(found[i], found[i + 1])
end
return reply
