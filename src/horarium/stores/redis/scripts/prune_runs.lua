-- uses: shared_runs, shared_jobs
-- ARGV: now, limit. Answers how many runs were forgotten.
local ids = call('ZRANGEBYSCORE', P .. 'prunable', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
fetch(ids)
for _, id in ipairs(ids) do forget_run(id, find(id)) end
flush()

local limit = tonumber(ARGV[2])
local orphans = limit > 0 and call('SRANDMEMBER', P .. 'jobs_orphaned', limit) or {}
for _, id in ipairs(orphans) do
  if call('EXISTS', P .. 'runs_of:' .. id) == 0 then
    unindex_job(id, read_job(call('HGET', JOBS, id)))
    call('HDEL', JOBS, id)
  else
    -- A run was added since; deleting its last run enters it here again.
    call('SREM', P .. 'jobs_orphaned', id)
  end
end
return #ids
