-- What all scripts share that place or end messages with duties. It is put whole before such a script.
-- KEYS[1] members ZSET       KEYS[2] counts HASH        KEYS[3] wake LIST        KEYS[4] lane:returned LIST
-- KEYS[5] lane:high LIST     KEYS[6] lane:generated LIST   KEYS[7] lane:normal LIST   KEYS[8] lane:low LIST
-- KEYS[9] scheduled ZSET, id -> due ms     KEYS[10] later HASH, id -> envelope    KEYS[11] parked ZSET, `key\0order\0id`
-- KEYS[12] slots HASH, key -> slots taken  KEYS[13] limits HASH, class -> `[-]n:rest_ms:hold`
-- KEYS[14] resting ZSET, `key\0order` -> when the slot comes back   KEYS[15] unique HASH, name -> id
-- KEYS[16] joins HASH, parent -> `unsent:open:failed`
-- KEYS[17] event: the start of the keys of events   KEYS[18] event: the start of their channels
-- Uses    clock, wake, whole
local jobs = true
local SCHEDULED, LATER, PARKED, SLOTS, LIMITS, RESTING, UNIQUE, JOINS =
  KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local LANES = {h = KEYS[5], g = KEYS[6], n = KEYS[7], l = KEYS[8]}
local NOW, NOW_US = clock()

-- Splits an envelope: the letter of its lane, its flag, its id, how often it was run, retried and snoozed, where its time
-- begins, how many workers died over it, and how often it waited for a member that knows its kind. Nothing if it is not an
-- envelope of ours.
local function read(e)
  local lane, flag, id, tries, at = string.match(e, '^1(.)(.)|([^|]+)|([%d.]+)|()')
  if not lane or not LANES[lane] then return nil end
  if not string.find(tries, '.', 1, true) then
    local a = tonumber(tries)
    return lane, flag, id, a, 0, 0, at, a - 1, 0
  end
  local a, r, s, w = string.match(tries, '^(%d+)%.(%d+)%.(%d+)%.?(%d*)$')
  if not a then return nil end
  a, r, s, w = tonumber(a), tonumber(r), tonumber(s), tonumber(w) or 0
  return lane, flag, id, a, r, s, at, a - 1 - r - s - w, w
end

-- A blank text would be taken for a settled message: nobody could read it, or end it.
local function legible(e) return (e == '' or e == '-') and '?' or e end

local NO_DUTIES = {}
-- The duties of a message, from its headers. Flags `-` and `h` say that it has none. What is not of the right type is
-- not there.
local function duties(e, flag, at)
  if flag == '-' or flag == 'h' then return NO_DUTIES end
  local length, from = string.match(e, '^%d+|(%d+):()', at)
  if not length then return NO_DUTIES end
  local ok, h = pcall(cjson.decode, string.sub(e, from, from + length - 1))
  if not ok or type(h) ~= 'table' then return NO_DUTIES end
  local function text(it) return type(it) == 'string' and it ~= '' and not string.find(it, '%z') and it or nil end
  local function count(it) return type(it) == 'number' and it >= 1 and it < 2 ^ 53 and math.floor(it) or nil end
  return {key = text(h.key), unique = text(h.unique), parent = text(h.parent), children = count(h.children),
    result = count(h.result)}
end

local function with_flag(e, flag) return string.sub(e, 1, 2) .. flag .. string.sub(e, 4) end

local function with_tries(e, id, a, r, s, at, w)
  local tries = r + s + w == 0 and whole(a) or string.format(w == 0 and '%.0f.%.0f.%.0f' or '%.0f.%.0f.%.0f.%.0f', a, r, s, w)
  return string.sub(e, 1, 3) .. '|' .. id .. '|' .. tries .. '|' .. string.sub(e, at)
end

-- Adds a field to the headers without reading the others.
local function with_field(e, at, name, value)
  local from, length, json = string.match(e, '^%d+|()(%d+):()', at)
  if not from then return e end
  local body = string.sub(e, json, json + length - 1)
  local rest = string.match(body, '^%s*{(.*)}%s*$') or ''
  body = '{"' .. name .. '":' .. value .. (string.find(rest, '%S') and ',' .. rest or '') .. '}'
  return string.sub(e, 1, from - 1) .. #body .. ':' .. body .. string.sub(e, json + length)
end

local woken = false
local function wake_one()
  if not woken then wake(KEYS[3]) end
  woken = true
end

-- Where a message waits that may start: its lane, or `returned` if workers died over it.
local function target_of(lane, dead) return dead > 0 and KEYS[4] or LANES[lane] end

local function push(e, lane, dead)
  redis.call('RPUSH', target_of(lane, dead), e)
  wake_one()
end

