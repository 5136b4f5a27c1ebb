#!lua flags=no-writes
-- Searches one piece of a list or a stream for a message, the newest entries first.
-- KEYS[1] a lane or a block LIST, errors, a drain or the ledger STREAM
-- ARGV    id, start ('' = the newest; in a list: how many were read already; in a stream: the position of the last
--         entry that was read), how many to read
-- Returns 'end' (nothing is left), {'more', the next start, bytes that were read},
--         {'found', envelope, how many are in front of it} in a list,
--         {'found', position, fields …} in a stream
-- Uses    whole
-- Why from the tail: messages leave a list at its head and enter at its tail, so no message that stays is missed.
local kind = redis.call('TYPE', KEYS[1]).ok
local id, bytes = ARGV[1], 0
if kind == 'list' then
  local from, length = tonumber(ARGV[2]) or 0, redis.call('LLEN', KEYS[1])
  if from >= length then return 'end' end
  local items = redis.call('LRANGE', KEYS[1], -from - ARGV[3], -from - 1)
  for i = #items, 1, -1 do
    bytes = bytes + #items[i]
    if string.match(items[i], '^...|([^|]+)|') == id then
      return {'found', items[i], whole(length - from - #items + i - 1)}
    end
  end
  return {'more', whole(from + #items), bytes}
end
if kind ~= 'stream' then return 'end' end
local entries = redis.call('XREVRANGE', KEYS[1], ARGV[2] == '' and '+' or '(' .. ARGV[2], '-', 'COUNT', ARGV[3])
if #entries == 0 then return 'end' end
for _, entry in ipairs(entries) do
  local fields = entry[2]
  for i = 1, #fields, 2 do
    bytes = bytes + #fields[i + 1]
    local here = fields[i] == 'id' and fields[i + 1] or fields[i] == 'm' and string.match(fields[i + 1], '^...|([^|]+)|')
    if here == id then return {'found', entry[1], unpack(fields)} end
  end
end
return {'more', entries[#entries][1], bytes}
