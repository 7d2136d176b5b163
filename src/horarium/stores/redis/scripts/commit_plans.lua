-- uses: shared_runs, shared_jobs
-- ARGV: now; ids of the jobs, one for each plan; ids of the runs to look at; the plans, all in MessagePack; then whatever
-- they give places of. A plan is: job id, version read, place of the new row, how many changes, withdrawals (id, token) and runs, and
-- these. Answers 1 for each that was carried out.
local now, job_ids, batch = tonumber(ARGV[1]), {cmsgpack.unpack(ARGV[2])}, ARGV[4]
local answers, at = {}, 0
fetch_jobs(job_ids)
fetch({cmsgpack.unpack(ARGV[3])})

local function withdraw(id, token)
  local run = find(id)
  if run and run[STATE] == PENDING and run[TOKEN] == token then forget_run(id, run) end
end

-- A plan that loses is read over.
local function skip(changes, withdrawals, runs)
  local values = changes * (6 + CHANGING) + withdrawals * 2 + runs * 5
  while values > 0 do
    local part = math.min(values, 100)
    at = unpack_limit(batch, part, at)
    values = values - part
  end
end

local function commit_plan()
  local job_id, version, row, changes, withdrawals, runs, id, token
  at, job_id, version, row, changes, withdrawals, runs = unpack_limit(batch, 6, at)
  local stored = job_rows[job_id]
  local job = stored and read_job(stored)
  if not job or job.version ~= version then
    skip(changes, withdrawals, runs)
    return 0
  end
  put_job(job_id, ARGV[row], job)
  for _ = 1, changes do at = apply_change(batch, at, now) end
  for _ = 1, withdrawals do
    at, id, token = unpack_limit(batch, 2, at)
    withdraw(id, token)
  end
  for _ = 1, runs do at = add_run(batch, at) end
  return 1
end

for place = 1, #job_ids do answers[place] = commit_plan() end
flush()
return answers
