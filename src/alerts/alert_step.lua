#!lua flags=allow-oom
-- Moves the alerts of the fleet on, and says what the caller must tell to whom.
-- KEYS[1] members ZSET   KEYS[3] notices STREAM
-- KEYS[2] alerts HASH: `by`, who judges; `cursor`, how far the common log was read;
--         `open`, what sinks were told to fire: `<sink>:<rule>`, one in a line;
--         `rule:<rule>` -> `state|since|episode|ended`, state: q(uiet), p(ending), f(iring); of an event, since: the last one;
--         `text:firing:<rule>`, `text:resolved:<rule>`: what is told of a condition;
--         `news:<sink>:<rule>`, `telling:<sink>:<rule>`: events that wait, and those that are being told;
--         `told:<sink>:<rule>` -> `fired|resolved|what|episode|by`, the last three: who is telling it now; nobody: it was given up
-- ARGV    me, '1' if the caller should judge rather than others, cursor as the caller knows it, new cursor;
--         number of sinks, sinks …; number of claims the caller is busy with, each `<sink>:<rule>`, or `<sink>` if it should get
--         none …; number of those that the caller remembers as open, each `<sink>:<rule>` …; then for each rule:
--         its name, 'c' (a condition) or 'e' (an event), verdict ('1', '0', '?' = not known), hold_ms, cooldown_ms, text
-- Returns {'ok', cursor, open, then for each claim: sink, rule, 'firing' or 'resolved', episode, '1' if it may have been told
--         before, ms when it happened, text …},
--         {'moved', cursor} (somebody else read on: nothing changed), {'held', cursor, open} (another member judges), 'gone'
-- Uses    clock, deadline_of, whole
-- Why one claim at a time for each sink and rule: a sender that dies is noticed, and what it was telling is told again, marked.
-- What happens while something is being told waits; events that wait are told together.
-- Why callers remember: Redis may lose its data, or go back to an older state, and then nobody else knows what must still be
-- told to end. Each caller adds what it remembers, also one that does not judge: the judge may be new.
local me, now = ARGV[1], clock()
if not deadline_of(KEYS[1], me) then return 'gone' end
if redis.call('HLEN', KEYS[2]) > 2000 then redis.call('DEL', KEYS[2]) end

local function newest()
  local entry = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
  return entry and entry[1] or '0-0'
end

-- A cursor if it can be true: one that is ahead of the clock and of the log would read nothing any more.
local function sound(cursor)
  local ms, number = string.match(cursor or '', '^(%d+)%-(%d+)$')
  if not ms or #ms > 19 or #number > 19 then return nil end
  if tonumber(ms) > now and tonumber(ms) > tonumber((string.match(newest(), '^%d+'))) then return nil end
  return cursor
end

local function behind(one, other)
  local ms, number = string.match(one, '^(%d+)%-(%d+)$')
  local other_ms, other_number = string.match(other, '^(%d+)%-(%d+)$')
  if tonumber(ms) ~= tonumber(other_ms) then return tonumber(ms) < tonumber(other_ms) end
  return tonumber(number) < tonumber(other_number)
end

local i = 5
local function list()
  local items = {}
  for n = 1, tonumber(ARGV[i]) do items[n] = ARGV[i + n] end
  i = i + 1 + tonumber(ARGV[i])
  return items
end
local sinks, busy = list(), {}
for _, claim in ipairs(list()) do busy[claim] = true end

local cursor, known = sound(redis.call('HGET', KEYS[2], 'cursor')), sound(ARGV[3])
local open = redis.call('HGET', KEYS[2], 'open') or ''
if #open > 100000 then open = '' end
-- What the caller knows to fire and the record does not: Redis has lost it.
local set_back = cursor and known and behind(cursor, known)
for _, claim in ipairs(list()) do
  local rule, told = string.match(claim, '^[^:]*:(.+)$'), redis.call('HGET', KEYS[2], 'told:' .. claim)
  local fired, resolved = string.match(told or '', '^(%d+)|(%d+)|')
  fired, resolved = tonumber(fired or 0), tonumber(resolved or 0)
  if rule and (not told or set_back and fired <= resolved) then
    fired = math.max(now, resolved + 1)
    redis.call('HSET', KEYS[2], 'told:' .. claim, string.format('%.0f|%.0f|||', fired, resolved))
    redis.call(told and 'HSET' or 'HSETNX', KEYS[2], 'rule:' .. rule, string.format('f|%.0f|%.0f|0', fired, fired))
    open = open .. '\n' .. claim
    redis.call('HSET', KEYS[2], 'open', open)
  end
end

local by = redis.call('HGET', KEYS[2], 'by')
if by and by ~= me and ARGV[2] ~= '1' and deadline_of(KEYS[1], by) then return {'held', cursor or '', open} end
cursor = cursor or known
if not cursor then return {'moved', newest()} end
if cursor ~= ARGV[3] then return {'moved', cursor} end
redis.call('HSET', KEYS[2], 'by', me, 'cursor', ARGV[4])

-- Is it being told by a living member? And what was claimed by one that died or gave up, so that it may have been told?
local function claimed(sink, claim)
  local fired, resolved, what, who = string.match(redis.call('HGET', KEYS[2], 'told:' .. claim) or '',
    '^(%d+)|(%d+)|(%a*)|%d*|(.*)$')
  local telling = who and who ~= '' and (who == me and busy[claim] or who ~= me and deadline_of(KEYS[1], who))
  return telling or busy[sink], what and what ~= '' and what, tonumber(fired), tonumber(resolved)
