-- uses: shared_runs, shared_records
-- ARGV: lower bound, upper bound, limit. Answers how many records were forgotten.
local names = call('ZRANGEBYLEX', RECORD_NAMES, ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
for _, name in ipairs(names) do delete_record(name, call('HGET', RECORDS, name)) end
return #names
