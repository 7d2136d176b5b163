-- Plans carried out; comes after `shared_runs`, `shared_jobs` and `shared_records`. A plan is: job id, version read,
-- places of the new row and of what comes along, the job's cursor and whether it keeps a number of runs, how many changes,
-- withdrawals (id, token) and runs (each followed by the place of what comes along), and these. A run that is withdrawn
-- too is added only if that took effect.
local function commit_plans(now, job_ids, run_ids, batch)
  local answers, at = {}, 0
  fetch_jobs(job_ids)
  fetch(run_ids)

  local function withdraw(id, token)
    local run = find(id)
    if not run or run[STATE] ~= PENDING or run[TOKEN] ~= token then return false end
    delete_run(id, run)
    return true
  end

  -- A plan that loses is read over.
  local function skip(changes, withdrawals, runs)
    local values = changes * (CHANGE_HEAD + CHANGING) + withdrawals * 2 + runs * 6
    while values > 0 do
      local part = math.min(values, 100)
      at = unpack_limit(batch, part, at)
      values = values - part
    end
  end

  local function commit_plan()
    local job_id, version, row, along, planned_until, trims, changes, withdrawals, runs, id, token, follow
    at, job_id, version, row, along, planned_until, trims, changes, withdrawals, runs = unpack_limit(batch, 9, at)
    local stored = job_rows[job_id]
    local job = stored and read_job(stored)
    if not job or job.version ~= version then
      skip(changes, withdrawals, runs)
      return 0
    end
    put_job(job_id, ARGV[row], job, planned_until, trims)
    local written, stays
    for _ = 1, changes do
      at, written, follow = apply_change(batch, at, now)
      bring_along(follow)
    end
    for _ = 1, withdrawals do
      at, id, token = unpack_limit(batch, 2, at)
      if not withdraw(id, token) then
        stays = stays or {}
        stays[id] = true
      end
    end
    for _ = 1, runs do
      if stays then _, id = unpack_limit(batch, 1, at) end
      if stays and stays[id] then
        at = unpack_limit(batch, 6, at)
      else
        at, written = add_run(batch, at)
        at, follow = unpack_limit(batch, 1, at)
        if written then bring_along(follow) end
      end
    end
    bring_along(along)
    return 1
  end

  for place = 1, #job_ids do answers[place] = commit_plan() end
  flush()
  count_ends()
  return answers
end
