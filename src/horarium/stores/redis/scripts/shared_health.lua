-- uses: shared_reading
-- The health of jobs, as `shared_runs` writes it.

local HEALTH = {'run', 'state', 'at', 'error', 'success', 'failures', 'since'}

local function read_health(job_ids)
  local found = {}
  for place, job_id in ipairs(job_ids) do found[place] = call('HMGET', P .. 'health:' .. job_id, unpack(HEALTH)) end
  return found
end
