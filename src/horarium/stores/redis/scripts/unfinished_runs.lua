-- uses: shared_runs
-- ARGV: ids of jobs. Answers for each how many runs it has, the ids of all, and what `load_runs` does.
local counts, ids = {}, {}
for place, job_id in ipairs(ARGV) do
  local waiting = call('ZRANGE', P .. 'waiting:' .. job_id, 0, -1)
  counts[place] = #waiting
  for _, id in ipairs(waiting) do ids[#ids + 1] = id end
end
return {counts, ids, load_runs(ids)}
