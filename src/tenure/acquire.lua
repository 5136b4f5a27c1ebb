#!lua flags=allow-oom
-- Takes a tenure (the lease or a lock) if nobody valid holds it. A grant always has a new token.
-- KEYS[1] members ZSET   KEYS[2] lease or lock:<name>, STRING `member|token`   KEYS[3] term or token STRING, the highest
-- lease:  KEYS[4] last STRING `term-seq`   KEYS[5] ctl channel   KEYS[6] counts HASH   KEYS[7] state HASH
--         KEYS[8] watch HASH   KEYS[9] notices STREAM
-- lock:   KEYS[4] locks:<me> HASH, name -> `token:attempt`   KEYS[5] waiters:<name> ZSET, member -> ticket
-- ARGV    me, lease_ms, name of the lock or '', for a lock also: number of this attempt, ticket ('' = a new one, '-' =
--         will not wait); then the highest term or token that the caller has seen
-- Returns {'won', token, now_ms, generated so far, ms of the last push, the generator's state, ms since anybody led
--         ('' = nobody ever did)} ({'won', token} for a lock),
--         {'held', `member|token`, holder's ms left, ticket}, 'late' (a newer attempt of mine holds it), 'strange' (the key holds something else), 'gone',
--         'spent' (the next token would be past 2^52: nothing was granted, and an operator must help)
-- Uses    clock, deadline_of, grow, note, refresh, tell_lead, whole
-- Why a new term even if the caller holds the lease: `last` starts again, so a late copy of a push that was
-- numbered under the old term would otherwise be accepted a second time. Why a lock counts attempts: a repeat
-- after a lost reply must get the token of the first copy, and a late copy must not change the token of its own
-- holder. Why what the caller has seen counts: a replica that was promoted may know less, and its clock may be behind.
-- Nobody may push the numbers more than a year ahead of the clock.
local me, name = ARGV[1], ARGV[3] ~= '' and ARGV[3] or nil
if not deadline_of(KEYS[1], me) then return 'gone' end
local held, now, now_us = redis.call('GET', KEYS[2]), clock()
if held then
  local holder = string.match(held, '^([^|]+)|%d+$')
  if name and not holder then return 'strange' end
  local deadline = holder and holder ~= me and deadline_of(KEYS[1], holder)
  if deadline then
    local ticket = ARGV[5]
    if name and ticket ~= '-' then
      if ticket == '' then ticket = whole(now_us) end
      redis.call('ZADD', KEYS[5], 'NX', ticket, me)
    end
    return {'held', held, whole(deadline - now), ticket or ''}
  end
  if name and holder == me then
    local token, attempt = string.match(redis.call('HGET', KEYS[4], name) or '', '^(%d+):(%d+)$')
    if attempt and tonumber(ARGV[4]) < tonumber(attempt) then return 'late' end
    if attempt == ARGV[4] and held == me .. '|' .. token then return {'won', token} end
  end
end
local before = redis.call('GET', KEYS[3])
local floor = tonumber(ARGV[name and 6 or 4] or 0) or 0
if floor > now_us + 31536000000000 then floor = 0 end
local token = grow(math.max(before or 0, floor), now_us)
if not token then return 'spent' end
if name then
  -- These writes come first: if one of the keys has a wrong type, no lock is taken.
  if ARGV[5] ~= '-' then redis.call('ZREM', KEYS[5], me) end
  redis.call('HSET', KEYS[4], name, token .. ':' .. ARGV[4])
end
redis.call('SET', KEYS[3], token)
redis.call('SET', KEYS[2], me .. '|' .. token)
if name then return {'won', token} end
redis.call('SET', KEYS[4], token .. '-0')
refresh(KEYS[1], me, now, ARGV[2])
tell_lead(KEYS[5], me, token)
local led, why, from = string.match(redis.call('HGET', KEYS[8], 'led') or '', '^(%d+)|(%a+)|(.*)$')
redis.call('HDEL', KEYS[8], 'led')
why = why or not before and 'first' or string.match(held or '', '^[^|]+') == me and 'again' or 'free'
local gap = led and whole(math.max(now - led, 0)) or ''
note(KEYS[9], now, 'elected', me, 'role', 'generator', 'term', token, 'why', why, 'from', from or '', 'gap_ms', gap)
return {'won', token, whole(now), redis.call('HGET', KEYS[6], 'generated') or '0',
  redis.call('HGET', KEYS[6], 'pushed_ms') or '0', redis.call('HGET', KEYS[7], 'state') or '', gap}
