-- uses: shared_runs, shared_jobs, shared_present, shared_listing
-- ARGV: how many are wanted, `enabled` and `finished` (see `matching`), how many values of labels follow, these, then names,
-- ascending. Answers the rows of those that match, and the name of the last if that many were found, else ''.
local behind = 4 + tonumber(ARGV[4])
local sets = sets_of({unpack(ARGV, 5, behind)})
local found, last = matching({unpack(ARGV, behind + 1)}, tonumber(ARGV[1]), ARGV[2], ARGV[3], sets)
return rows_until(found, last or '')
