-- uses: shared_runs, shared_records, shared_putting
-- ARGV: how many changes; the changes, in MessagePack; then what they give places of. Answers 1 for each that was made.
return put_records(tonumber(ARGV[1]), ARGV[2])
