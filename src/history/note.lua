#!lua flags=allow-oom
-- Writes to the common log what one process saw.
-- KEYS[1] notices STREAM
-- ARGV    mark (no other entry has it), kind, member ('' = none), then field, value …
-- Returns 'ok', 'already' (a repeat: the entry is there)
-- Uses    clock, note
-- Why only the last entries are compared: a repeat follows within seconds.
local last = redis.pcall('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 64)
for _, entry in ipairs(last.err and {} or last) do
  for i = 1, #entry[2] - 1, 2 do
    if entry[2][i] == 'mark' and entry[2][i + 1] == ARGV[1] then return 'already' end
  end
end
note(KEYS[1], clock(), ARGV[2], ARGV[3], 'mark', ARGV[1], unpack(ARGV, 4))
return 'ok'
