-- Functions that several scripts share. A script names the functions it uses in its head, and they are put before
-- it. They get their keys as arguments, so the head of a script names every key that it touches.

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

-- Leaves a token that wakes one idle worker. Without the token a worker finds the message later, so a failure is
-- not an error.
local function wake(key)
  if redis.call('EXISTS', key) == 0 then redis.pcall('RPUSH', key, '1') end
end

-- Writes an outcome to the ledger: keep is '0' (no entries), '-1' (all entries) or about how many entries to
-- keep.
local function enter(ledger, keep, id, outcome, member, attempt)
  if keep == '-1' then
    redis.call('XADD', ledger, '*', 'id', id, 'outcome', outcome, 'member', member, 'attempt', attempt)
  elseif keep ~= '0' then
    redis.call('XADD', ledger, 'MAXLEN', '~', keep, '*',
      'id', id, 'outcome', outcome, 'member', member, 'attempt', attempt)
  end
end

-- The next number of a sequence that only grows (terms, tokens, generations); false past 2^52.
-- Why 2^52: past 2^53 Lua skips numbers, and the sequence would silently stop growing.
local function grow(highest, now_us)
  local next = math.max((highest or 0) + 1, now_us)
  return next <= 4503599627370496 and string.format('%.0f', next)
end

-- An error if the user may not run one of these commands, else nil. Checked before the first write: Lua has no
-- rollback.
local function denied(commands)
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(unpack(command)) then
      return redis.error_reply('NOPERM this user may not ' .. command[1] .. ' ' .. command[2])
    end
  end
end

-- How many workers died over a message with these tries: `runs`, `runs.retries.snoozes` or `runs.retries.snoozes.waits`,
-- the run that begins now included.
local function deaths(tries)
  local a, r, s, w = string.match(tries, '^(%d+)%.(%d+)%.(%d+)%.?(%d*)$')
  return a and a - 1 - r - s - (tonumber(w) or 0) or (tonumber(tries) or 1) - 1
end

-- The field of control that says that this member must drain.
local function drain_field(id) return 'drain:' .. id end

-- Writes to the common log of the fleet, which keeps a week and about 10,000 entries. It is for people: that it cannot be
-- written is not an error. Observers (`o…`) come and go with every lock, and are not in it.
local function note(notices, now_ms, kind, member, ...)
  local length = string.sub(member, 1, 1) ~= 'o' and redis.pcall('XLEN', notices)
  if type(length) ~= 'number' then return end
  local trim, how, bound = 'MINID', '=', string.format('%.0f', math.max(now_ms - 604800000, 0))
  if length > 10000 then trim, how, bound = 'MAXLEN', '~', '10000' end
  redis.pcall('XADD', notices, trim, how, bound, '*', 'kind', kind, 'member', member, ...)
end

-- The sum of all counts that only grow. A server with a smaller sum than it had before has forgotten.
local function steps_of(counts)
  local steps = 0
  for _, count in ipairs(redis.call('HMGET', counts, 'generated', 'sent', 'done', 'failed', 'returned')) do
    steps = steps + (tonumber(count) or 0)
  end
  return steps
end

-- Adds a server to the list of servers, with the steps that the fleet has there, unless it is the last one already.
local function enlist(servers, notices, server, steps, now_ms, member)
  local last = string.match(redis.call('LINDEX', servers, -1) or '', '^[^|]*')
  if last == server then return end
  redis.call('RPUSH', servers, string.format('%s|%.0f|%.0f', server, steps, now_ms))
  redis.call('LTRIM', servers, -100, -1)
  if last ~= '' then note(notices, now_ms, 'server-changed', member, 'from', last, 'to', server) end
end

-- Notes what somebody did to messages. What the same one did within ten seconds is one entry, with a sum.
local function note_more(notices, now_ms, kind, by, count)
  local last = redis.pcall('XREVRANGE', notices, '+', '-', 'COUNT', 1)
  local ms, fields = string.match(last[1] and last[1][1] or '', '^(%d+)'), {}
  for i = 1, ms and #last[1][2] - 1 or 0, 2 do fields[last[1][2][i]] = last[1][2][i + 1] end
  if fields.kind == kind and fields.by == by and now_ms - ms < 10000 then
    redis.pcall('XDEL', notices, last[1][1])
    count = count + (tonumber(fields.count) or 0)
  end
  note(notices, now_ms, kind, '', 'count', string.format('%.0f', count), 'by', by)
