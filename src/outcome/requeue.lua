#!lua
-- Puts failed messages back to work: each record that is removed becomes one new message. The old id stays
-- failed.
-- KEYS[1…18] as in jobs.lua
-- KEYS[19] errors STREAM   KEYS[20] sent:<sender> STRING, with a time to live   KEYS[21] config HASH
-- KEYS[22] notices STREAM
-- ARGV    sender, from (the number of the first new message), lane letter ('' = each its own; normal for generated
--         messages), protocol, bytes_max, who asks, then positions in the error store
-- Returns {'ok', requeued, left (nobody can read them, or a message of their unique name is open), number of positions
--         that were read: the rest is for another call}, {'already', the same three} (a repeat),
--         {'full', backlog_max} (no room: nothing was moved),
--         'gap' (the numbers were forgotten: begin again under another name), {'protocol', theirs}
-- Uses    denied, jobs, note_more, waiting
-- Why numbers: removing a record is safe to repeat, and the numbers tell a repeat how many were moved.
local from = tonumber(ARGV[2])
local config = redis.call('HMGET', KEYS[21], 'protocol', 'backlog_max')
if config[1] ~= ARGV[4] and (config[1] or redis.call('EXISTS', KEYS[21]) == 1) then
  return {'protocol', config[1] or '1'}
end
local backlog_max = config[2] or '1000000'
local last, left_then, looked_then = string.match(redis.call('GET', KEYS[20]) or '0|0|0', '^(%d+)|?(%d*)|?(%d*)')
last = tonumber(last)
if last >= from then
  return {'already', last - from + 1, tonumber(left_then), tonumber(looked_then)}
end
if last ~= from - 1 then return 'gap' end

-- Adds the origin to headers without parsing the rest: numbers and fields of later versions stay as they are. The new
-- message is no child and no parent, because the end of the old one was counted, and it does not expire: somebody wants it.
local function with_origin(json, id)
  local rest = string.match(json, '^%s*{(.*)}%s*$') or ''
  for _, field in ipairs({'"origin"%s*:%s*"[^"]*"', '"parent"%s*:%s*"[^"]*"', '"children[a-z_]*"%s*:%s*%d+',
      '"expires"%s*:%s*%d+'}) do
    rest = string.gsub(rest, field .. '%s*,?%s*', '')
  end
  rest = string.gsub(rest, ',%s*$', '')
  return '{"origin":' .. cjson.encode(id) .. (string.find(rest, '%S') and ',' .. rest or '') .. '}'
end

-- The headers and the payload of an envelope, from where its time begins; nothing if it is cut short.
local function parts(message, flag, at)
  local body = string.match(message, '^%d+|()', at)
  if not body or flag == '-' then return body and '', body and string.sub(message, body) end
  local length, json = string.match(message, '^(%d+):()', body)
  if not length or json + length - 1 > #message then return end
  return string.sub(message, json, json + length - 1), string.sub(message, json + length)
end

-- Check everything before the first write: Lua has no rollback.
local moves, more, seen, names, left, bytes, looked = {}, {}, {}, {}, 0, 0, 0
for i = 7, #ARGV do
  local entry = redis.call('XRANGE', KEYS[19], ARGV[i], ARGV[i])[1]
  for _, field in ipairs(entry and entry[2] or {}) do bytes = bytes + #field end
  if looked > 0 and bytes > tonumber(ARGV[5]) then break end
  looked = looked + 1
  local message
  for at = 1, entry and #entry[2] or 0, 2 do
    if entry[2][at] == 'm' then message = entry[2][at + 1] end
  end
  if message and not seen[ARGV[i]] then
    seen[ARGV[i]] = true
    local lane, flag, id, _, _, _, at = read(message)
    local json, payload
    if lane then json, payload = parts(message, flag, at) end
    local h = payload and duties(message, flag, at)
    if not payload or h.unique and (names[h.unique] or redis.call('HEXISTS', UNIQUE, h.unique) == 1) then
      left = left + 1
    else
      if h.unique then names[h.unique] = true end
      if ARGV[3] ~= '' then lane = ARGV[3] elseif lane == 'g' then lane = 'n' end
      h.parent, h.children = nil, nil
      flag = h.key and 'k' or (h.unique or h.result) and 'j' or 'h'
      local target = flag == 'k' and PARKED or LANES[lane]
      more[target] = (more[target] or (flag == 'k' and redis.call('ZCARD', PARKED)) or waiting(target, KEYS[2])) + 1
      if more[target] > tonumber(backlog_max) then return {'full', backlog_max} end
      json = with_origin(json, id)
      local new = string.format('s%s-%.0f', ARGV[1], from + #moves)
      local e = string.format('1%s%s|%s|1|%s|%d:', lane, flag, new, whole(NOW), #json) .. json .. payload
      moves[#moves + 1] = {ARGV[i], e, lane, flag, new, h}
    end
  end
end
if #moves == 0 then return {'ok', 0, left, looked} end
redis.call('HGET', KEYS[2], 'sent')
local refusal = denied({{'XDEL', KEYS[19], '0-1'}, {'RPUSH', KEYS[7], ''}, {'SET', KEYS[20], ''},
  {'HINCRBY', KEYS[2], 'sent', '1'}})
if refusal then return refusal end
for _, move in ipairs(moves) do
  redis.call('XDEL', KEYS[19], move[1])
  place(unpack(move, 2, 6))
end
redis.call('SET', KEYS[20], string.format('%.0f|%.0f|%.0f', from + #moves - 1, left, looked), 'PX', 3600000)
redis.call('HINCRBY', KEYS[2], 'sent', #moves)
redis.call('HINCRBY', KEYS[2], 'requeued', #moves)
note_more(KEYS[22], NOW, 'errors-requeued', ARGV[6], #moves)
return {'ok', #moves, left, looked}
