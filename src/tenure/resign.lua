#!lua flags=allow-oom
-- Gives up a tenure (the lease or a lock) that the caller or a dead member holds, and no other.
-- KEYS[1] members ZSET   KEYS[2] lease or lock:<name>, STRING `member|token`
-- lease:  KEYS[3] ctl channel   KEYS[4] watch HASH   KEYS[5] notices STREAM
-- lock:   KEYS[3] alive channel, `alive:<id>` beside it   KEYS[4] locks:<whose> HASH   KEYS[5] waiters:<name> ZSET
-- ARGV    me, token; for a lock also: its name, and whose it is (the caller's or a dead member's)
-- Returns 'ok', 'gone' (no session), 'fenced' (it is not held under this token), 'alive' (not dead: nothing changed)
-- Uses    clock, deadline_of, note, tell_free, tell_unlocked, vacate
-- Why the token, too: a late copy from a member's first term must not end its second term.
-- Why only the first waiter is notified: a hundred waiters that try at once hinder each other. A notified waiter
-- loses its place, so a frozen one delays the others only once. Token 0 only gives up a place in the queue.
local me, token, name, whose = ARGV[1], ARGV[2], ARGV[3], ARGV[4] or ARGV[1]
if not deadline_of(KEYS[1], me) then return 'gone' end
if whose ~= me and deadline_of(KEYS[1], whose) then return 'alive' end
local holder = redis.call('GET', KEYS[2])
local held = holder == whose .. '|' .. token
if held and not name then
  local now = clock()
  vacate(KEYS[2], KEYS[4], me, now, 'resigned')
  note(KEYS[5], now, 'resigned', me, 'role', 'generator', 'term', token)
end
if held then redis.call('DEL', KEYS[2]) end
if not name then
  if held then tell_free(KEYS[3], me) end
  return held and 'ok' or 'fenced'
end
local listed = not held and redis.call('HGET', KEYS[4], name)
if held or listed and (string.match(listed, '^%d+') or token) == token then redis.call('HDEL', KEYS[4], name) end
if not held then redis.call('ZREM', KEYS[5], whose) end
if held or not holder or not deadline_of(KEYS[1], string.match(holder, '^[^|]*')) then
  for _, id in ipairs(redis.call('ZRANGE', KEYS[5], 0, 63)) do
    redis.call('ZREM', KEYS[5], id)
    if deadline_of(KEYS[1], id) and tell_unlocked(KEYS[3] .. ':' .. id, name) > 0 then break end
  end
end
return held and 'ok' or 'fenced'
