-- The version of the layout of this namespace, which the first to open it writes.
redis.call('SET', KEYS[1] .. 'layout', ARGV[1], 'NX')
return redis.call('GET', KEYS[1] .. 'layout')
