#!lua flags=allow-oom
-- Records outcomes of the caller's block, once each, with everything that belongs to them.
-- KEYS[1] members ZSET  KEYS[2] blocks:<me> HASH   KEYS[3] block:<me>:<n> LIST   KEYS[4] counts HASH
-- KEYS[5] errors STREAM KEYS[6] ledger STREAM      KEYS[7] config HASH           KEYS[8] unread HASH
-- KEYS[9] pack:<me>:<n> STRING: the block, while no script has looked at its single messages
-- KEYS[10…] data:<name> keys that the effects write
-- ARGV    me, n, stamp, lease_ms, rest (how many messages that are not named are done; '-' = the block stays open),
--         first (the id in the head of the pack that fetch gave to the caller; '' = it got envelopes),
--         k, then k times: position, 'd' or 'f', error info (JSON), and for a message out of a pack: the offset of
--         its `<length>:` in the pack, and the length (else '' and ''),
--         then for each effect: position, op, index of its key from KEYS[10], two arguments
-- Returns {'ok', lost positions …}, 'already' (the block is closed), 'gone',
--         'gap' (number, stamp or rest do not fit: Redis lost data), {'effect', position, why it cannot be applied}
-- Uses    clock, deadline_of, enter, lay_open, pack_head, refresh, whole
-- Why rest is a number: if it differs from what is left, somebody settled a message that the caller thinks it
-- holds.
-- Why an effect that fails after all checks fails its message: a refused call would be repeated, and with it the
-- effects that came before.
local me, n = ARGV[1], ARGV[2]
if not deadline_of(KEYS[1], me) then return 'gone' end
refresh(KEYS[1], me, clock(), ARGV[4])
local block = redis.call('HGET', KEYS[2], n)
if not block then
  if tonumber(n) <= tonumber(redis.call('HGET', KEYS[2], 'hi') or '0') then return 'already' end
  return 'gap'
end
local left, stamp = string.match(block, '^(%d+):(.+)$')
if stamp ~= ARGV[3] then return 'gap' end
left = tonumber(left)
local closing, k = ARGV[5] ~= '-', tonumber(ARGV[7])
local keep = redis.call('HGET', KEYS[7], 'ledger') or '0'

-- A closing call without a ledger reads what it needs from the pack. All others need single messages.
local head, seq, tail
if not closing or keep ~= '0' then
  lay_open(KEYS[9], KEYS[3])
elseif k > 0 and redis.call('EXISTS', KEYS[9]) == 1 then
  head, seq, tail = pack_head(redis.call('GETRANGE', KEYS[9], 0, 299))
  if not head or string.sub(head, 5) .. seq ~= ARGV[6] then return 'gap' end
end
local function is_count(text) return #text < 10 and string.find(text, '^%d+$') end
-- The message at this position of the pack. Of one that is done, its place is enough.
local function in_pack(at, word, offset, length)
  if not is_count(at) or tonumber(at) >= left then return false end
  if word ~= 'f' then return head end
  if not is_count(offset) or not is_count(length) then return false end
  local text = redis.call('GETRANGE', KEYS[9], offset, whole(offset + #length + length))
  if #text ~= #length + 1 + length or string.sub(text, 1, #length + 1) ~= length .. ':' then return false end
  return head .. whole(seq + at) .. tail .. string.sub(text, #length + 2)
end

-- Check everything before the first write: Lua has no rollback.
local reply, named, order, settled, failed = {'ok'}, {}, {}, 0, 0
for i = 8, 7 + 5 * k, 5 do
  local message
  if head then
    message = in_pack(ARGV[i], ARGV[i + 1], ARGV[i + 3], ARGV[i + 4])
  else
    message = redis.call('LINDEX', KEYS[3], ARGV[i])
  end
  if not message then return 'gap' end
  if message == '-' then
    reply[#reply + 1] = ARGV[i]
  elseif message ~= '' and not named[ARGV[i]] then
    named[ARGV[i]] = {message, ARGV[i + 1], ARGV[i + 2], i}
    order[#order + 1] = ARGV[i]
    settled = settled + 1
    if ARGV[i + 1] == 'f' then failed = failed + 1 end
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
for i = 8 + 5 * k, #ARGV, 5 do
  local at, op, key, a, b = ARGV[i], ARGV[i + 1], KEYS[9 + tonumber(ARGV[i + 2])], ARGV[i + 3], ARGV[i + 4]
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

for _, effect in ipairs(effects) do
  local it = named[effect[1]]
  local done = not it.broken and redis.pcall(unpack(effect[2]))
  if type(done) == 'table' and done.err then
    it.broken = true
    if head then it[1] = in_pack(effect[1], 'f', ARGV[it[4] + 3], ARGV[it[4] + 4]) or it[1] end
    if it[2] ~= 'f' then failed = failed + 1 end
    it[2], it[3] = 'f', cjson.encode({v = 1, cause = 'handler', member = me, label = '',
      reason = 'its effect failed: ' .. done.err})
  end
end
local function ledger(message, outcome)
  local id, attempt = string.match(message, '^...|([^|]+)|(%d+)|')
  if not id then id, attempt = 'unreadable', '1' end
  enter(KEYS[6], keep, id, outcome, me, attempt)
end
-- These messages are settled: forget which workers could not read them. Such a message never travels in a pack.
if not head and redis.call('EXISTS', KEYS[8]) == 1 then
  local all = closing and redis.call('LRANGE', KEYS[3], 0, -1) or {}
  for _, at in ipairs(order) do all[#all + 1] = named[at][1] end
  for _, message in ipairs(all) do
    if message ~= '' and message ~= '-' then
      redis.call('HDEL', KEYS[8], string.match(message, '^...|([^|]+)|') or 'unreadable')
    end
  end
end
if closing and keep ~= '0' then
  for i, message in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
    if message ~= '' and message ~= '-' and not named[tostring(i - 1)] then ledger(message, 'done') end
  end
end
for _, at in ipairs(order) do
  local it = named[at]
  if it[2] == 'f' then redis.call('XADD', KEYS[5], '*', 'm', it[1], 'e', it[3]) end
  if keep ~= '0' then ledger(it[1], it[2] == 'f' and 'failed' or 'done') end
  if not closing then redis.call('LSET', KEYS[3], at, '') end
end
if closing then
  settled = left
  left = 0
else
  left = left - settled
end
if left == 0 then
  redis.call('DEL', KEYS[3], KEYS[9])
  redis.call('HDEL', KEYS[2], n)
elseif settled > 0 then
  redis.call('HSET', KEYS[2], n, string.format('%.0f:%s', left, stamp))
end
if settled > 0 then
  redis.call('HINCRBY', KEYS[4], 'claimed', whole(-settled))
  if settled > failed then redis.call('HINCRBY', KEYS[4], 'done', settled - failed) end
  if failed > 0 then redis.call('HINCRBY', KEYS[4], 'failed', failed) end
end
if #reply > 1 then redis.call('HINCRBY', KEYS[4], 'lost', #reply - 1) end
return reply
