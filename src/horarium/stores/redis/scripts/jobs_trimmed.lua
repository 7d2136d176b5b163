-- uses: shared_reading
-- ARGV: from which name on (a bound of ZRANGEBYLEX), how many. Answers rows of jobs (nothing in place of one that is gone),
-- and the name at which a full page ends, or one that is as much as a call brings.
local limit = tonumber(ARGV[2])
local names = call('ZRANGEBYLEX', P .. 'jobs_trimmed', ARGV[1], '+', 'LIMIT', 0, limit)
if #names == 0 then return {{}, false} end
local rows, brought = bring_rows(P .. 'jobs', ids_of_names(names))
local more = brought < #names or #names == limit
return {rows, more and names[brought]}
