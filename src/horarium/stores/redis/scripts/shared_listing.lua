-- Which of some jobs match a filter; comes after `shared_jobs` and `shared_present`.

local DISABLED = P .. 'jobs_disabled'

-- Whether the job is finished is the last that its definition says, and that is the last of its row. No finished one is
-- enabled.
local function is_finished(id, disabled)
  return disabled and call('HGET', JOBS, id):find('"finished_at":%d+}$') ~= nil
end

-- The ids of these jobs that match, as many as are wanted, and the name of the last if that many were found. `enabled`:
-- '1' for enabled ones, '0' for others, '' for both; `finished` likewise; `labels`: the sets of names of those wanted.
local function matching(names, wanted, enabled, finished, labels)
  for _, key in ipairs(labels) do
    local kept, scores = {}, present('ZMSCORE', 'ZSCORE', key, names)
    for place, name in ipairs(names) do
      if scores[place] then kept[#kept + 1] = name end
    end
    names = kept
  end
  local found, stopped, ids = {}, nil, many('HMGET', NAMES, names)
  for place, id in ipairs(ids) do ids[place] = id or '' end
  local disabled = (enabled ~= '' or finished ~= '') and present('SMISMEMBER', 'SISMEMBER', DISABLED, ids)
  for place, name in ipairs(names) do
    local id = ids[place]
    local matches = id ~= '' and (enabled == '' or (disabled[place] == 0) == (enabled == '1'))
    if matches and finished ~= '' then matches = is_finished(id, disabled[place] == 1) == (finished == '1') end
    if matches then found[#found + 1] = id end
    if #found == wanted then return found, name end
  end
  return found, nil
end

-- The sets of names of jobs with these labels (key, value, key, value...), the smallest first.
local function sets_of(labels)
  local sets, sizes = {}, {}
  for place = 1, #labels, 2 do
    local key = label_key(labels[place], labels[place + 1])
    sets[#sets + 1], sizes[key] = key, call('ZCARD', key)
  end
  table.sort(sets, function(one, other) return sizes[one] < sizes[other] end)
  return sets, sizes
end
