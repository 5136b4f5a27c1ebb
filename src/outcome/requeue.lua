#!lua
-- Puts failed messages back to work: each record that is removed becomes one new message; the old id stays failed.
-- KEYS[1] errors STREAM        KEYS[2] sent:<sender> STRING, with a time to live   KEYS[3] counts HASH
-- KEYS[4] wake LIST            KEYS[5] lane:high    KEYS[6] lane:normal            KEYS[7] lane:low
-- ARGV    sender, from (the number of the first new message), lane letter ('' = each its own, normal for what was
--         generated), backlog_max, then positions in the error store
-- Returns {'ok', requeued, unreadable}, {'already', requeued} (a repeat), 'full' (no room: nothing was moved),
--         'gap' (the numbers were forgotten: begin anew under another name)
-- Why numbers: removing a record is safe to repeat; they tell a repeat how many it was.
local from = tonumber(ARGV[2])
local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '0', '^%d+'))
if last >= from then return {'already', last - from + 1} end
if last ~= from - 1 then return 'gap' end
local lanes = {h = KEYS[5], n = KEYS[6], l = KEYS[7]}
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))

-- Check everything before the first write: Lua has no rollback.
local moves, more, unreadable = {}, {}, 0
for i = 5, #ARGV do
  local entry = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  local message
  for at = 1, entry and #entry[2] or 0, 2 do
    if entry[2][at] == 'm' then message = entry[2][at + 1] end
  end
  local letter, flags, id, rest = string.match(message or '', '^1(.)(.)|([^|]+)|%d+|%d+|(.*)$')
  local headers, payload = {}, rest
  if flags == 'h' then
    local length, json = string.match(rest, '^(%d+):(.*)$')
    if length and #json < tonumber(length) then length = nil end
    payload = length and string.sub(json, length + 1)
    local fine, found = pcall(cjson.decode, length and string.sub(json, 1, length) or '')
    if fine and type(found) == 'table' then headers = found end
  end
  if payload then
    headers.origin = id
    if ARGV[3] ~= '' then letter = ARGV[3] elseif not lanes[letter] then letter = 'n' end
    more[letter] = (more[letter] or redis.call('LLEN', lanes[letter])) + 1
    if more[letter] > tonumber(ARGV[4]) then return 'full' end
    local json = cjson.encode(headers)
    moves[#moves + 1] = {ARGV[i], letter, string.format('1%sh|s%s-%.0f|1|%s|%d:', letter, ARGV[1],
      from + #moves, now, #json) .. json .. payload}
  elseif message then
    unreadable = unreadable + 1
  end
end
if #moves == 0 then return {'ok', 0, unreadable} end
for _, move in ipairs(moves) do
  redis.call('XDEL', KEYS[1], move[1])
  redis.call('RPUSH', lanes[move[2]], move[3])
end
redis.call('SET', KEYS[2], string.format('%.0f', from + #moves - 1), 'PX', 3600000)
redis.call('HINCRBY', KEYS[3], 'sent', #moves)
redis.call('HINCRBY', KEYS[3], 'requeued', #moves)
if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('RPUSH', KEYS[4], '1') end
return {'ok', #moves, unreadable}
