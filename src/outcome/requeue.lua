#!lua
-- Puts failed messages back to work: each record that is removed becomes one new message. The old id stays
-- failed.
-- KEYS[1] errors STREAM        KEYS[2] sent:<sender> STRING, with a time to live   KEYS[3] counts HASH
-- KEYS[4] wake LIST            KEYS[5] lane:high    KEYS[6] lane:normal            KEYS[7] lane:low
-- KEYS[8] config HASH
-- ARGV    sender, from (the number of the first new message), lane letter ('' = each its own; normal for generated
--         messages), protocol, bytes_max, then positions in the error store
-- Returns {'ok', requeued, unreadable, number of positions that were read: the rest is for another call},
--         {'already', the same three} (a repeat), {'full', backlog_max} (no room: nothing was moved),
--         'gap' (the numbers were forgotten: begin again under another name), {'protocol', theirs}
-- Uses    clock, denied, waiting, wake, whole
-- Why numbers: removing a record is safe to repeat, and the numbers tell a repeat how many were moved.
local from = tonumber(ARGV[2])
local config = redis.call('HMGET', KEYS[8], 'protocol', 'backlog_max')
if config[1] ~= ARGV[4] and (config[1] or redis.call('EXISTS', KEYS[8]) == 1) then
  return {'protocol', config[1] or '1'}
end
local backlog_max = config[2] or '1000000'
local last, unreadable_then, looked_then = string.match(redis.call('GET', KEYS[2]) or '0|0|0', '^(%d+)|?(%d*)|?(%d*)')
last = tonumber(last)
if last >= from then
  return {'already', last - from + 1, tonumber(unreadable_then), tonumber(looked_then)}
end
if last ~= from - 1 then return 'gap' end
local lanes = {h = KEYS[5], n = KEYS[6], l = KEYS[7]}
local now = whole((clock()))

-- Adds the origin to headers without parsing the rest: numbers and fields of later versions stay as they are.
local function with_origin(json, id)
  local rest = string.match(json, '^%s*{(.*)}%s*$') or ''
  rest = string.gsub(rest, '"origin"%s*:%s*"[^"]*"%s*,?%s*', '')
  rest = string.gsub(rest, ',%s*$', '')
  return '{"origin":' .. cjson.encode(id) .. (string.find(rest, '%S') and ',' .. rest or '') .. '}'
end

-- Check everything before the first write: Lua has no rollback.
local moves, more, seen, unreadable, bytes, looked = {}, {}, {}, 0, 0, 0
for i = 6, #ARGV do
  local entry = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  for _, field in ipairs(entry and entry[2] or {}) do bytes = bytes + #field end
  if looked > 0 and bytes > tonumber(ARGV[5]) then break end
  looked = looked + 1
  local message
  for at = 1, entry and #entry[2] or 0, 2 do
    if entry[2][at] == 'm' then message = entry[2][at + 1] end
  end
  if message and not seen[ARGV[i]] then
    seen[ARGV[i]] = true
    local letter, flags, id, rest = string.match(message, '^1(.)(.)|([^|]+)|%d+|%d+|(.*)$')
    local headers, payload = '', rest
    if flags == 'h' then
      local length, text = string.match(rest, '^(%d+):(.*)$')
      if length and #text < tonumber(length) then length = nil end
      headers = length and string.sub(text, 1, length)
      payload = length and string.sub(text, length + 1)
    end
    if payload then
      if ARGV[3] ~= '' then letter = ARGV[3] elseif not lanes[letter] then letter = 'n' end
      more[letter] = (more[letter] or waiting(lanes[letter], KEYS[3])) + 1
      if more[letter] > tonumber(backlog_max) then return {'full', backlog_max} end
      local json = with_origin(headers, id)
      moves[#moves + 1] = {ARGV[i], letter, string.format('1%sh|s%s-%.0f|1|%s|%d:', letter, ARGV[1],
        from + #moves, now, #json) .. json .. payload}
    else
      unreadable = unreadable + 1
    end
  end
end
if #moves == 0 then return {'ok', 0, unreadable, looked} end
redis.call('HGET', KEYS[3], 'sent')
local refusal = denied({{'XDEL', KEYS[1], '0-1'}, {'RPUSH', KEYS[6], ''}, {'SET', KEYS[2], ''},
  {'HINCRBY', KEYS[3], 'sent', '1'}})
if refusal then return refusal end
for _, move in ipairs(moves) do
  redis.call('XDEL', KEYS[1], move[1])
  redis.call('RPUSH', lanes[move[2]], move[3])
end
redis.call('SET', KEYS[2], string.format('%.0f|%.0f|%.0f', from + #moves - 1, unreadable, looked), 'PX', 3600000)
redis.call('HINCRBY', KEYS[3], 'sent', #moves)
redis.call('HINCRBY', KEYS[3], 'requeued', #moves)
wake(KEYS[4])
return {'ok', #moves, unreadable, looked}
