-- ARGV: name, beat_at, the node, and the instant before which silent nodes are forgotten.
local P = KEYS[1]
redis.call('HSET', P .. 'nodes', ARGV[1], ARGV[3])
redis.call('ZADD', P .. 'nodes_beating', ARGV[2], ARGV[1])
local silent = redis.call('ZRANGEBYSCORE', P .. 'nodes_beating', '-inf', '(' .. ARGV[4], 'LIMIT', 0, 100)
if #silent > 0 then
  redis.call('HDEL', P .. 'nodes', unpack(silent))
  redis.call('ZREM', P .. 'nodes_beating', unpack(silent))
end
return 1
