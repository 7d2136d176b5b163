-- Jobs inserted; comes after `shared_runs`, `shared_jobs` and `shared_records`. A job is: id, the places in ARGV of the row
-- and of what comes along, its cursor and whether it keeps a number of runs.
local function add_jobs(count, batch)
  local answers, at = {}, 0
  for number = 1, count do
    local id, place, along, planned_until, trims
    at, id, place, along, planned_until, trims = unpack_limit(batch, 5, at)
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
end
