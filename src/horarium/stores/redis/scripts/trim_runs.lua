-- uses: shared_runs
-- ARGV: job id, keep, limit. Answers how many were trimmed. Few of the oldest runs are unfinished: the walk is short.
local job_id, keep, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local all, waiting = P .. 'runs_of:' .. job_id, P .. 'waiting:' .. job_id
local surplus = math.min(limit, call('ZCARD', all) - call('ZCARD', waiting) - keep)
local trimmed, first = {}, 0
while #trimmed < surplus do
  local ids = call('ZRANGE', all, first, first + surplus - 1)
  if #ids == 0 then break end
  first = first + #ids
  for _, id in ipairs(ids) do
    if #trimmed < surplus and not call('ZSCORE', waiting, id) then trimmed[#trimmed + 1] = id end
  end
end
fetch(trimmed)
for _, id in ipairs(trimmed) do delete_run(id, find(id)) end
flush()
return #trimmed
