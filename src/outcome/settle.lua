#!lua flags=allow-oom
-- Records outcomes of the caller's block, once each, with everything that belongs to them.
-- KEYS[1] members ZSET  KEYS[2] counts HASH; in the form `jobs`: KEYS[3…18] as in jobs.lua, and all that follow 16 later
-- KEYS[3] blocks:<me> HASH   KEYS[4] block:<me>:<n> LIST   KEYS[5] errors STREAM   KEYS[6] ledger STREAM
-- KEYS[7] config HASH        KEYS[8] unread HASH
-- KEYS[9] pack:<me>:<n> STRING: the block, while no script has looked at its single messages
-- KEYS[10…] data:<name> keys that the effects write
-- ARGV    me, n, stamp, lease_ms, rest (how many messages that are not named are done; '-' = the block stays open),
--         first (the id in the head of the pack that fetch gave to the caller; '' = it got envelopes),
--         k, then k times: position, word, info, and for a message out of a pack that is not done: the offset of its
--         `<length>:` in the pack, and the length (else '' and ''); then the number of effects, and for each: position, op,
--         index of its key from KEYS[10], two arguments; in the form `jobs` then parts: position, 'value' or 'then', a, b
--         word: `d` done, `f` failed and kept (info: JSON); in the form `jobs` also `x` failed and not kept, and `r` retry,
--         `z` snooze and `w` wait for a member that knows its kind (info: after how many ms)
--         value: a is kept as its result; then: a is the envelope of a message that follows, b its due time as for post
-- Returns {'ok', lost positions …}, 'already' (the block is closed), 'gone',
--         'gap' (number, stamp or rest do not fit: Redis lost data), {'effect', position, why it cannot be applied}
-- Uses    clock, deadline_of, denied, enter, lay_open, pack_head, refresh, whole
-- Forms   jobs
-- Why a message with duties must be named, even if it is done: this script does not read what is not named.
-- Why follow-ups are not held back by a full lane: they belong to work that was accepted. Workers that wait for room in
-- the lane that they must empty would wait for ever.
-- Why rest is a number: if it differs from what is left, somebody settled a message that the caller thinks it
-- holds.
-- Why an effect that fails after all checks fails its message: a refused call would be repeated, and with it the
-- effects that came before.
local me, n = ARGV[1], ARGV[2]
local K = jobs and 16 or 0
local BLOCKS, BLOCK, ERRORS, LEDGER, PACK = KEYS[3 + K], KEYS[4 + K], KEYS[5 + K], KEYS[6 + K], KEYS[9 + K]
if not deadline_of(KEYS[1], me) then return 'gone' end
refresh(KEYS[1], me, clock(), ARGV[4])
local block = redis.call('HGET', BLOCKS, n)
if not block then
  if tonumber(n) <= tonumber(redis.call('HGET', BLOCKS, 'hi') or '0') then return 'already' end
  return 'gap'
end
local left, stamp = string.match(block, '^(%d+):(.+)$')
if stamp ~= ARGV[3] then return 'gap' end
left = tonumber(left)
local closing, k = ARGV[5] ~= '-', tonumber(ARGV[7])
local keep = redis.call('HGET', KEYS[7 + K], 'ledger') or '0'

-- A closing call without a ledger reads what it needs from the pack. All others need single messages.
local head, seq, tail
if not closing or keep ~= '0' then
  lay_open(PACK, BLOCK)
elseif k > 0 and redis.call('EXISTS', PACK) == 1 then
  head, seq, tail = pack_head(redis.call('GETRANGE', PACK, 0, 299))
  if not head or string.sub(head, 5) .. seq ~= ARGV[6] then return 'gap' end
end
local function is_count(text) return #text < 10 and string.find(text, '^%d+$') end
-- Many positions are cheaper to read at once.
local many, pack = k > 8 and k * 4 > left
local function piece(from, upto)
  if not many then return redis.call('GETRANGE', PACK, from, whole(upto)) end
  pack = pack or redis.call('GETRANGE', PACK, 0, -1)
  return string.sub(pack, from + 1, upto + 1)
