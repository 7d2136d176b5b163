-- uses: shared_runs, shared_present
-- Walks down the ids, those of several indexes merged, for a bounded stretch.
-- ARGV: {below and from which id on (bounds of ZREVRANGEBYLEX), how many are wanted, how many are looked at, job or nil,
-- states (a set of numbers as strings), queue or nil, since or nil, until or nil}. Answers the ids found, where to go on
-- ('' at the end), and what `load_runs` does.
local below, lowest, wanted, stretch, job, states, queue, since, before = unpack(cmsgpack.unpack(ARGV[1]), 1, 9)

-- Unfinished runs are few beside history, or many enough to be met soon on the way down: up to this many are looked
-- up where they wait.
local FEW = 2000
-- Under one name are the runs of jobs that were deleted, too: up to this many of their sets are looked through for each.
local OWNERS_FEW = 4

-- The keys of all that waits or is claimed, or nothing if those themselves are many; and up to which score.
local function keys_of_unfinished()
  local keys, queues = {}, {queue}
  if job then
    for _, owner in ipairs(call('SMEMBERS', P .. 'owners:' .. job)) do
      if owner:sub(1, 1) == '=' then return nil end
      keys[#keys + 1] = P .. 'waiting:' .. owner
    end
    return keys, states['0'] and '+inf' or -FAR_BELOW / 2
  end
  if not queue then
    if call('ZCARD', QUEUES) > FEW then return nil end
    queues = call('ZRANGE', QUEUES, 0, -1)
  end
  for _, name in ipairs(queues) do
    if states['1'] or states['2'] then keys[#keys + 1] = P .. 'claimed:' .. name end
    for _, priority in ipairs(states['0'] and call('ZRANGE', P .. 'levels:' .. name, 0, -1) or {}) do
      keys[#keys + 1] = level_key('lane', priority, name)
      keys[#keys + 1] = level_key('gated', priority, name)
    end
  end
  return keys
end

-- The ids of the unfinished runs that may be asked for, or nothing if they are many.
local function few_unfinished()
  local keys, upto = keys_of_unfinished()
  if not keys then return nil end
  upto = upto or '+inf'
  local found = {}
  for _, key in ipairs(keys) do
    if #found + call('ZCOUNT', key, '-inf', upto) > FEW then return nil end
    for _, id in ipairs(call('ZRANGEBYSCORE', key, '-inf', upto)) do found[#found + 1] = id end
  end
  return found
end

local of_job, in_queue = {}, queue and in_queue_key(queue)
for _, owner in ipairs(job and call('SMEMBERS', P .. 'owners:' .. job) or {}) do
  of_job[#of_job + 1] = P .. 'runs_of:' .. owner
end

local function size(keys)
  local number = 0
  for _, key in ipairs(keys) do number = number + call('ZCARD', key) end
  return number
end

-- The smallest index that holds all that is asked for, or several that do so together, and ids beside them.
local function sources()
  local whole, ended, unfinished = {in_queue or IDS}, {}, false
  if job and not (in_queue and size(of_job) > size(whole)) then whole = of_job end
  if states[tostring(COMPLETED)] then return whole, {} end
  for state in pairs(states) do
    if tonumber(state) > COMPLETED then ended[#ended + 1] = P .. 'ids:' .. state else unfinished = true end
  end
  if size(ended) >= size(whole) and ended[1] then return whole, {} end
  local few = not unfinished and {} or few_unfinished()
  if few then return ended, few end
  return whole, {}
end

-- Below the frontier a source may have ids that were not read.
local ids, frontier = {}, ''
local keys, beside = sources()
for _, id in ipairs(beside) do
  if (below == '+' or id < below:sub(2)) and (lowest == '-' or id >= lowest:sub(2)) then ids[#ids + 1] = id end
end
for _, key in ipairs(keys) do
  local part = call('ZREVRANGEBYLEX', key, below, lowest, 'LIMIT', 0, stretch)
  if #part == stretch and part[stretch] > frontier then frontier = part[stretch] end
  for _, id in ipairs(part) do ids[#ids + 1] = id end
end
table.sort(ids, function(one, other) return one > other end)

local looked_at = {}
for _, id in ipairs(ids) do
  if id >= frontier then looked_at[#looked_at + 1] = id end
end

-- What another index tells costs less than a row does.
local function keep_those_in(others)
  local within, kept = {}, {}
  for _, key in ipairs(others) do
    for place, score in ipairs(present(key, looked_at)) do
      if score then within[place] = true end
    end
  end
  for place, id in ipairs(looked_at) do
    if within[place] then kept[#kept + 1] = id end
  end
  looked_at = kept
end

if in_queue and keys[1] ~= in_queue then keep_those_in({in_queue}) end
if job and keys ~= of_job and #of_job <= OWNERS_FEW then keep_those_in(of_job) end
-- Rows are read some at a time: what is wanted may be found long before the end.
local read_to = 0

local function matches(run)
  return states[tostring(run[STATE])] and (not job or run[JOB] == job) and (not queue or run[QUEUE] == queue)
    and (not since or run[FIRE_AT] >= since) and (not before or run[FIRE_AT] < before)
end

local found = {}
for place, id in ipairs(looked_at) do
  if place > read_to then
    read_to = math.min(place + 2 * wanted, place + 1000, #looked_at)
    fetch({unpack(looked_at, place, read_to)})
  end
  local run = find(id)
  if run and matches(run) then found[#found + 1] = id end
  if #found == wanted then
    frontier = id
    break
  end
end
local loaded = load_runs(found)
local brought = #loaded[1]
if brought < #found then return {{unpack(found, 1, brought)}, found[brought], loaded} end
return {found, frontier, loaded}
