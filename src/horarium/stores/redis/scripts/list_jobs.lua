-- uses: shared_runs, shared_jobs
-- Walks up the names, by the rarest of the labels that are asked for, for a bounded stretch. ARGV: from which name on and
-- up to which (bounds of ZRANGEBYLEX), how many are wanted, how many are looked at, '1' for enabled ones, '0' for others
-- or '' for both, the same for finished ones, then the labels (key, value, key, value...). Answers the rows found, and
-- from which name to go on ('' at the end).
local from, upto, wanted, stretch, enabled = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local finished = ARGV[6]
local DISABLED = P .. 'jobs_disabled'

-- Up to this many disabled jobs are all looked at.
local FEW = 2000

local labels, index = {}, P .. 'jobs_named'
for place = 7, #ARGV, 2 do labels[#labels + 1] = label_key(ARGV[place], ARGV[place + 1]) end
for place, key in ipairs(labels) do
  if place == 1 or call('ZCARD', key) < call('ZCARD', index) then index = key end
end

local function has_all_labels(name)
  for _, key in ipairs(labels) do
    if key ~= index and not call('ZSCORE', key, name) then return false end
  end
  return true
end

-- Whether the job is finished is the last that its definition says, and that is the last of its row. No finished one is
-- enabled.
local function is_finished(id)
  return call('SISMEMBER', DISABLED, id) == 1 and call('HGET', JOBS, id):find('"finished_at":%d+}$') ~= nil
end

local function is_within(name)
  local bound = from:sub(2)
  if from ~= '-' and (name < bound or from:sub(1, 1) == '(' and name == bound) then return false end
  return upto == '+' or name < upto:sub(2)
end

-- Names and ids of what is looked at, ascending, and where it ends.
local function few_disabled()
  local found, ids = {}, {}
  for _, id in ipairs(call('SMEMBERS', DISABLED)) do
    local name = read_job(call('HGET', JOBS, id)).name
    if is_within(name) then found[#found + 1], ids[name] = name, id end
  end
  table.sort(found)
  for place, name in ipairs(found) do ids[place] = ids[name] end
  return found, ids, ''
end

local function by_name()
  local names = call('ZRANGEBYLEX', index, from, upto, 'LIMIT', 0, stretch)
  return names, many('HMGET', NAMES, names), #names == stretch and names[stretch] or ''
end

local names, ids, stopped
if (enabled == '0' or finished == '1') and call('SCARD', DISABLED) <= FEW then
  index = nil
  names, ids, stopped = few_disabled()
else
  names, ids, stopped = by_name()
end

local found = {}
for place, name in ipairs(names) do
  local matches = enabled == '' or (call('SISMEMBER', DISABLED, ids[place]) == 0) == (enabled == '1')
  if matches and finished ~= '' then matches = is_finished(ids[place]) == (finished == '1') end
  if matches and has_all_labels(name) then found[#found + 1] = ids[place] end
  if #found == wanted then
    stopped = name
    break
  end
end
return {many('HMGET', JOBS, found), stopped}