end
-- The message at this position of the pack. Of one that is done, its place is enough.
local function in_pack(at, word, offset, length)
  if not is_count(at) or tonumber(at) >= left then return false end
  if word == 'd' then return head end
  if not is_count(offset) or not is_count(length) then return false end
  local text = piece(offset, offset + #length + length)
  if #text ~= #length + 1 + length or string.sub(text, 1, #length + 1) ~= length .. ':' then return false end
  return head .. whole(seq + at) .. tail .. string.sub(text, #length + 2)
end

-- Words after which a message runs again.
local AGAIN = {r = true, z = true, w = true}
-- Check everything before the first write: Lua has no rollback.
local reply, named, named_at, settled = {'ok'}, {}, {}, 0
local all = not head and many and redis.call('LRANGE', BLOCK, 0, -1)
for i = 8, 7 + 5 * k, 5 do
  local message
  if head then
    message = in_pack(ARGV[i], ARGV[i + 1], ARGV[i + 3], ARGV[i + 4])
  else
    message = all and is_count(ARGV[i]) and all[ARGV[i] + 1] or not all and redis.call('LINDEX', BLOCK, ARGV[i])
  end
  if not message then return 'gap' end
  if message == '-' then
    reply[#reply + 1] = ARGV[i]
  elseif message ~= '' and not named[ARGV[i]] then
    local word = ARGV[i + 1]
    local again_or_forgotten = AGAIN[word] or word == 'x'
    if word ~= 'd' and word ~= 'f' and not (jobs and again_or_forgotten and read(message)) then
      return {'effect', ARGV[i], 'it cannot be run again'}
    end
    named[ARGV[i]] = {message, word, ARGV[i + 2], i}
    named_at[#named_at + 1] = ARGV[i]
    settled = settled + 1
  end
end
if closing and tonumber(ARGV[5]) ~= left - settled then return 'gap' end

local OPS = { -- op -> type of the key it needs, may the arguments overflow
  SET = {'string'}, INCRBY = {'string', 1}, HSET = {'hash'}, HINCRBY = {'hash', 2},
  SADD = {'set'}, RPUSH = {'list'},
}
-- Reads whole numbers as Redis does: no leading zero, no -0. Everything that Redis would refuse must be refused
-- here.
local function is_whole(text) return text == '0' or string.match(text, '^-?[1-9]%d*$') end
local types, numbers, effects = {}, {}, {}
local first = 9 + 5 * k
local parts = first + 5 * ARGV[first - 1]
for i = first, parts - 1, 5 do
  local at, op, key, a, b = ARGV[i], ARGV[i + 1], KEYS[9 + K + ARGV[i + 2]], ARGV[i + 3], ARGV[i + 4]
  if named[at] then
    local rule = OPS[op]
    if not rule then return {'effect', at, op .. ' is not an effect'} end
    local call = (op == 'HSET' or op == 'HINCRBY') and {op, key, a, b} or {op, key, a}
    if not redis.acl_check_cmd(unpack(call)) then return {'effect', at, 'no right to ' .. op .. ' ' .. key} end
    local kind = types[key] or redis.call('TYPE', key).ok
    if kind ~= 'none' and kind ~= rule[1] and op ~= 'SET' then
      return {'effect', at, key .. ' holds a ' .. kind .. ', not a ' .. rule[1]}
    end
    if op == 'SET' then numbers[key] = nil end
    types[key] = rule[1]
    -- The new value of each key, or of each field of a hash. One table per key, so that no two names can meet.
    numbers[key] = numbers[key] or {}
    local known, slot = numbers[key], rule[1] == 'hash' and a or 1
    if op == 'SET' then known[slot] = a elseif op == 'HSET' then known[slot] = b end
    if rule[2] then
      local now, add = known[slot], rule[2] == 1 and a or b
      if now == nil then
        now = rule[2] == 1 and redis.call('GET', key) or rule[2] == 2 and redis.call('HGET', key, a) or '0'
      end
      if not is_whole(now) or not is_whole(add) then
        return {'effect', at, key .. ' is not a whole number'}
      end
      local sum = tonumber(now) + tonumber(add)
      if math.abs(tonumber(now)) >= 2 ^ 53 or math.abs(sum) >= 2 ^ 53 then
        return {'effect', at, key .. ' would reach 2^53, where whole numbers end'}
      end
      known[slot] = whole(sum)
    end
    effects[#effects + 1] = {at, call}
  end
end

local values, follow, room = {}, {}, {}
for i = parts, #ARGV, 4 do
  local at, what, e = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local it = named[at]
  -- Only what this call settles: a repeat finds the position blank, and nothing follows again.
  if it and what == 'value' then
    values[at] = e
  elseif it then
    local new, why = check_new(e, ARGV[i + 3], #follow, room)
    if AGAIN[it[2]] then why = 'it is not over, so nothing can follow' end
    if why then return {'effect', at, 'a message that follows: ' .. why} end
    new.of = it
    follow[#follow + 1] = new
  end
end

-- What is written after the effects must not fail: a call that failed halfway would be repeated, and the effects with it.
local refusal = not closing and denied({{'LSET', BLOCK, '0', ''}})
if jobs then
  redis.call('ZCARD', SCHEDULED)
  redis.call('HLEN', LATER)
  refusal = refusal or denied({{'ZADD', SCHEDULED, '0', ''}, {'HSET', LATER, '', ''}, {'RPUSH', KEYS[7], ''}})
end
if refusal then return refusal end
for _, effect in ipairs(effects) do
  local it = named[effect[1]]
  local done = not it.broken and redis.pcall(unpack(effect[2]))
  if type(done) == 'table' and done.err then
    it.broken = true
    if head then it[1] = in_pack(effect[1], 'f', ARGV[it[4] + 3], ARGV[it[4] + 4]) or it[1] end
    it[2], it[3] = 'f', cjson.encode({v = 1, cause = 'handler', member = me, label = '',
      reason = 'its effect failed: ' .. done.err})
  end
end
local function ledger(message, outcome)
  local id, attempt = string.match(message, '^...|([^|]+)|(%d+)')
  if not id then id, attempt = 'unreadable', '1' end
  enter(LEDGER, keep, id, outcome, me, attempt)
end
-- These messages are settled: forget which workers could not read them. Such a message never travels in a pack.
if not head and redis.call('EXISTS', KEYS[8 + K]) == 1 then
  local over = closing and redis.call('LRANGE', BLOCK, 0, -1) or {}
  for _, at in ipairs(named_at) do over[#over + 1] = named[at][1] end
  for _, message in ipairs(over) do
    if message ~= '' and message ~= '-' then
      redis.call('HDEL', KEYS[8 + K], string.match(message, '^...|([^|]+)|') or 'unreadable')
    end
  end
end
if closing and keep ~= '0' then
  for i, message in ipairs(redis.call('LRANGE', BLOCK, 0, -1)) do
    if message ~= '' and message ~= '-' and not named[tostring(i - 1)] then ledger(message, 'done') end
  end
end
local count = {d = 0, f = 0, x = 0, r = 0, z = 0, w = 0}
for _, at in ipairs(named_at) do
  local it = named[at]
  local message, word = it[1], it[2]
  count[word] = count[word] + 1
  if AGAIN[word] then
    again(message, word, tonumber(it[3]) or 0)
  else
    local outcome = word == 'd' and 'done' or 'failed'
    if keep ~= '0' then ledger(message, outcome) end
    if jobs then message = finish(message, outcome, values[at]) end
    if word == 'f' then redis.call('XADD', ERRORS, '*', 'm', message, 'e', it[3]) end
  end
  if not closing then redis.call('LSET', BLOCK, at, '') end
end
-- Endings first: a message may be followed by another one of its own unique name.
local followed, skipped = 0, 0
for _, message in ipairs(follow) do
  local name = message[5].unique
  if message.of.broken then
    name = nil
  elseif name and redis.call('HEXISTS', UNIQUE, name) == 1 then
    skipped = skipped + 1
  else
    place(unpack(message, 1, 6))
    followed = followed + 1
  end
end
if jobs then flush() end
if closing then
  settled = left
  left = 0
else
  left = left - settled
end
if left == 0 then
  redis.call('DEL', BLOCK, PACK)
  redis.call('HDEL', BLOCKS, n)
elseif settled > 0 then
  redis.call('HSET', BLOCKS, n, string.format('%.0f:%s', left, stamp))
end
if settled > 0 then
  local failed = count.f + count.x
  local done = settled - failed - count.r - count.z - count.w
  redis.call('HINCRBY', KEYS[2], 'claimed', whole(-settled))
  if done > 0 then redis.call('HINCRBY', KEYS[2], 'done', done) end
  if failed > 0 then redis.call('HINCRBY', KEYS[2], 'failed', failed) end
end
if jobs then
  for name, more in pairs({forgotten = count.x, retried = count.r, snoozed = count.z + count.w, sent = followed,
      followed = followed, skipped = skipped}) do
    if more > 0 then redis.call('HINCRBY', KEYS[2], name, more) end
  end
end
if #reply > 1 then redis.call('HINCRBY', KEYS[2], 'lost', #reply - 1) end
return reply
