-- Which of some jobs match a filter; comes after `shared_jobs` and `shared_present`.

-- To look for the end of a row in all of it costs twenty times as much.
local LAST_BYTES = 40

-- Which of these jobs are finished: the last that their definition says, and that is the last of the row.
local function finished_of(ids)
  local finished = {}
  for place, row in ipairs(many('HMGET', JOBS, ids)) do
    if row and row:sub(-LAST_BYTES):find('"finished_at":%d+}$') then finished[ids[place]] = true end
  end
  return finished
end

-- The ids of these jobs that match, as many as are wanted, and the name of the last if that many were found. `enabled`:
-- '1' for enabled ones, '0' for others, '' for both; `finished` likewise; `labels`: the sets of names of those wanted.
local function matching(names, wanted, enabled, finished, labels)
  for _, key in ipairs(labels) do
    local kept, scores = {}, present(key, names)
    for place, name in ipairs(names) do
      if scores[place] then kept[#kept + 1] = name end
    end
    names = kept
  end
  local found, stopped, ids = {}, nil, many('HMGET', NAMES, names)
  for place, id in ipairs(ids) do ids[place] = id or '' end
  local disabled = (enabled ~= '' or finished ~= '') and present(DISABLED, names)
  local is_finished, looked_to = {}, 0
  for place, name in ipairs(names) do
    if finished ~= '' and place > looked_to then
      -- No finished one is enabled: few rows are read, some at a time.
      local asked = {}
      looked_to = math.min(place + wanted, #names)
      for number = place, looked_to do
        if disabled[number] then asked[#asked + 1] = ids[number] end
      end
      is_finished = finished_of(asked)
    end
    local id = ids[place]
    local matches = id ~= '' and (enabled == '' or (not disabled[place]) == (enabled == '1'))
    if matches and finished ~= '' then matches = (is_finished[id] or false) == (finished == '1') end
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
  return sets
end

-- The rows of these jobs, and from which name to go on. If they are large it is fewer of them, and the name of the last.
local function rows_until(ids, name)
  local rows, brought = bring_rows(JOBS, ids)
  if brought < #ids then return {rows, read_job(rows[brought]).name} end
  return {rows, name}
end
