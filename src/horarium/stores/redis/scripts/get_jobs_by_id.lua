-- ARGV: ids. Answers their rows.
return redis.call('HMGET', KEYS[1] .. 'jobs', unpack(ARGV))
