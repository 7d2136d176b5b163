-- ARGV: names. Answers their rows.
local P = KEYS[1]
local ids = redis.call('HMGET', P .. 'names', unpack(ARGV))
for place, id in ipairs(ids) do ids[place] = id or '' end
return redis.call('HMGET', P .. 'jobs', unpack(ids))
