#!lua flags=allow-oom
-- Judges which members are dead. It is the only judge: all others only ask whether an id is in members.
-- KEYS[1] members ZSET  KEYS[2] watch HASH   KEYS[3] suspects HASH   KEYS[4] blind SET
-- KEYS[5] orphans SET   KEYS[6] alive channel, one for each member beside it: `alive:<id>`   KEYS[7] ctl channel
-- KEYS[8] config HASH: lease_ms, grace_ms   KEYS[9] scheduled ZSET   KEYS[10] resting ZSET   KEYS[11] control HASH
-- KEYS[12] lease STRING   KEYS[13] notices STREAM
-- ARGV    me, ranked (number of members for which the caller knows its rank)
-- Returns 'gone', {'early', members, rank, now_ms, due}, or {'ok', members, rank, now_ms, due, reaped ids …};
--         rank -1 = unchanged; due: ms until a scheduled message or a slot is due, negative = overdue, '' = none is
-- Uses    clock, deadline_of, reap, tell_dead, whole
-- Why ranks are counted by id among the living: the set's own order puts the dead first.
local me = ARGV[1]
if not deadline_of(KEYS[1], me) then return 'gone' end
local config = redis.call('HMGET', KEYS[8], 'lease_ms', 'grace_ms')
local lease, grace = tonumber(config[1] or '3000'), tonumber(config[2] or '300')
local now = clock()
local watch = redis.call('HMGET', KEYS[2], 'run_id', 'looked', 'calm')
local looked, calm = tonumber(watch[2]), tonumber(watch[3]) or 0
local count = redis.call('ZCARD', KEYS[1])

local function rank()
  if redis.call('ZCARD', KEYS[1]) == tonumber(ARGV[2]) then return -1 end
  local below = 0
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], whole(now), '+inf')) do
    if id < me and redis.call('HEXISTS', KEYS[3], id) == 0 then below = below + 1 end
  end
  return below
end

local function due()
  local first = math.huge
  for i = 9, 10 do
    local entry = redis.call('ZRANGE', KEYS[i], 0, 0, 'WITHSCORES')
    if entry[2] then first = math.min(first, tonumber(entry[2])) end
  end
  return first < math.huge and whole(math.ceil(math.max(first - now, -1e15))) or ''
end

-- 1. Another member has just looked.
if looked and now >= looked and now - looked < 90 then return {'early', count, rank(), whole(now), due()} end

-- 2. The server is a new one, its clock went back, or nobody could look for half a lease. Then the records say
--    nothing about the members, so every member gets one lease to refresh its session. Why half a lease and not a
--    whole one: when Redis stalls, the recorded refreshes are up to a sixth of a lease old, and when it goes on,
--    looks that were on their way run before any heartbeat.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
if run ~= watch[1] or not looked or now < looked or now - looked > lease / 2 then
  redis.call('DEL', KEYS[3])
  calm = now + lease
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. whole(now + lease), '+inf')) do
    redis.call('ZADD', KEYS[1], 'XX', whole(now + lease), id)
  end
elseif now - looked > 1000 then
  redis.call('DEL', KEYS[3]) -- suspicion holds only under continuous looks
end
redis.call('HSET', KEYS[2], 'run_id', run, 'looked', whole(now), 'calm', whole(calm))

-- Which of these members (id, deadline …) are present, in the same order.
local function presence(members)
  local present = {}
  for from = 1, #members, 2000 do
    local channels = {}
    for i = from, math.min(from + 1999, #members), 2 do channels[#channels + 1] = KEYS[6] .. ':' .. members[i] end
    for i, v in ipairs(redis.call('PUBSUB', 'SHARDNUMSUB', unpack(channels))) do
      if i % 2 == 0 then present[#present + 1] = v > 0 end
    end
  end
  return present
end

-- 3. All members are present: the common case, which must stay cheap. The counts must be equal, and not "at
--    least": a half-open connection that Redis still counts must not hide a dead member. A subscriber that is not
--    a member must not hide one, either: the members with the earliest deadlines are checked one by one. A dead
--    member is not refreshed, so it is among them as soon as the others are refreshed.
local function stalest_here()
  local stalest = redis.call('ZRANGE', KEYS[1], 0, 31, 'WITHSCORES')
  for i, present in ipairs(presence(stalest)) do
    if not present and redis.call('SISMEMBER', KEYS[4], stalest[2 * i - 1]) == 0 then return false end
  end
  return true
end
local quick = redis.call('PUBSUB', 'SHARDNUMSUB', KEYS[6])[2] == count - redis.call('SCARD', KEYS[4])
  and redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. whole(now)) == 0
  and redis.call('EXISTS', KEYS[3]) == 0
  and stalest_here()
if quick then return {'ok', count, rank(), whole(now), due()} end

-- 4. Full scan. Where presence and members never agree, as with a connection that Redis still counts after its end, ten scans
--    that found nothing are enough: as long as the same is seen, there is one in a second. Whoever dies changes what is seen,
--    or misses its deadline.
local seen = count .. '|' .. (redis.call('PUBSUB', 'SHARDNUMSUB', KEYS[6])[2] - redis.call('SCARD', KEYS[4]))
local was, times, scanned = string.match(redis.call('HGET', KEYS[2], 'odd') or '', '^(.-)=(%d+)=(%d+)$')
times = was == seen and tonumber(times) or 0
if times >= 10 and now - scanned >= 0 and now - scanned < 1000 and redis.call('EXISTS', KEYS[3]) == 0
  and redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. whole(now)) == 0 and stalest_here() then
  return {'ok', count, rank(), whole(now), due()}
end
local all = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
local present = presence(all)
local reply = {'ok', count, -1, whole(now), due()}
for i = 1, #all, 2 do
  local id, deadline = all[i], tonumber(all[i + 1])
  local is_dead = deadline < now
  if present[(i + 1) / 2] or redis.call('SISMEMBER', KEYS[4], id) == 1 then
    redis.call('HDEL', KEYS[3], id)
  else
    local since = tonumber(redis.call('HGET', KEYS[3], id))
    if not since or deadline - lease >= since then
      redis.call('HSET', KEYS[3], id, whole(now)) -- new, or refreshed since: suspicion starts again
    elseif now - since >= grace then
      is_dead = true
    end
  end
  if is_dead and now >= calm and #reply < 133 then
    reap(KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[11], KEYS[2], KEYS[12], KEYS[13], id, now, lease)
    tell_dead(KEYS[7], id)
    reply[#reply + 1] = id
  end
end
reply[2] = redis.call('ZCARD', KEYS[1])
reply[3] = rank()
local found = #reply > 5 or redis.call('EXISTS', KEYS[3]) == 1
redis.call('HSET', KEYS[2], 'odd', seen .. '=' .. (found and 0 or times + 1) .. '=' .. whole(now))
return reply
