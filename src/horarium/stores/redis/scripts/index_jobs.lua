-- uses: shared_runs, shared_jobs
-- Puts the next jobs into the indexes of sweeps. ARGV: how many. Answers 1 if there are more.
local SWEPT, limit = P .. 'swept', tonumber(ARGV[1])
local last = call('GET', SWEPT)
if last == '' then return 0 end
local names = call('ZRANGEBYLEX', P .. 'jobs_named', last and '(' .. last or '-', '+', 'LIMIT', 0, limit)
sweep_rows(names)
flush()
call('SET', SWEPT, #names == limit and names[limit] or '')
return #names == limit and 1 or 0
