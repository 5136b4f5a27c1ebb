-- Functions that several scripts share. A script names those it uses in its head; they are put before it.
-- They take their keys as arguments: what a script touches is named in its own head.

-- The time of Redis, in milliseconds and in microseconds.
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000), t[1] * 1000000 + t[2]
end

-- A whole number as text: tostring would write 1.79e+15.
local function whole(n) return string.format('%.0f', n) end

-- The deadline of a member's session, false if it has none. Only a member may lead, claim or settle.
local function deadline_of(members, id) return redis.call('ZSCORE', members, id) end

-- Moves the deadline of the caller's session on.
local function refresh(members, me, now_ms, lease_ms)
  redis.call('ZADD', members, 'XX', string.format('%.0f', now_ms + lease_ms), me)
end

-- Leaves a token that wakes one idle worker. Without it workers look by themselves, only later, so a failure is no error.
local function wake(key)
  if redis.call('EXISTS', key) == 0 then redis.pcall('RPUSH', key, '1') end
end

-- Enters an outcome into the ledger: keep is '0' (nothing), '-1' (everything) or about how many entries stay.
local function enter(ledger, keep, id, outcome, member, attempt)
  if keep == '-1' then
    redis.call('XADD', ledger, '*', 'id', id, 'outcome', outcome, 'member', member, 'attempt', attempt)
  elseif keep ~= '0' then
    redis.call('XADD', ledger, 'MAXLEN', '~', keep, '*',
      'id', id, 'outcome', outcome, 'member', member, 'attempt', attempt)
  end
end

-- The next number of those that only grow (terms, tokens, generations); false past 2^52.
-- Why 2^52: past 2^53 Lua's numbers skip, and they would silently stop growing.
local function grow(highest, now_us)
  local next = math.max((highest or 0) + 1, now_us)
  return next <= 4503599627370496 and string.format('%.0f', next)
end

-- An error if the user may not run one of these commands, else nil. Asked before the first write: Lua has no rollback.
local function denied(commands)
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(unpack(command)) then
      return redis.error_reply('NOPERM this user may not ' .. command[1] .. ' ' .. command[2])
    end
  end
end

-- Ends the session of a member that is dead; what it held becomes an orphan's.
local function reap(members, suspects, blind, orphans, id)
  redis.call('ZREM', members, id)
  redis.call('HDEL', suspects, id)
  redis.call('SREM', blind, id)
  redis.call('SADD', orphans, id)
end
