#!lua
-- Runs the user's script that follows, only while the lock is held under this token.
-- KEYS[1] members ZSET   KEYS[2] lock:<name> STRING   KEYS[3…] keys of the user's script, which sees them as KEYS[1…]
-- ARGV    me, token, then the arguments of the user's script
-- Returns what the user's script returns, or the error LOCKLOST: then nothing was written
local KEYS, ARGV, me, right = KEYS, ARGV, ARGV[1], ARGV[1] .. '|' .. ARGV[2]
if not redis.call('ZSCORE', KEYS[1], me) or redis.call('GET', KEYS[2]) ~= right then
  return redis.error_reply('LOCKLOST the lock is not held any more')
end
KEYS, ARGV = {unpack(KEYS, 3)}, {unpack(ARGV, 3)}
