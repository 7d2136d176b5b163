-- ARGV: from which name on (a bound of ZRANGEBYLEX), how many. Answers rows of jobs (nothing in place of one that is gone),
-- and the name at which a full page ends.
local P, call, limit = KEYS[1], redis.call, tonumber(ARGV[2])
local names = call('ZRANGEBYLEX', P .. 'jobs_trimmed', ARGV[1], '+', 'LIMIT', 0, limit)
if #names == 0 then return {{}, false} end
local ids = call('HMGET', P .. 'names', unpack(names))
for place, id in ipairs(ids) do ids[place] = id or '' end
return {call('HMGET', P .. 'jobs', unpack(ids)), #names == limit and names[limit]}
