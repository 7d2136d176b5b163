-- uses: shared_runs, shared_jobs, shared_records, shared_plans, shared_adding, shared_putting
-- ARGV: now; ids of the jobs of plans; ids of the runs to look at; the plans; how many jobs to insert; these; how many
-- changes of records; these; then the arguments whose places they give; and before them, what all of it takes for granted:
-- versions of jobs (of plans, in their order), ids and names that must be free (in turn), names and versions of records;
-- ids of the runs to insert, these as in `add_runs`, and unique keys that must be free.
-- Answers 1 if all of it was written, 0 if nothing was.
local job_ids, versions, free, records = {cmsgpack.unpack(ARGV[2])}, values_of(ARGV[9]), values_of(ARGV[10]), values_of(ARGV[11])
for place, row in ipairs(many('HMGET', JOBS, job_ids)) do
  if not row or read_job(row).version ~= versions[place] then return 0 end
end
for place = 1, #free, 2 do
  if call('HEXISTS', JOBS, free[place]) == 1 or call('HEXISTS', NAMES, free[place + 1]) == 1 then return 0 end
end
for place = 1, #records, 2 do
  local stored = call('HGET', RECORDS, records[place])
  if (stored and read_record(stored) or 0) ~= records[place + 1] then return 0 end
end
local new_ids = values_of(ARGV[12])
for _, id in ipairs(new_ids) do
  if call('HEXISTS', RUNS, id) == 1 then return 0 end
end
local keys = {}
for _, key in ipairs(values_of(ARGV[14])) do
  if keys[key] or call('HEXISTS', UNIQUE, key) == 1 then return 0 end
  keys[key] = true
end
commit_plans(tonumber(ARGV[1]), job_ids, values_of(ARGV[3]), ARGV[4])
add_jobs(tonumber(ARGV[5]), ARGV[6])
put_records(tonumber(ARGV[7]), ARGV[8])
local at, along = 0, nil
for _ = 1, #new_ids do
  at = add_run(ARGV[13], at)
  at, along = unpack_limit(ARGV[13], 1, at)
  bring_along(along)
end
flush()
return 1