end

local reply, opened = {'ok', ARGV[4], ''}, {}
local function claim_it(sink, rule, fired, resolved, what, episode, again, at, text)
  redis.call('HSET', KEYS[2], 'told:' .. sink .. ':' .. rule,
    string.format('%.0f|%.0f|%s|%.0f|%s', fired, resolved, what, episode, me))
  for _, part in ipairs({sink, rule, what, whole(episode), again and '1' or '0', whole(at), text}) do
    reply[#reply + 1] = part
  end
end

-- Adds to a field, up to a bound.
local function append(field, text)
  local before = redis.call('HGET', KEYS[2], field)
  if before and #before + #text > 2000 then text = before .. (string.sub(before, -5) == ' more' and '' or '; and more')
  elseif before then text = before .. '; ' .. text end
  redis.call('HSET', KEYS[2], field, text)
  return text
end

-- Has this time passed since then? A time that is still to come is wrong, and must not keep an alert back.
local function passed(since, time) return since > now or now - since >= time end

-- Something that happens: it waits for each sink until it is told.
local function event(rule, happened, cooldown, text, since, episode)
  if happened and passed(since, cooldown) then
    since = now
    for _, sink in ipairs(sinks) do append('news:' .. sink .. ':' .. rule, text) end
  end
  for _, sink in ipairs(sinks) do
    local claim = sink .. ':' .. rule
    local telling, doubtful = claimed(sink, claim)
    local news = redis.call('HGET', KEYS[2], 'news:' .. claim)
    if not telling and (news or redis.call('HEXISTS', KEYS[2], 'telling:' .. claim) == 1) then
      episode = math.max(now, episode + 1)
      redis.call('HDEL', KEYS[2], 'news:' .. claim)
      text = news and append('telling:' .. claim, news) or redis.call('HGET', KEYS[2], 'telling:' .. claim)
      claim_it(sink, rule, 0, 0, 'firing', episode, doubtful, since > 0 and since or now, text)
    end
  end
  return 'q', since, episode, 0
end

-- Something that lasts: it is told when it begins and when it ends.
local function condition(rule, verdict, hold, cooldown, text, state, since, episode, ended)
  local before, news = episode, nil
  if verdict == '1' then
    if state == 'q' or since > now then state, since = state == 'q' and 'p' or state, now end
    if state == 'p' and now - since >= hold and passed(ended, cooldown) then
      state, episode, news = 'f', math.max(now, episode + 1), 'firing'
    end
  elseif verdict == '0' then
    if state == 'f' then ended, news = math.max(now, episode), 'resolved' end
    state = 'q'
  end
  if news then redis.call('HSET', KEYS[2], 'text:' .. news .. ':' .. rule, text) end
  for _, sink in ipairs(sinks) do
    local claim = sink .. ':' .. rule
    local telling, doubtful, fired, resolved = claimed(sink, claim)
    -- A sink that is new is told what fires now, and nothing of the past.
    local known = episode > before and before or state == 'f' and 0 or episode
    fired, resolved = fired or known, resolved or known
    -- The end of what was told comes before the next begin. What began and ended while a sink was told something else is told, too,
    -- if nothing has begun since.
    local what, which = nil, episode
    if fired > resolved then
      if episode > fired or ended >= fired then what, which = 'resolved', fired end
    elseif episode > fired then what = 'firing' end
    if fired > resolved or what then opened[#opened + 1] = claim end
    if what and not telling then
      claim_it(sink, rule, fired, resolved, what, which, doubtful == what, what == 'firing' and episode or ended,
        redis.call('HGET', KEYS[2], 'text:' .. what .. ':' .. rule) or text)
    end
  end
  return state, since, episode, ended
end

local function step(rule, kind, verdict, hold, cooldown, text)
  local state, since, episode, ended = string.match(redis.call('HGET', KEYS[2], 'rule:' .. rule) or '', '^(%a)|(%d+)|(%d+)|(%d+)$')
  state, since, episode, ended = state or 'q', tonumber(since or 0), tonumber(episode or 0), tonumber(ended or 0)
  if kind == 'e' then state, since, episode, ended = event(rule, verdict == '1', cooldown, text, since, episode)
  else state, since, episode, ended = condition(rule, verdict, hold, cooldown, text, state, since, episode, ended) end
  redis.call('HSET', KEYS[2], 'rule:' .. rule, string.format('%s|%.0f|%.0f|%.0f', state, since, episode, ended))
end

local judged = {}
while i + 5 <= #ARGV do
  local rule, kind, verdict, hold, cooldown, text = unpack(ARGV, i, i + 5)
  i = i + 6
  judged[rule] = true
  step(rule, kind, verdict, tonumber(hold), tonumber(cooldown), text)
end
-- A rule that nobody has set any more ends, too.
if next(judged) then
  for claim in string.gmatch(open, '[^\n]+') do
    local rule = string.match(claim, '^[^:]*:(.+)$')
    if rule and not judged[rule] then
      judged[rule] = true
      step(rule, 'c', '0', 0, 0, 'this rule is not set any more')
    end
  end
  open = table.concat(opened, '\n')
end
redis.call('HSET', KEYS[2], 'open', open)
reply[3] = open
return reply
