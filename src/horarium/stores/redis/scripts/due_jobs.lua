-- ARGV: until, limit, from where on (a bound of ZRANGEBYSCORE). Answers the rows of due jobs, and the next fire time
-- beyond them.
local P, call = KEYS[1], redis.call
local DUE, from = P .. 'jobs_due', ARGV[3]
local ids = call('ZRANGEBYSCORE', DUE, from, ARGV[1], 'LIMIT', 0, ARGV[2])
local beyond = call('ZRANGEBYSCORE', DUE, from, '+inf', 'WITHSCORES', 'LIMIT', #ids, 1)[2] or false
if #ids == 0 then return {{}, beyond} end
return {call('HMGET', P .. 'jobs', unpack(ids)), beyond}
