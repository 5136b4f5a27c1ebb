#!lua flags=no-writes
-- Shows a piece of a lane or of a block, from its head on: of each message its envelope, cut short.
-- KEYS[1] a lane or a block LIST, or the pack of a block STRING
-- ARGV    place (how many entries of the list to pass over), inside (how many messages of the pack at that place to pass
--         over), count, cut (how many bytes of an envelope to show), the key of a chunk without its id
-- Returns {'ok', next place, next inside, then of each message: place, inside, the envelope, how many bytes it has},
--         {'end', …} likewise, if nothing is behind them
-- Uses    pack_head, whole
-- Why bytes and entries are bounded, too: an envelope may have many MiB, and a block many entries that are settled already.
local place, inside, count, cut = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local BYTES_MAX, ENTRIES_MAX, WINDOW = 1048576, 1000, 1114112
local reply, shown, bytes = {'ok', '0', '0'}, 0, 0

-- Shows messages of a pack, from a byte offset on. Returns how many it passed over or showed, and whether that is all.
local function show_pack(key, offset, ahead)
  local head, seq, tail, first = pack_head(redis.call('GETRANGE', key, 0, 299))
  if not head then return 0, true end
  local size, base, passed = redis.call('STRLEN', key), math.max(offset, first - 1), 0
  local text, at = '', 1
  while true do
    local length, from, last, again
    repeat
      length, from = string.match(text, '^(%d+):()', at)
      last, again = length and from + length - 1, false
      if (not last or last > #text) and base + #text < size then
        -- The rest of this one is behind the window: a new window begins with it. One that is larger than a window is shown in
        -- part, unless all of it is wanted.
        if at > 1 or text == '' then
          base, at, again = base + at - 1, 1, true
          text = redis.call('GETRANGE', key, base, base + WINDOW - 1)
        elseif last and cut >= tonumber(length) then
          text, again = redis.call('GETRANGE', key, base, base + last - 1), true
        end
        bytes = bytes + (again and #text or 0)
      end
    until not again
    if not last then return passed, true end
    if passed >= inside then
      if shown == count or shown > 0 and bytes > 4 * BYTES_MAX then return passed, false end
      local envelope = head .. whole(seq + ahead + passed) .. tail
      reply[#reply + 1], reply[#reply + 2] = whole(place), whole(passed)
      reply[#reply + 1] = envelope .. string.sub(text, from, math.min(from + cut - 1, last))
      reply[#reply + 1] = whole(#envelope + length)
      shown = shown + 1
    end
    passed = passed + 1
    -- Behind the window: read on from there.
    if last > #text then base, text, at = base + last, '', 1 else at = last + 1 end
    if at > #text and base + at - 1 >= size then return passed, true end
  end
end

local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'string' then
  local passed, all = show_pack(KEYS[1], 0, 0)
  reply[1], reply[2], reply[3] = all and 'end' or 'ok', '0', whole(passed)
  return reply
end
if kind ~= 'list' then return {'end', '0', '0'} end
local length, first, step = redis.call('LLEN', KEYS[1]), place, 1
while place < length and shown < count and bytes < BYTES_MAX and place - first < ENTRIES_MAX do
  local entries = redis.call('LRANGE', KEYS[1], place, place + step - 1)
  for _, entry in ipairs(entries) do
    bytes = bytes + #entry
    local id, seq, taken, at = string.match(entry, '^#([^|]*%-)(%d+)|%d+|%d+|%d+|(%d+)|(%d+)$')
    if id then
      local passed, all = show_pack(ARGV[5] .. id .. seq, tonumber(at), tonumber(taken))
      if not all then
        reply[2], reply[3] = whole(place), whole(passed)
        return reply
      end
    -- '' was settled, '-' was given back.
    elseif #entry > 1 then
      reply[#reply + 1], reply[#reply + 2] = whole(place), '0'
      reply[#reply + 1], reply[#reply + 2] = string.sub(entry, 1, cut), whole(#entry)
      shown = shown + 1
    end
    place, inside = place + 1, 0
    if shown == count or bytes >= BYTES_MAX then break end
  end
  -- The next entries are read together while they are small.
  step = bytes / (place - first) < 2048 and math.min(step * 2, 16) or 1
end
reply[1], reply[2] = place < length and 'ok' or 'end', whole(place)
return reply
