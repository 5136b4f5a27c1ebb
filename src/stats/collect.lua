#!lua flags=no-writes
-- Reads the members, and the answers of one round.
-- KEYS[1] members ZSET   KEYS[2] stats:<round> HASH
-- ARGV    none
-- Returns {now_ms, members as id, deadline_ms …, answers as id, numbers …}
-- Uses    clock, whole
return {whole((clock())),
  redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'), redis.call('HGETALL', KEYS[2])}
