-- uses: shared_reading
-- ARGV: until, limit, from where on (a bound of ZRANGEBYSCORE). Answers the rows of due jobs, the next fire time beyond
-- them, and the ids of those whose rows were too large to come along.
local DUE, from = P .. 'jobs_due', ARGV[3]
local ids = call('ZRANGEBYSCORE', DUE, from, ARGV[1], 'LIMIT', 0, ARGV[2])
local beyond = call('ZRANGEBYSCORE', DUE, from, '+inf', 'WITHSCORES', 'LIMIT', #ids, 1)[2] or false
local rows, brought = bring_rows(P .. 'jobs', ids)
return {rows, beyond, {unpack(ids, brought + 1)}}