-- The rule of a key's class: how many of a key may be open, how long a slot rests, and whether a retry holds its slot.
local rules = {}
local function rule(key)
  local class = string.match(key, '^[^/]+') or key
  local it = rules[class]
  if not it then
    local paused, n, rest, hold = string.match(redis.call('HGET', LIMITS, class) or '', '^(-?)(%d+):(%d+):([01])$')
    it = {paused == '-' and 0 or tonumber(n or 1), tonumber(rest or 0), hold ~= '0'}
    rules[class] = it
  end
  return it[1], it[2], it[3]
end

-- Messages that wait for a time. They are written together, by flush, at the end of the script.
local times, bodies = {}, {}
local function flush()
  if #times == 0 then return end
  redis.call('ZADD', SCHEDULED, unpack(times))
  redis.call('HSET', LATER, unpack(bodies))
  times, bodies = {}, {}
end
local function schedule(id, e, due)
  local at = #times
  times[at + 1], times[at + 2], bodies[at + 1], bodies[at + 2] = due, id, id, e
  if at >= 498 then flush() end
end

-- The first of the line of a key.
local function first_of(key)
  return redis.call('ZRANGEBYLEX', PARKED, '[' .. key .. '\0', '(' .. key .. '\1', 'LIMIT', 0, 1)[1]
end

local function order() return string.format('%016.0f', redis.call('HINCRBY', SLOTS, '\0order', 1)) end

-- A message with a key that holds no slot takes one, or joins the line. Who comes joins the line if there is one, even if
-- a slot is free: nobody overtakes.
local function admit(e, id, lane, key, dead)
  local taken = tonumber(redis.call('HGET', SLOTS, key) or '0')
  if taken < (rule(key)) and not first_of(key) then
    redis.call('HSET', SLOTS, key, taken + 1)
    push(with_flag(e, 's'), lane, dead)
  else
    redis.call('ZADD', PARKED, 0, key .. '\0' .. order() .. '\0' .. id)
    redis.call('HSET', LATER, id, with_flag(e, 'k'))
  end
end

-- Lets in from the line of a key what its limit allows, and returns how many slots are taken then. One for each slot
-- that is freed always; beyond that at most 16 at a time and 250 in a script.
local extra_let_in = 250
local function let_in(key, taken)
  local limit, n = (rule(key)), 0
  while taken < limit and n < 16 and (n == 0 or extra_let_in > 0) do
    local place = first_of(key)
    if not place then break end
    local id = string.match(place, '%z([^%z]*)$')
    local e = legible(redis.call('HGET', LATER, id))
    redis.call('ZREM', PARKED, place)
    redis.call('HDEL', LATER, id)
    local lane, _, _, _, _, _, at, dead
    if e then lane, _, _, _, _, _, at, dead = read(e) end
    if lane then
      local target = target_of(lane, dead)
      -- It has waited for its turn: before all that is younger, behind all that is older.
      local head = redis.call('LINDEX', target, 0) or ''
      local its = tonumber(string.match(e, '^(%d+)|', at))
      local heads = tonumber(string.match(head, '^...|[^|]+|[%d.]+|(%d+)|') or string.match(head, '^#[^|]+|%d+|%d+|(%d+)|'))
      redis.call(its and heads and its <= heads and 'LPUSH' or 'RPUSH', target, with_flag(e, 's'))
      wake_one()
      taken = taken + 1
    elseif e then
      redis.call('RPUSH', KEYS[7], e) -- a worker fails what nobody can read
      wake_one()
    end
    if n > 0 then extra_let_in = extra_let_in - 1 end
    n = n + 1
  end
  return taken
end

local function keep_taken(key, taken)
  if taken > 0 then redis.call('HSET', SLOTS, key, whole(taken)) else redis.call('HDEL', SLOTS, key) end
end

local function free_slot(key)
  keep_taken(key, let_in(key, tonumber(redis.call('HGET', SLOTS, key) or '1') - 1))
end

-- A slot is free again, at once or when it has rested.
local function hand_on(key)
  local _, rest = rule(key)
  if rest > 0 then
    redis.call('ZADD', RESTING, whole(NOW + rest), key .. '\0' .. order())
  else
    free_slot(key)
  end
end

local function join_of(parent)
  return string.match(redis.call('HGET', JOINS, parent) or '', '^(%d+):(%d+):(%d+)$')
end

local last_due, last_ms
-- Reads a new message: what `place` needs, or nil and what is wrong with it. due is '' (now), `+ms` from now or ms. Which
-- of a batch it is, from 0, keeps the order: entries of equal time would be sorted by their ids. `room` has for each
-- parent how many children it still waits for.
local function check_new(e, due, number, room)
  local lane, flag, id, _, _, _, at = read(e)
  if not lane or lane == 'g' then return nil, 'it is not an envelope that can be added' end
  local h = duties(e, flag, at)
  if flag == 's' or (flag == 'k') ~= (h.key ~= nil) then return nil, 'its flag and its key differ' end
  if h.parent then
    -- Left out as a duplicate it would never count for its parent.
    if h.unique then return nil, 'a child cannot be unique' end
    room[h.parent] = (room[h.parent] or tonumber((join_of(h.parent))) or 0) - 1
    if room[h.parent] < 0 then return nil, 'its parent waits for no more children' end
  end
  if h.children then room[id] = h.children end
  -- Those of a batch have mostly the same time.
  if due ~= last_due then
    last_due, last_ms = due, string.sub(due, 1, 1) == '+' and NOW + string.sub(due, 2) or tonumber(due)
  end
  local ms = last_ms
  if ms and ms > NOW + 366 * 86400000 then return nil, 'its time is more than 366 days ahead' end
  return {e, lane, flag, id, h, ms and ms > NOW and string.format('%.3f', ms + number / 1000) or nil}
