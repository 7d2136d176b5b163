-- uses: shared_runs
-- ARGV: {below and from which id on (bounds of ZREVRANGEBYLEX), how many of each}, then names of jobs. Answers the ids of
-- the newest runs of each, and what `load_runs` does.
local below, lowest, wanted = unpack(cmsgpack.unpack(ARGV[1]), 1, 3)
local ids = {}
for place = 2, #ARGV do
  for _, owner in ipairs(call('SMEMBERS', P .. 'owners:' .. ARGV[place])) do
    local found = call('ZREVRANGEBYLEX', P .. 'runs_of:' .. owner, below, lowest, 'LIMIT', 0, wanted)
    for _, id in ipairs(found) do ids[#ids + 1] = id end
  end
end
return {ids, load_runs(ids)}
