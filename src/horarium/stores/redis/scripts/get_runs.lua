-- uses: shared_runs
-- ARGV: ids. Answers what `load_runs` does.
return load_runs(ARGV)
