-- The auditor of the random schedule: every message in one place, dense numbers, counters true, ledger and
-- error store in agreement. It reads the whole fleet and trusts no counter. For tests only.
-- KEYS    none: it finds them by the prefix
-- ARGV    prefix of the fleet's keys
-- Returns 'ok', or what is wrong, in words
local p, seen, terms, origins = ARGV[1], {}, {}, {}
local where = {waiting = 0, claimed = 0, done = 0, failed = 0}
local function put(id, place)
  if seen[id] then return id .. ' in ' .. seen[id] .. ' and ' .. place end
  seen[id] = place
  if string.sub(id, 1, 1) == 's' then return end
  local term, seq = string.match(id, '^(%d+)-(%d+)$')
  terms[term] = terms[term] or {max = 0, n = 0}
  terms[term].n = terms[term].n + 1
  terms[term].max = math.max(terms[term].max, tonumber(seq))
end
for _, key in ipairs(redis.call('KEYS', p .. '*')) do
  local rest = string.sub(key, #p + 1)
  local kind = string.match(rest, '^(%a+):')
  if kind == 'lane' or kind == 'block' then
    local left = 0
    for _, message in ipairs(redis.call('LRANGE', key, 0, -1)) do
      if message ~= '' and message ~= '-' then
        left = left + 1
        local wrong = put(string.match(message, '^...|([^|]+)|'), rest)
        if wrong then return wrong end
        local origin = string.match(message, '^..h.-"origin":"([^"]+)"')
        if origin and origins[origin] then return origin .. ' was put back to work twice' end
        if origin then origins[origin] = true end
        local field = kind == 'lane' and 'waiting' or 'claimed'
        where[field] = where[field] + 1
      end
    end
    if kind == 'block' then
      local member, n = string.match(rest, '^block:(.*):(%d+)$')
      local entry = redis.call('HGET', p .. 'blocks:' .. member, n)
      if not entry then return rest .. ' is not on record' end
      if tonumber(string.match(entry, '^%d+')) ~= left then return rest .. ' has ' .. left .. ', on record ' .. entry end
      if not redis.call('ZSCORE', p .. 'members', member) and redis.call('SISMEMBER', p .. 'orphans', member) == 0 then
        return rest .. ' has no owner and is no orphan'
      end
    end
  end
end
local failed = {}
for _, entry in ipairs(redis.call('XRANGE', p .. 'ledger', '-', '+')) do
  local wrong = put(entry[2][2], 'the ledger, ' .. entry[2][4])
  if wrong then return wrong end
  where[entry[2][4]] = where[entry[2][4]] + 1
  if entry[2][4] == 'failed' then failed[entry[2][2]] = true end
end
local kept = 0
local stores = redis.call('KEYS', p .. 'drain:*')
stores[#stores + 1] = p .. 'errors'
for _, key in ipairs(stores) do
  for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
    local id = string.match(entry[2][2], '^...|([^|]+)|')
    if not failed[id] then return id .. ' is stored as an error and did not fail, or is stored twice' end
    failed[id] = nil
    kept = kept + 1
  end
end
local taken = 0
for _ in pairs(failed) do taken = taken + 1 end
for term, seen_of in pairs(terms) do
  if seen_of.n ~= seen_of.max then return 'term ' .. term .. ' has ' .. seen_of.n .. ' of ' .. seen_of.max end
end
local function count(name) return tonumber(redis.call('HGET', p .. 'counts', name) or '0') end
for _, name in ipairs({'claimed', 'done', 'failed'}) do
  if count(name) ~= where[name] then return name .. ' is ' .. where[name] .. ', counted ' .. count(name) end
end
local gone = count('taken') + count('requeued')
if gone ~= taken then return taken .. ' taken or requeued, counted ' .. gone end
local total = where.waiting + where.claimed + where.done + where.failed
local added = count('generated') + count('sent')
if added ~= total then return total .. ' messages, counted ' .. added end
if redis.call('LLEN', p .. 'wake') > 1 then return 'two wake tokens' end
return 'ok'
