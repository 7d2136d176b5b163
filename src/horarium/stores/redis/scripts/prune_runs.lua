-- uses: shared_runs, shared_jobs
-- ARGV: now, limit. Answers how many runs were forgotten.
local ids = call('ZRANGEBYSCORE', P .. 'prunable', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
fetch(ids)
for _, id in ipairs(ids) do delete_run(id, find(id)) end
flush()

local limit = tonumber(ARGV[2])
local orphans = limit > 0 and call('SRANDMEMBER', P .. 'jobs_orphaned', limit) or {}
for _, id in ipairs(orphans) do
  if call('EXISTS', P .. 'runs_of:' .. id) == 0 then
    unindex_job(id, read_job(call('HGET', JOBS, id)))
    call('ZREM', AHEAD, id)
    call('HDEL', JOBS, id)
    call('DEL', P .. 'health:' .. id)
    call('SREM', P .. 'failing', id)
  else
    -- A run was added since; deleting its last run enters it here again.
    call('SREM', P .. 'jobs_orphaned', id)
  end
end

-- Queues in which nothing is left are forgotten, some at a time: lists and counts that look into each queue are spared them.
local LOOKED, LOOKS = P .. 'queues_looked', 200
local last = call('GET', LOOKED)
local names = call('ZRANGEBYLEX', QUEUES, last and '(' .. last or '-', '+', 'LIMIT', 0, LOOKS)
for _, queue in ipairs(names) do
  local keys = {P .. 'claimed:' .. queue}
  for _, priority in ipairs(call('ZRANGE', P .. 'levels:' .. queue, 0, -1)) do
    keys[#keys + 1] = level_key('lane', priority, queue)
    keys[#keys + 1] = level_key('gated', priority, queue)
  end
  if call('EXISTS', keys[1]) == 0 then call('ZREM', P .. 'claimed_in', queue) end
  if call('EXISTS', unpack(keys)) == 0 then
    call('DEL', P .. 'levels:' .. queue)
    call('ZREM', QUEUES, queue)
  end
end
if #names == LOOKS then call('SET', LOOKED, names[LOOKS]) else call('DEL', LOOKED) end
return #ids
