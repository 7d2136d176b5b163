-- uses: shared_runs, shared_jobs, shared_records, shared_adding
-- ARGV: how many jobs; the jobs, in MessagePack. Answers 1 for each that was inserted.
return add_jobs(tonumber(ARGV[1]), ARGV[2])
