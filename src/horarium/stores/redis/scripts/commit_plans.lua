-- uses: shared_runs, shared_jobs, shared_records, shared_plans
-- ARGV: now; ids of the jobs, one for each plan; ids of the runs to look at; the plans, all in MessagePack; then the
-- arguments whose places they give. Answers 1 for each plan that was carried out.
return commit_plans(tonumber(ARGV[1]), {cmsgpack.unpack(ARGV[2])}, values_of(ARGV[3]), ARGV[4])
