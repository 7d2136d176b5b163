-- ARGV: until, limit. Answers the rows of due jobs, and the next fire time beyond them.
local P = KEYS[1]
local ids = redis.call('ZRANGEBYSCORE', P .. 'jobs_due', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
local beyond = redis.call('ZRANGE', P .. 'jobs_due', #ids, #ids, 'WITHSCORES')[2] or false
if #ids == 0 then return {{}, beyond} end
return {redis.call('HMGET', P .. 'jobs', unpack(ids)), beyond}
