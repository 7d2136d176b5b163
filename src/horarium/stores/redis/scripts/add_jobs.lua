-- uses: shared_runs, shared_jobs, shared_records
-- ARGV: how many jobs; the jobs, in MessagePack: id, the places in ARGV of the row and of what comes along, its cursor and
-- whether it keeps a number of runs. Answers 1 for each that was inserted.
local answers, at = {}, 0
for number = 1, tonumber(ARGV[1]) do
  local id, place, along, planned_until, trims
  at, id, place, along, planned_until, trims = unpack_limit(ARGV[2], 5, at)
  local row = ARGV[place]
  local job = read_job(row)
  local free = call('HEXISTS', JOBS, id) == 0 and (job.deleted or call('HEXISTS', NAMES, job.name) == 0)
  if free then
    call('HSET', JOBS, id, row)
    index_job(id, job)
    if not job.deleted then sweep_in(id, job.name, planned_until, trims) end
    bring_along(along)
  end
  answers[number] = free and 1 or 0
end
flush()
return answers