end

-- Remembers since when nobody leads, and why, if this member leads. Returns its term, or nothing.
local function vacate(lease, watch, id, since_ms, why)
  local held = redis.pcall('GET', lease)
  local holder, term = string.match(type(held) == 'string' and held or '', '^([^|]+)|(%d+)$')
  if holder ~= id then return end
  redis.call('HSET', watch, 'led', string.format('%.0f|%s|%s', since_ms, why, id))
  return term
end

-- Ends the session of a dead member, makes it an orphan, and notes it: it was last heard of one lease before its deadline.
local function reap(members, suspects, blind, orphans, control, watch, lease, notices, id, now_ms, lease_ms)
  local heard_ms = math.min(now_ms, (redis.call('ZSCORE', members, id) or now_ms) - lease_ms)
  local term = vacate(lease, watch, id, heard_ms, 'died')
  note(notices, now_ms, 'died', id, 'silent_ms', string.format('%.0f', now_ms - heard_ms), 'role', term and 'generator' or '',
    'term', term or '')
  redis.call('HDEL', control, drain_field(id))
  redis.call('ZREM', members, id)
  redis.call('HDEL', suspects, id)
  redis.call('SREM', blind, id)
  redis.call('SADD', orphans, id)
end

-- Splits the head of a pack: the text before its first number, that number, the text behind it, and where the messages
-- begin. Nothing if the text is not a pack.
local function pack_head(text) return string.match(text, '^(...|[^|]*%-)(%d+)(|1|%d+|)()') end

-- Where the body of the message at this offset of a pack begins and ends: a message is `<length>:<body>`. Nothing if it
-- is not complete.
local function body_at(text, from)
  local length, first = string.match(text, '^(%d+):()', from)
  if length and first + length - 1 <= #text then return first, first + length - 1 end
end

-- The envelopes of complete messages in a pack, from an offset on, and the offset of the next message. Numbers go up by
-- one.
local function envelopes(text, from, head, seq, tail, most)
  local list = {}
  local first, last = body_at(text, from)
  while first and #list < most do
    list[#list + 1] = head .. string.format('%.0f', seq + #list) .. tail .. string.sub(text, first, last)
    from = last + 1
    first, last = body_at(text, from)
  end
  return list, from
end

-- Turns a packed block into a list of envelopes, for scripts that must look at single messages.
local function lay_open(pack, block)
  local kind = redis.call('TYPE', pack).ok
  if kind == 'none' then return end
  local text, list = kind == 'string' and redis.call('GET', pack) or '', {}
  local head, seq, tail, from = pack_head(text)
  if head then list, from = envelopes(text, from, head, seq, tail, 1000) end
  -- The rest that cannot be read is kept, as one message that nobody can read.
  local rest = string.sub(text, from or 1)
  if rest ~= '' or #list == 0 then list[#list + 1] = rest ~= '' and rest or '?' end
  redis.call('RPUSH', block, unpack(list))
  redis.call('DEL', pack)
end

-- The field of counts that says how many messages of a lane have no entry of their own: a chunk has one entry and counts
-- for all its messages.
local function extra_field(lane) return 'extra:' .. string.match(lane, '[^:]+$') end

-- How many messages wait in a lane, how many of them have no entry of their own, and the value of this counter, if one is
-- asked for. In an empty lane there are no chunks, whatever is counted.
local function waiting(lane, counts, counter)
  local entries, field = redis.call('LLEN', lane), extra_field(lane)
  local read = redis.call('HMGET', counts, field, counter or field)
  local extra = entries > 0 and tonumber(read[1] or 0) or 0
  return math.max(entries, entries + extra), extra, tonumber(read[2] or 0)
end
