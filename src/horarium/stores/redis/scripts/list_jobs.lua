-- ARGV: from which name on (a bound of ZRANGEBYLEX), how many, and perhaps a label. Answers names and rows.
local P = KEYS[1]
local index = P .. 'jobs_named'
if ARGV[3] then index = P .. 'label:' .. #ARGV[3] .. ':' .. ARGV[3] .. '=' .. ARGV[4] end
local names = redis.call('ZRANGEBYLEX', index, ARGV[1], '+', 'LIMIT', 0, ARGV[2])
if #names == 0 then return {{}, {}} end
local ids = redis.call('HMGET', P .. 'names', unpack(names))
return {names, redis.call('HMGET', P .. 'jobs', unpack(ids))}
