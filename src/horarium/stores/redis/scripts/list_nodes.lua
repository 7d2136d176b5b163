-- ARGV: since. Answers the nodes.
local P = KEYS[1]
local names = redis.call('ZRANGEBYSCORE', P .. 'nodes_beating', ARGV[1], '+inf', 'LIMIT', 0, 4000)
if #names == 0 then return {} end
return redis.call('HMGET', P .. 'nodes', unpack(names))
