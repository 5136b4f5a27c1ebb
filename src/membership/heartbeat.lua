#!lua flags=allow-oom
-- Refreshes the caller's session and returns what it must know about the fleet.
-- KEYS[1] members ZSET     KEYS[2] lease STRING   KEYS[3] watch HASH     KEYS[4] orphans SET
-- KEYS[5] member:<id> HASH KEYS[6] blocks:<id> HASH KEYS[7] locks:<id> HASH
-- KEYS[8] term STRING      KEYS[9] token STRING  KEYS[10] config HASH   KEYS[11] control HASH
-- KEYS[12] alive:<id> channel   KEYS[13] blind SET  KEYS[14] counts HASH   KEYS[15] servers LIST   KEYS[16] losses HASH
-- KEYS[17] notices STREAM
-- ARGV    me, lease_ms if none is in config, held (how many blocks it knows of), hi (its last number), ttl_ms,
--         present ('1' = the caller believes that it is seen, '2' = the same on a connection made because it was not, '0'),
--         server (to which one the caller is connected, '' = unknown), the one it comes from ('' = none), the steps
--         that it saw there last, and first; then field, value … for the member's hash
-- Returns 'gone', or {'ok', lease ('' = nobody leads), its holder's ms left, ms since the last look,
--         orphans, members, stray (1 = an open block the caller does not know of, or numbers were lost),
--         what can no longer be granted (see acquire): '', 'term', 'token' or both with a blank between,
--         lease_ms, grace_ms, seen (1 = its presence is visible), steps,
--         how many of them were forgotten since the server that the caller comes from, its locks as name, `token:attempt` …, control as field, value …}
-- Uses    clock, deadline_of, enlist, grow, refresh, steps_of, whole
-- Why the lease from config: it may change while all members are observers, and all must use the same one.
-- Why a number is enough for held: see fetch.
-- Why servers: a server with fewer steps than it had before has forgotten some. How many each had when it took over is there.
-- Of a server that is not listed, what the caller saw there is gone.
-- Why seen: a connection may lose its subscriptions and live on, as when its slot was elsewhere for a moment.
local me = ARGV[1]
if not deadline_of(KEYS[1], me) then return 'gone' end
local now, now_us = clock()
local config = redis.call('HMGET', KEYS[10], 'lease_ms', 'grace_ms')
local lease_ms = config[1] or ARGV[2]
refresh(KEYS[1], me, now, lease_ms)
local lease, left = redis.call('GET', KEYS[2]), 0
if lease then
  local deadline = deadline_of(KEYS[1], string.match(lease, '^[^|]+'))
  if deadline then left = deadline - now else lease = false end
end
local looked = redis.call('HGET', KEYS[3], 'looked')
local stray, known = 0, tonumber(ARGV[4])
local hi = redis.call('HGET', KEYS[6], 'hi')
local open = redis.call('HLEN', KEYS[6]) - (hi and 1 or 0)
hi = tonumber(hi or '0')
-- A fetch that is under way may have opened blocks with higher numbers than the last one known.
if hi < known or open > ARGV[3] + (hi - known) then stray = 1 end
if #ARGV > 10 then
  redis.call('HSET', KEYS[5], unpack(ARGV, 11))
  redis.call('PEXPIRE', KEYS[5], ARGV[5])
end
local seen = redis.call('PUBSUB', 'SHARDNUMSUB', KEYS[12])[2] > 0
if seen then redis.call('SREM', KEYS[13], me)
elseif ARGV[6] == '2' then redis.call('SADD', KEYS[13], me) end
local function server_of(entry) return string.match(entry or '', '^[^|]*') end
local steps, forgotten = steps_of(KEYS[14]), 0
local server, from = ARGV[7], ARGV[8]
if server ~= '' then enlist(KEYS[15], KEYS[17], server, steps, now, me) end
if server ~= '' and from ~= '' and from ~= server then
  local list, kept = redis.call('LRANGE', KEYS[15], 0, -1), tonumber(ARGV[10])
  for i = #list - 1, 1, -1 do
    if server_of(list[i]) == from then
      kept = tonumber(string.match(list[i + 1], '^[^|]*|(%d+)|') or '0')
      break
    end
  end
  forgotten = math.max(tonumber(ARGV[9]) - kept, 0)
  local pair, listed = from .. '>' .. server, string.match(list[#list], '(%d+)$')
  local before, at = string.match(redis.call('HGET', KEYS[16], pair) or '', '^(%d+)|(%d+)')
  -- The same two may have changed before.
  if forgotten > 0 and (not at or tonumber(at) < tonumber(listed) or forgotten > tonumber(before)) then
    if redis.call('HLEN', KEYS[16]) >= 100 then redis.call('DEL', KEYS[16]) end
    redis.call('HSET', KEYS[16], pair, string.format('%.0f|%.0f', forgotten, now))
  end
end
local spent = {}
for _, one in ipairs({{'term', KEYS[8]}, {'token', KEYS[9]}}) do
  if not grow(tonumber(redis.call('GET', one[2]) or '0') or 0, now_us) then spent[#spent + 1] = one[1] end
end
return {'ok', lease or '', whole(left), whole(now - (looked or 0)),
  redis.call('SCARD', KEYS[4]), redis.call('ZCARD', KEYS[1]), stray, table.concat(spent, ' '),
  lease_ms, config[2] or '300', seen and 1 or 0, whole(steps), whole(forgotten), redis.call('HGETALL', KEYS[7]), redis.call('HGETALL', KEYS[11])}
