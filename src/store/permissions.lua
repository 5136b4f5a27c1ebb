#!lua flags=no-writes
-- Names the commands that this user may not run on the fleet's keys and channels.
-- KEYS[1] counts, standing for every key of the fleet   KEYS[2] ctl, for every channel
-- ARGV    none
-- Returns the missing commands, an empty list if the rights suffice
local key, missing = KEYS[1], {}
local function need(...)
  if not redis.acl_check_cmd(...) then
    missing[#missing + 1] = (select(1, ...)) .. (select('#', ...) > 1 and ' ' .. (select(2, ...)) or '')
  end
end
for _, one in ipairs({'GET', 'HGETALL', 'HLEN', 'HKEYS', 'LLEN', 'SCARD', 'TYPE', 'XLEN', 'ZCARD', 'DEL', 'EXISTS',
    'SMEMBERS', 'UNLINK'}) do
  need(one, key)
end
for _, two in ipairs({'SET', 'HGET', 'HMGET', 'HDEL', 'HEXISTS', 'HSTRLEN', 'LINDEX', 'LPOP', 'LPUSH', 'RPUSH', 'SADD', 'SREM', 'SISMEMBER',
    'SRANDMEMBER', 'PEXPIRE', 'ZRANK', 'ZREM', 'ZSCORE', 'XDEL', 'BLPOP', 'INCRBY'}) do
  need(two, key, '1')
end
for _, three in ipairs({'HSET', 'HSETNX', 'HINCRBY', 'GETRANGE', 'LRANGE', 'LSET', 'LTRIM', 'ZADD', 'ZCOUNT', 'ZRANGE', 'ZRANGEBYLEX', 'ZRANGEBYSCORE', 'XRANGE',
    'XREVRANGE'}) do
  need(three, key, '1', '2')
end
need('XADD', key, '*', 'f', 'v')
need('RENAME', key, key)
need('MULTI')
need('EXEC')
need('TIME')
need('PING')
need('SCAN', '0')
need('WAIT', '0', '0')
need('INFO', 'server')
need('PUBSUB', 'SHARDNUMSUB', KEYS[2])
need('SPUBLISH', KEYS[2], 'm')
need('SSUBSCRIBE', KEYS[2])
need('SUNSUBSCRIBE', KEYS[2])
return missing
