-- uses: shared_runs
-- ARGV: job id, keep, limit. Answers how many were forgotten. Few of the oldest runs are unfinished: the walk is short.
local job_id, keep, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local all, waiting = P .. 'runs_of:' .. job_id, P .. 'waiting:' .. job_id
local surplus = math.min(limit, call('ZCARD', all) - call('ZCARD', waiting) - keep)
local forgotten, first = {}, 0
while #forgotten < surplus do
  local ids = call('ZRANGE', all, first, first + surplus - 1)
  if #ids == 0 then break end
  first = first + #ids
  for _, id in ipairs(ids) do
    if #forgotten < surplus and not call('ZSCORE', waiting, id) then forgotten[#forgotten + 1] = id end
  end
end
fetch(forgotten)
for _, id in ipairs(forgotten) do forget_run(id, find(id)) end
flush()
return #forgotten
