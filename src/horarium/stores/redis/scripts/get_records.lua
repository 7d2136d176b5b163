-- ARGV: names. Answers their rows.
return redis.call('HMGET', KEYS[1] .. 'records', unpack(ARGV))
