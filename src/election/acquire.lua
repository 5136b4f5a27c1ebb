#!lua flags=allow-oom
-- Takes a right, the lease or a lock, if nobody valid holds it: always under a new token.
-- KEYS[1] members ZSET   KEYS[2] lease or lock:<name>, STRING `member|token`   KEYS[3] term or token STRING, the highest
-- lease:  KEYS[4] last STRING `term-seq`   KEYS[5] ctl channel   KEYS[6] counts HASH   KEYS[7] state HASH
-- lock:   KEYS[4] locks:<me> HASH, name -> `token:attempt`   KEYS[5] waiters:<name> ZSET, member -> ticket
-- ARGV    me, lease_ms; for a lock also: name, number of this attempt, ticket ('' = a new one, '-' = will not wait)
-- Returns {'won', token, now_ms, generated so far, ms of the last push, the generator's state} ({'won', token} for a lock),
--         {'held', `member|token`, holder's ms left, ticket}, 'late' (a newer attempt of mine holds it), 'strange' (the key holds something else), 'gone',
--         'spent' (the next token would be past 2^52: nothing was granted, and an operator must help)
-- Why 2^52: past 2^53 Lua's numbers skip, and tokens would silently stop growing.
-- Why a new token even when the right is mine: `last` starts again, so a late copy of a push numbered under
-- the old term would otherwise be accepted a second time. Why a lock counts attempts: a repeat after a lost
-- reply must find what the first copy got, and a late copy must not change the token under its own holder.
local me, name = ARGV[1], ARGV[3]
if not redis.call('ZSCORE', KEYS[1], me) then return 'gone' end
local right, t = redis.call('GET', KEYS[2]), redis.call('TIME')
if right then
  local holder = string.match(right, '^([^|]+)|%d+$')
  if name and not holder then return 'strange' end
  local deadline = holder and holder ~= me and redis.call('ZSCORE', KEYS[1], holder)
  if deadline then
    local ticket = ARGV[5]
    if name and ticket ~= '-' then
      if ticket == '' then ticket = string.format('%.0f', t[1] * 1000000 + t[2]) end
      redis.call('ZADD', KEYS[5], 'NX', ticket, me)
    end
    local left = deadline - t[1] * 1000 - math.floor(t[2] / 1000)
    return {'held', right, string.format('%.0f', left), ticket or ''}
  end
  if name and holder == me then
    local token, attempt = string.match(redis.call('HGET', KEYS[4], name) or '', '^(%d+):(%d+)$')
    if attempt and tonumber(ARGV[4]) < tonumber(attempt) then return 'late' end
    if attempt == ARGV[4] and right == me .. '|' .. token then return {'won', token} end
  end
end
local token = math.max((redis.call('GET', KEYS[3]) or 0) + 1, t[1] * 1000000 + t[2])
if token > 4503599627370496 then return 'spent' end
token = string.format('%.0f', token)
if name then
  -- First: if one of our keys is of another type, no lock is taken.
  if ARGV[5] ~= '-' then redis.call('ZREM', KEYS[5], me) end
  redis.call('HSET', KEYS[4], name, token .. ':' .. ARGV[4])
end
redis.call('SET', KEYS[3], token)
redis.call('SET', KEYS[2], me .. '|' .. token)
if name then return {'won', token} end
redis.call('SET', KEYS[4], token .. '-0')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', now + ARGV[2]), me)
redis.call('SPUBLISH', KEYS[5], 'lead|' .. me .. '|' .. token)
return {'won', token, string.format('%.0f', now), redis.call('HGET', KEYS[6], 'generated') or '0',
  redis.call('HGET', KEYS[6], 'pushed_ms') or '0', redis.call('HGET', KEYS[7], 'state') or ''}
