-- Writes one key, so that a full, read-only or failing server shows.
redis.call('SET', KEYS[1] .. 'checked', '1')
return 1
