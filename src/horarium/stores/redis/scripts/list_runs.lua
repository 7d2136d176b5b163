-- uses: shared_runs
-- Walks down the ids, those of several indexes merged, for a bounded stretch.
-- ARGV: {below and from which id on (bounds of ZREVRANGEBYLEX), how many are wanted, how many are looked at, job or nil,
-- states (a set of numbers as strings), queue or nil, since or nil, until or nil}. Answers the ids found, where to go on
-- ('' at the end), and what `load_runs` does.
local below, lowest, wanted, stretch, job, states, queue, since, before = unpack(cmsgpack.unpack(ARGV[1]), 1, 9)

-- Unfinished runs are few beside history, or many enough to be met soon on the way down: up to this many are looked
-- up where they wait.
local FEW = 2000

-- The keys of all that waits or is claimed, or nothing if those themselves are many.
local function keys_of_unfinished()
  local keys, queues = {}, {queue}
  if job then
    for _, owner in ipairs(call('SMEMBERS', P .. 'owners:' .. job)) do
      if owner:sub(1, 1) == '=' then return nil end
      keys[#keys + 1] = P .. 'waiting:' .. owner
    end
    return keys
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

local function few_unfinished()
  for state in pairs(states) do
    if tonumber(state) >= COMPLETED then return nil end
  end
  local keys = keys_of_unfinished()
  if not keys then return nil end
  local found = {}
  for _, key in ipairs(keys) do
    if #found + call('ZCARD', key) > FEW then return nil end
    for _, id in ipairs(call('ZRANGE', key, 0, -1)) do found[#found + 1] = id end
  end
  return found
end

-- The smallest index that holds all that is asked for, or several that do so together.
local function sources()
  local whole, ended = {IDS}, {}
  if job then
    whole = {}
    for _, owner in ipairs(call('SMEMBERS', P .. 'owners:' .. job)) do whole[#whole + 1] = P .. 'runs_of:' .. owner end
  elseif queue and call('GET', P .. 'queued') == '' then
    whole = {in_queue_key(queue)}
  end
  for state in pairs(states) do
    if tonumber(state) <= COMPLETED then return whole end
    ended[#ended + 1] = P .. 'ids:' .. state
  end
  local function size(keys)
    local number = 0
    for _, key in ipairs(keys) do number = number + call('ZCARD', key) end
    return number
  end
  return size(ended) < size(whole) and ended or whole
end

-- Below the frontier a source may have ids that were not read.
local ids, frontier = {}, ''
local unfinished = few_unfinished()
if unfinished then
  for _, id in ipairs(unfinished) do
    if (below == '+' or id < below:sub(2)) and (lowest == '-' or id >= lowest:sub(2)) then ids[#ids + 1] = id end
  end
else
  for _, key in ipairs(sources()) do
    local part = call('ZREVRANGEBYLEX', key, below, lowest, 'LIMIT', 0, stretch)
    if #part == stretch and part[stretch] > frontier then frontier = part[stretch] end
    for _, id in ipairs(part) do ids[#ids + 1] = id end
  end
end
table.sort(ids, function(one, other) return one > other end)

local looked_at = {}
for _, id in ipairs(ids) do
  if id >= frontier then looked_at[#looked_at + 1] = id end
end
fetch(looked_at)

local function matches(run)
  return states[tostring(run[STATE])] and (not job or run[JOB] == job) and (not queue or run[QUEUE] == queue)
    and (not since or run[FIRE_AT] >= since) and (not before or run[FIRE_AT] < before)
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
