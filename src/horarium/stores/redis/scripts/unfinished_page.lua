-- uses: shared_runs
-- ARGV: job id, below which score (a bound of ZREVRANGEBYSCORE), how many. Answers the ids of unfinished runs of the job, from
-- the latest fire time down and those that are claimed last, what `load_runs` does, and the bound of the next ('' at the end).
local found = call('ZREVRANGEBYSCORE', P .. 'waiting:' .. ARGV[1], ARGV[2], '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
local ids = {}
for place = 1, #found, 2 do ids[#ids + 1] = found[place] end
return {ids, load_runs(ids), #ids == tonumber(ARGV[3]) and '(' .. found[#found] or ''}