end

-- Puts a new message where it waits first. The caller calls flush at the end.
local function place(e, lane, flag, id, h, due)
  local unsent, open, failed
  if h.parent then unsent, open, failed = join_of(h.parent) end
  if unsent then
    redis.call('HSET', JOINS, h.parent, string.format('%.0f:%.0f:%s', unsent - 1, open + 1, failed))
    if tonumber(unsent) == 1 then redis.call('ZADD', SCHEDULED, 'XX', 'inf', h.parent) end
  end
  if h.unique then redis.call('HSET', UNIQUE, h.unique, id) end
  if h.children then
    redis.call('HSET', JOINS, id, string.format('%.0f:0:0', h.children))
    redis.call('HSET', LATER, id, e)
    redis.call('ZADD', SCHEDULED, due or 'inf', id)
  elseif due then
    schedule(id, e, due)
  elseif flag == 'k' then
    admit(e, id, lane, h.key, 0)
  else
    push(e, lane, 0)
  end
end

-- Takes a message out of `scheduled` and lets it go on.
local function start(e, id)
  redis.call('ZREM', SCHEDULED, id)
  redis.call('HDEL', LATER, id)
  e = legible(e)
  local lane, flag, _, _, _, _, at, dead = read(e)
  local key = flag == 'k' and duties(e, flag, at).key
  if not lane then
    redis.call('RPUSH', KEYS[7], e) -- a worker fails what nobody can read
    wake_one()
  elseif key then
    admit(e, id, lane, key, dead)
  else
    push(e, lane, dead)
  end
end

-- A parent goes on. Its headers say how many children failed and how many are not over.
local function release_parent(parent, open, failed)
  redis.call('HDEL', JOINS, parent)
  local e = redis.call('HGET', LATER, parent)
  if not e then
    redis.call('ZREM', SCHEDULED, parent)
    return
  end
  local at = select(7, read(e))
  if at and open > 0 then e = with_field(e, at, 'children_open', whole(open)) end
  if at and failed > 0 then e = with_field(e, at, 'children_failed', whole(failed)) end
  start(e, parent)
end

-- What the end of a message means to others: everything that ends a message calls this, in the same script. The outcome
-- is `done` or `failed`. Returns the envelope as it is kept: it holds no slot.
local function finish(e, outcome, value)
  local lane, flag, id, _, _, _, at = read(e)
  if not lane or flag == '-' or flag == 'h' then return e end
  local h = duties(e, flag, at)
  if flag == 's' then
    if h.key then hand_on(h.key) end
    e = with_flag(e, 'k')
  end
  if h.unique and redis.call('HGET', UNIQUE, h.unique) == id then redis.call('HDEL', UNIQUE, h.unique) end
  local unsent, open, failed
  if h.parent then unsent, open, failed = join_of(h.parent) end
  if unsent then
    open, failed = open - 1, failed + (outcome == 'failed' and 1 or 0)
    if unsent + open == 0 then
      release_parent(h.parent, 0, failed)
    else
      redis.call('HSET', JOINS, h.parent, string.format('%s:%.0f:%.0f', unsent, open, failed))
    end
  end
  if h.result then
    local name, gen = 'result.' .. id, whole(NOW_US)
    redis.call('HSET', KEYS[17] .. name, 'flag', '1', 'gen', gen, 'until', '0', 'outcome', outcome, 'value', value or '')
    redis.call('PEXPIRE', KEYS[17] .. name, whole(h.result))
    redis.pcall('SPUBLISH', KEYS[18] .. name, gen)
  end
  return e
end

-- Runs a message again after a while: it leaves its block for `scheduled`. word: `r` retry, `z` snooze, `w` wait for a member
-- that knows its kind. The caller calls flush at the end.
local function again(e, word, delay)
  local _, flag, id, a, r, s, at, _, w = read(e)
  if word == 'r' then r = r + 1 elseif word == 'z' then s = s + 1 else w = w + 1 end
  local key = flag == 's' and duties(e, flag, at).key
  e = with_tries(e, id, a + 1, r, s, at, w)
  if key then
    local _, _, hold = rule(key)
    if not hold then
      e = with_flag(e, 'k')
      hand_on(key)
    end
  end
  schedule(id, e, whole(NOW + delay))
end
