#!lua flags=allow-oom
-- Moves the alerts of the fleet on, and says what the caller must tell to whom.
-- KEYS[1] members ZSET   KEYS[2] alerts HASH: `by`, who judges; `cursor`, how far the common log was read;
--         `rule:<rule>` -> `state|since|episode|ended`, state: q(uiet), p(ending), f(iring);
--         `text:firing:<rule>`, `text:resolved:<rule>`: what is told;
--         `told:<sink>:<rule>` -> `fired|resolved|what|episode|by`, the last three: who is telling it now
-- ARGV    me, '1' if the caller should judge rather than others, cursor as the caller knows it, new cursor,
--         number of sinks, sinks …, number of claims the caller is busy with, each `<sink>:<rule>` …, then for each rule:
--         its name, 'c' (a condition) or 'e' (an event), verdict ('1', '0', '?' = not known), hold_ms, cooldown_ms, text
-- Returns {'ok', cursor, then for each claim: sink, rule, 'firing' or 'resolved', episode, '1' if it may have been told before,
--         text …},
--         {'moved', cursor} (somebody else read on: nothing changed), 'held' (another member judges), 'gone'
-- Uses    clock, deadline_of, whole
-- Why one claim at a time for each sink and rule: a sender that dies is noticed, and what it was telling is told again, marked.
-- What happens while something is being told waits; events that wait are told together.
local me = ARGV[1]
if not deadline_of(KEYS[1], me) then return 'gone' end
local by = redis.call('HGET', KEYS[2], 'by')
if by and by ~= me and ARGV[2] ~= '1' and deadline_of(KEYS[1], by) then return 'held' end
local cursor = redis.call('HGET', KEYS[2], 'cursor') or ''
if cursor ~= ARGV[3] then return {'moved', cursor} end
if redis.call('HLEN', KEYS[2]) > 2000 then redis.call('DEL', KEYS[2]) end
redis.call('HSET', KEYS[2], 'by', me, 'cursor', ARGV[4])
local now, i = clock(), 5
local function list()
  local items = {}
  for n = 1, tonumber(ARGV[i]) do items[n] = ARGV[i + n] end
  i = i + 1 + tonumber(ARGV[i])
  return items
end
local sinks, busy = list(), {}
for _, claim in ipairs(list()) do busy[claim] = true end

-- What this sink was told of the rule, and what is being told.
local function told(claim)
  local fired, resolved, what, of, who = string.match(redis.call('HGET', KEYS[2], 'told:' .. claim) or '',
    '^(%d+)|(%d+)|(%a*)|(%d*)|(.*)$')
  return tonumber(fired), tonumber(resolved), what, of, who
end

-- Does an event that happened before wait for one of the sinks?
local function waits(rule, episode)
  for _, sink in ipairs(sinks) do
    local fired = told(sink .. ':' .. rule)
    if fired and fired < episode then return true end
  end
end

local reply = {'ok', ARGV[4]}
while i + 5 <= #ARGV do
  local rule, kind, verdict, hold, cooldown, text = unpack(ARGV, i, i + 5)
  i = i + 6
  hold, cooldown = tonumber(hold), tonumber(cooldown)
  local state, since, episode, ended = string.match(redis.call('HGET', KEYS[2], 'rule:' .. rule) or '', '^(%a)|(%d+)|(%d+)|(%d+)$')
  state, since, episode, ended = state or 'q', tonumber(since or 0), tonumber(episode or 0), tonumber(ended or 0)
  local before, news = episode, nil
  if kind == 'e' then
    if verdict == '1' and now - episode >= cooldown then
      if waits(rule, episode) then
        text = string.sub((redis.call('HGET', KEYS[2], 'text:firing:' .. rule) or '') .. '; ' .. text, 1, 2000)
      end
      episode, news = math.max(now, episode + 1), 'firing'
    end
  elseif verdict == '1' then
    if state == 'q' then state, since = 'p', now end
    if state == 'p' and now - since >= hold and now - ended >= cooldown then
      state, episode, news = 'f', math.max(now, episode + 1), 'firing'
    end
  elseif verdict == '0' then
    if state == 'f' then ended, news = math.max(now, episode), 'resolved' end
    state = 'q'
  end
  redis.call('HSET', KEYS[2], 'rule:' .. rule, string.format('%s|%.0f|%.0f|%.0f', state, since, episode, ended))
  if news then redis.call('HSET', KEYS[2], 'text:' .. news .. ':' .. rule, text) end
  local is_over = kind == 'c' and ended >= episode and episode > 0
  for _, sink in ipairs(sinks) do
    local claim = sink .. ':' .. rule
    local fired, resolved, what, of, who = told(claim)
    -- A sink that is new is told what fires now, and nothing of the past.
    local known = episode > before and before or state == 'f' and 0 or episode
    fired, resolved = fired or known, resolved or known
    local wanted = episode > fired and 'firing' or is_over and resolved < episode and 'resolved'
    local open = who and who ~= ''
    local telling = open and (who == me and busy[claim] or who ~= me and deadline_of(KEYS[1], who))
    if wanted and not telling then
      redis.call('HSET', KEYS[2], 'told:' .. claim,
        string.format('%.0f|%.0f|%s|%.0f|%s', fired, resolved, wanted, episode, me))
      local again = open and what == wanted and (of == whole(episode) or kind == 'e')
      for _, part in ipairs({sink, rule, wanted, whole(episode), again and '1' or '0',
          redis.call('HGET', KEYS[2], 'text:' .. wanted .. ':' .. rule) or text}) do reply[#reply + 1] = part end
    end
  end
end
return reply
