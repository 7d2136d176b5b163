-- uses: shared_runs
-- ARGV: a unique key. Answers the id of its run, and what `load_runs` does.
local id = call('HGET', UNIQUE, ARGV[1])
return {id, load_runs({id or nil})}
