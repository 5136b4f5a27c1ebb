#!lua flags=allow-oom
-- Compares the protocol of the fleet with the caller's, for a client that is not a member.
-- KEYS[1] config HASH   KEYS[2] members ZSET
-- ARGV    protocol
-- Returns {'ok', backlog_max, '1' if a member ever joined} (the same protocol, or no members), {'protocol', theirs} (another protocol is in use, or a newer one was)
-- Why a fleet without members takes the caller's protocol: for an upgrade all members are stopped. It never goes
-- back to an older protocol, because that may not understand what the newer one wrote.
local theirs = redis.call('HGET', KEYS[1], 'protocol') or redis.call('EXISTS', KEYS[1]) == 1 and '1'
if theirs and theirs ~= ARGV[1] then
  local newer = (tonumber(theirs) or 0) > tonumber(ARGV[1])
  if newer or redis.call('ZCARD', KEYS[2]) > 0 then return {'protocol', theirs} end
  redis.call('HSET', KEYS[1], 'protocol', ARGV[1])
end
return {'ok', redis.call('HGET', KEYS[1], 'backlog_max') or '1000000', redis.call('HEXISTS', KEYS[1], 'born')}
