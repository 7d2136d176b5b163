-- uses: shared_runs
-- ARGV: how many runs one call brings, then ids of jobs. Answers for each of the first jobs, as far as that goes, how many
-- runs it has, the ids of all, and what `load_runs` does. Of a job that has more than one call brings: -1, and none.
local most = tonumber(ARGV[1])
local counts, ids = {}, {}
for place = 2, #ARGV do
  local key = P .. 'waiting:' .. ARGV[place]
  local count = call('ZCARD', key)
  if count > most then
    counts[#counts + 1] = -1
  elseif #ids + count > most then
    break
  else
    counts[#counts + 1] = count
    for _, id in ipairs(count > 0 and call('ZRANGE', key, 0, -1) or {}) do ids[#ids + 1] = id end
  end
end
return {counts, ids, load_runs(ids)}
