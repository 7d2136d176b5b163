-- uses: shared_runs, shared_jobs
-- ARGV: id, row of each job. Answers 1 for each that was inserted.
local answers = {}
for place = 1, #ARGV, 2 do
  local id, row = ARGV[place], ARGV[place + 1]
  local job = read_job(row)
  local free = call('HEXISTS', JOBS, id) == 0 and (job.deleted or call('HEXISTS', NAMES, job.name) == 0)
  if free then
    call('HSET', JOBS, id, row)
    index_job(id, job)
  end
  answers[#answers + 1] = free and 1 or 0
end
return answers
