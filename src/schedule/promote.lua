#!lua flags=allow-oom
-- Lets go what is due: messages of `scheduled`, slots that have rested, and lines that a raised limit lets in.
-- KEYS[1…18] as in jobs.lua
-- ARGV    me, lease_ms, max (messages), bytes_max, lines (how many lines of `parked` to look at)
-- Returns {'ok', moved, ms until the next is due ('' = nothing is), let in from lines}, 'gone'
-- Uses    deadline_of, denied, jobs, refresh
-- Why lines are looked at: in a line whose limit was 0 nobody holds a slot, so nobody hands one on.
local me = ARGV[1]
if not deadline_of(KEYS[1], me) then return 'gone' end
refresh(KEYS[1], me, NOW, ARGV[2])
local now, max, bytes_max = whole(NOW), tonumber(ARGV[3]), tonumber(ARGV[4])
-- Check everything before the first write: Lua has no rollback. A key of another type fails here, too.
local refusal = denied({{'RPUSH', KEYS[7], ''}, {'ZREM', SCHEDULED, ''}, {'HDEL', LATER, ''},
  {'ZRANGEBYLEX', PARKED, '-', '+'}})
if refusal then return refusal end
for i = 4, 8 do redis.call('LLEN', KEYS[i]) end
redis.call('HLEN', LATER)
redis.call('HLEN', SLOTS)

for _, slot in ipairs(redis.call('ZRANGEBYSCORE', RESTING, '-inf', now, 'LIMIT', 0, 100)) do
  redis.call('ZREM', RESTING, slot)
  free_slot(string.match(slot, '^(.*)%z[^%z]*$') or slot)
end

local ids = redis.call('ZRANGEBYSCORE', SCHEDULED, '-inf', now, 'LIMIT', 0, max)
local moved, bytes, plain, gone = 0, 0, {}, {}
-- Four at a time: a message may be large, and what is read is let go. So there are never more bytes than the bound and four
-- messages.
local from = 1
while from <= #ids and bytes < bytes_max do
  local upto = math.min(from + 3, #ids)
  local all = redis.call('HMGET', LATER, unpack(ids, from, upto))
  for i = from, upto do
    local id, e = ids[i], legible(all[i - from + 1])
    -- Most have no duties and were never run: their lane is all that matters.
    local lane, dead = e and string.match(e, '^1(.)[-h]|[^|]+|1|'), 0
    local flag, unsent, open, failed, _
    if e and not LANES[lane] then lane, flag, _, _, _, _, _, dead = read(e) end
    if flag == 'j' or flag == 'k' then unsent, open, failed = join_of(id) end
    moved, bytes = moved + 1, bytes + #(e or '')
    if unsent then
      release_parent(id, unsent + open, tonumber(failed))
    elseif flag == 'k' then
      start(e, id)
    else
      -- What nobody can read goes to a worker, who fails it.
      local target = lane and target_of(lane, dead) or KEYS[7]
      plain[target] = plain[target] or {}
      if e then plain[target][#plain[target] + 1] = e end
      gone[#gone + 1] = id
    end
  end
  from = upto + 1
end
if #gone > 0 then
  for i = 1, #gone, 1000 do
    redis.call('ZREM', SCHEDULED, unpack(gone, i, math.min(i + 999, #gone)))
    redis.call('HDEL', LATER, unpack(gone, i, math.min(i + 999, #gone)))
  end
  for target, list in pairs(plain) do
    for i = 1, #list, 1000 do redis.call('RPUSH', target, unpack(list, i, math.min(i + 999, #list))) end
  end
  wake_one()
end

local let = 0
for _ = 1, tonumber(ARGV[5]) do
  local after = redis.call('HGET', SLOTS, '\0line')
  local place = redis.call('ZRANGEBYLEX', PARKED, after and '(' .. after or '-', '+', 'LIMIT', 0, 1)[1]
  if not place then
    if after then redis.call('HDEL', SLOTS, '\0line') end
    break
  end
  local key = string.match(place, '^(.*)%z[^%z]*%z[^%z]*$') or place
  local taken = tonumber(redis.call('HGET', SLOTS, key) or '0')
  local then_taken = let_in(key, taken)
  let = let + then_taken - taken
  keep_taken(key, then_taken)
  redis.call('HSET', SLOTS, '\0line', key .. '\1')
end

local due = math.huge
for _, set in ipairs({SCHEDULED, RESTING}) do
  local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
  if first[2] then due = math.min(due, tonumber(first[2])) end
end
return {'ok', moved, due == math.huge and '' or whole(math.ceil(math.max(due - NOW, 0))), let}
