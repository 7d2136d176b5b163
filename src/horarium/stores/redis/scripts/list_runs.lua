-- uses: shared_runs
-- Walks down the ids, those of several indexes merged, for a bounded stretch.
-- ARGV: {below (a bound of ZREVRANGEBYLEX), how many are wanted, how many are looked at, job or nil, states (a set of
-- numbers as strings), queue or nil, since or nil, until or nil}. Answers the ids found, where to go on ('' at the end),
-- and what `load_runs` does.
local below, wanted, stretch, job, states, queue, since, before = unpack(cmsgpack.unpack(ARGV[1]), 1, 8)

local function sources()
  local keys, seen = {}, {}
  if job then
    for _, owner in ipairs(call('SMEMBERS', P .. 'owners:' .. job)) do keys[#keys + 1] = P .. 'runs_of:' .. owner end
    return keys
  end
  for state in pairs(states) do
    local key = ids_key(tonumber(state))
    if not seen[key] then keys[#keys + 1] = key end
    seen[key] = true
  end
  return keys
end

-- Below the frontier a source may have ids that were not read.
local ids, frontier = {}, ''
for _, key in ipairs(sources()) do
  local part = call('ZREVRANGEBYLEX', key, below, '-', 'LIMIT', 0, stretch)
  if #part == stretch and part[stretch] > frontier then frontier = part[stretch] end
  for _, id in ipairs(part) do ids[#ids + 1] = id end
end
table.sort(ids, function(one, other) return one > other end)

local looked_at = {}
for _, id in ipairs(ids) do
  if id >= frontier then looked_at[#looked_at + 1] = id end
end
fetch(looked_at)

local function matches(run)
  local f = run.f
  return states[tostring(run.m[STATE])] and (not queue or f[QUEUE] == queue)
    and (not since or f[FIRE_AT] >= since) and (not before or f[FIRE_AT] < before)
end

local found = {}
for _, id in ipairs(looked_at) do
  local run = find(id)
  if run and matches(run) then found[#found + 1] = id end
  if #found == wanted then
    frontier = id
    break
  end
end
return {found, frontier, load_runs(found)}
