#!lua flags=allow-oom
-- Writes or removes a periodic entry whose state the caller knows.
-- KEYS[1] crons HASH, entry -> `rev|JSON`, an empty JSON = removed   KEYS[2] fired HASH, entry -> ms
-- KEYS[3] control HASH: `crons`, the highest rev   KEYS[4] ctl channel
-- KEYS[5] notices STREAM
-- ARGV    entry, JSON ('' = remove it), rev as the caller knows it (0 = there never was one), entries_max, who asks
-- Returns {'ok', rev}, {'same', rev} (it reads so already), {'moved', rev, JSON} (another one: nothing changed), 'full'
-- Uses    clock, note, tell_ordered, whole
-- Why a removed entry keeps its rev for a day: a late copy of the call that made it must not make it again.
-- Why fired is never before now: nothing of the past is made up for, and an entry that was removed and made again in the
-- same minute does not fire for that minute twice.
local DAY_US, REMOVED = 86400000000, 17 -- a removed entry is only its revision
local name, wanted = ARGV[1], ARGV[2]
local rev, json = string.match(redis.call('HGET', KEYS[1], name) or '0|', '^(%d+)|(.*)$')
rev, json = rev or '0', json or ''
if json == wanted and (rev ~= '0' or wanted == '') then return {'same', rev} end
if rev ~= ARGV[3] then return {'moved', rev, json} end
local now, now_us = clock()
local most = tonumber(ARGV[4])
if json == '' and redis.call('HLEN', KEYS[1]) >= most then
  local there = 0
  for _, other in ipairs(redis.call('HKEYS', KEYS[1])) do
    local is_removed = redis.call('HSTRLEN', KEYS[1], other) <= REMOVED
    local old = is_removed and other ~= name and tonumber(string.match(redis.call('HGET', KEYS[1], other), '^(%d+)|$'))
    if old and old < now_us - DAY_US then
      redis.call('HDEL', KEYS[1], other)
      redis.call('HDEL', KEYS[2], other, other .. '!')
    elseif not is_removed then
      there = there + 1
    end
  end
  -- Removed ones count, too, but ten times as many may be there.
  if there >= most or redis.call('HLEN', KEYS[1]) >= 10 * most then return 'full' end
end
rev = whole(math.max(rev + 1, now_us))
local last = tonumber(redis.call('HGET', KEYS[2], name) or '0')
redis.call('HSET', KEYS[1], name, rev .. '|' .. wanted)
redis.call('HSET', KEYS[2], name, whole(math.max(last, now)))
redis.call('HSET', KEYS[3], 'crons', rev)
note(KEYS[5], now, wanted ~= '' and 'cron-set' or 'cron-removed', '', 'entry', name, 'by', ARGV[5])
tell_ordered(KEYS[4])
return {'ok', rev}
