#!lua flags=no-writes
-- Searches one piece of a list or a stream for a message, the newest entries first.
-- KEYS[1] a lane or a block LIST, a pack STRING, errors, a drain or the ledger STREAM
-- ARGV    id, start ('' = the newest; in a list: how many were read already; in a stream: the position of the last
--         entry that was read), how many to read (in a pack: how many messages it has)
-- Returns 'end' (nothing is left), {'more', the next start, bytes that were read, extra},
--         {'found', envelope, how many entries are in front of it, extra} in a list; extra is how many messages of
--         chunks, beyond one per reference, are in this piece and behind it; the envelope of a message in a chunk
--         has no payload,
--         {'found', position, fields …} in a stream
-- Uses    pack_head, whole
-- Why from the tail: messages leave a list at its head and enter at its tail, so no message that stays is missed.
local kind = redis.call('TYPE', KEYS[1]).ok
local id, bytes, extra = ARGV[1], 0, 0
local name, number = string.match(id, '^(.*%-)(%d+)$')
if number and whole(tonumber(number)) ~= number then name = nil end
if kind == 'list' then
  local from, length = tonumber(ARGV[2]) or 0, redis.call('LLEN', KEYS[1])
  if from >= length then return 'end' end
  local items = redis.call('LRANGE', KEYS[1], -from - ARGV[3], -from - 1)
  for i = #items, 1, -1 do
    bytes = bytes + #items[i]
    local ahead = whole(length - from - #items + i - 1)
    if string.match(items[i], '^...|([^|]+)|') == id then return {'found', items[i], ahead, extra} end
    local of, first, total, ms, taken = string.match(items[i], '^#([^|]*%-)(%d+)|(%d+)|%d+|(%d+)|(%d+)|%d+$')
    if of then
      local place, last = of == name and number - first - taken, total - taken - 1
      if place and place >= 0 and place <= last then
        return {'found', string.format('1n-|%s|1|%s|', id, ms), ahead, whole(extra + last - place)}
      end
      extra = extra + last
    end
  end
  return {'more', whole(from + #items), bytes, whole(extra)}
end
if kind == 'string' then
  local head, first, tail = pack_head(redis.call('GETRANGE', KEYS[1], 0, 299))
  local place = head and name and string.sub(head, 5) == name and number - first
  if not place or place < 0 or place >= tonumber(ARGV[3]) then return 'end' end
  return {'found', string.format('1n-|%s|1|%s|', id, string.match(tail, '(%d+)|$')), whole(place), 0}
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
