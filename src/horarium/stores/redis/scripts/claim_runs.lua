-- uses: shared_runs
-- Takes runs in claim order: level by level (a priority in all asked queues), within it by due time, then by id.
-- Everything is chosen before anything is written: what this claim took already is counted beside what is stored.
-- ARGV: now, until, limit, worker, then the queues (each once). Answers when the next run is due ('' for none), the ids
-- taken, what `load_runs` does, and ids and rows of their jobs.
local now, until_, limit, worker = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local queues, last_due_at = {unpack(ARGV, 5)}, tonumber(ARGV[2])
local ids, rows, taken = {}, {}, 0
local taken_under, taken_of_job = {}, {}

local function in_claim_order(one, other)
  if one.due_at ~= other.due_at then return one.due_at < other.due_at end
  return one.id < other.id
end

-- ---- taking

-- Chosen: `ports.lease_end` from when it starts. The row is built here, the indexes follow in `flush`.
local function take(id, run)
  local key, job_id, started_at = run[KEY], run[JOB_ID], run[DUE_AT]
  local lasts, limited_to = run[LEASE_MICROS], run[EXECUTION_MICROS]
  if started_at < now then started_at = now end
  if limited_to and limited_to < lasts then lasts = limited_to end
  leave_lane(id, run)
  run[STATE], run[TOKEN], run[ATTEMPT], run[WORKER] = RUNNING, run[TOKEN] + 1, run[ATTEMPT] + 1, worker
  run[STARTED_AT], run[LEASE_EXPIRES_AT] = started_at, started_at + lasts
  enter_claimed(id, run, run)
  wait_in_job(id, RUNNING, run)
  if key then taken_under[key] = (taken_under[key] or 0) + 1 end
  if job_id then taken_of_job[job_id] = true end
  local row = write_row(run)
  put(id, row)
  taken = taken + 1
  ids[taken], rows[taken] = id, row
end

local function too_late(run) return run[START_BY] and run[START_BY] <= now end

-- ---- a level that is one lane and nothing else: what comes first is taken

local function take_from_lane(lane)
  local offset = 0
  while taken < limit do
    local wanted = limit - taken
    local part = call('ZRANGEBYSCORE', lane, '-inf', until_, 'LIMIT', offset, wanted)
    for place, row in ipairs(many('HMGET', RUNS, part)) do
      local run = read_run(row)
      if not too_late(run) then take(part[place], run) end
    end
    if #part < wanted then return end
    offset = offset + wanted
  end
end

-- ---- any other level: whoever could be taken, in claim order

local function in_claim_order(one, other)
  if one.due_at ~= other.due_at then return one.due_at < other.due_at end
  return one.id < other.id
end

local function candidate(into, id, due_at, row, gated)
  if touched[id] then return end
  local run = read_run(row)
  if not too_late(run) then into[#into + 1] = {id = id, due_at = due_at, run = run, gated = gated} end
end

-- The first `wanted` due runs of a lane or a gate that may still start.
local function first_due(into, key, wanted, gated)
  local enough, offset = #into + wanted, 0
  while #into < enough do
    local part = call('ZRANGEBYSCORE', key, '-inf', until_, 'WITHSCORES', 'LIMIT', offset, wanted)
    local found = {}
    for place = 1, #part, 2 do found[#found + 1] = part[place] end
    for place, row in ipairs(many('HMGET', RUNS, found)) do
      if #into < enough then candidate(into, found[place], tonumber(part[2 * place]), row, gated) end
    end
    if #found < wanted then return end
    offset = offset + wanted
  end
end

local function free_under(key, max) return max - call('ZCARD', P .. 'held:' .. key) - (taken_under[key] or 0) end

-- Of a serial job only its first unfinished run may be taken, and none while one is claimed: that one would come first.
-- Its row is read when its turn comes: of many serial jobs that are due at once few are taken.
local function first_in_order(into, job_id, priority, queue, gate)
  if taken_of_job[job_id] then return end
  local first = call('ZRANGE', P .. 'waiting:' .. job_id, 0, 0, 'WITHSCORES')
  if not first[1] or tonumber(first[2]) < 0 then return end
  local due_at = tonumber(call('ZSCORE', gate_key(priority, queue, gate), first[1]) or NEVER)
  if due_at <= last_due_at then into[#into + 1] = {id = first[1], due_at = due_at, gated = true} end
end

local function earlier_than(due_at, candidates)
  local count = 0
  for _, one in ipairs(candidates) do
    if one.due_at < due_at then count = count + 1 end
  end
  return count
end

-- Gates come by the due time of their first runs, so that most need not be looked into once `enough` is found. Answers
-- where the walk was ended before its time: what is due from then on is not all known.
local function from_gates(into, priority, queue, wanted, enough)
  local gates = call('ZRANGEBYSCORE', level_key('gates', priority, queue), '-inf', until_, 'WITHSCORES')
  local begins_at = 0
  for place = 1, #gates, 2 do
    local gate, due_at = gates[place], tonumber(gates[place + 1])
    if due_at > begins_at and #into >= enough and earlier_than(due_at, into) >= enough then return due_at end
    begins_at = due_at
    local job_id, key, max = cmsgpack.unpack(gate)
    local free = key and free_under(key, max) or wanted
    if job_id and free > 0 then
      first_in_order(into, job_id, priority, queue, gate)
    elseif free > 0 then
      first_due(into, gate_key(priority, queue, gate), math.min(free, wanted), true)
    end
  end
  return NEVER
end

local function may_be_taken(run)
  if run[KEY] and free_under(run[KEY], run[KEY_MAX]) <= 0 then return false end
  return not (run[SERIAL] and run[JOB_ID] and taken_of_job[run[JOB_ID]])
end

-- Takes in claim order as far as all that is due is known, and answers up to when that is.
local function take_known(level, enough)
  local wanted, runs, known = limit - taken, {}, NEVER
  for _, queue in ipairs(level.queues) do
    first_due(runs, level_key('lane', level.priority, queue), wanted, false)
    known = math.min(known, from_gates(runs, level.priority, queue, wanted, enough))
  end
  table.sort(runs, in_claim_order)
  for _, one in ipairs(runs) do
    if taken == limit or one.due_at >= known then break end
    local run = one.run or read_run(call('HGET', RUNS, one.id))
    if not too_late(run) and (not one.gated or may_be_taken(run)) then take(one.id, run) end
  end
  return known
end

-- What was found first may turn out to be held back by what is taken before it: then all gates are looked into.
local function take_from_level(level)
  if take_known(level, limit - taken) < NEVER and taken < limit then take_known(level, NEVER) end
end

-- ---- levels

-- The levels of these queues, the highest first. One that is empty for good is forgotten.
local function levels()
  local found, by_priority = {}, {}
  local function enter(priority, queue, lane, gated)
    local level = by_priority[priority]
    if not level then
      level = {priority = priority, queues = {}, keys = {}, gated = false}
      by_priority[priority] = level
      found[#found + 1] = level
    end
    level.queues[#level.queues + 1] = queue
    level.keys[#level.keys + 1] = lane
    level.keys[#level.keys + 1] = gated
    level.gated = level.gated or call('EXISTS', gated) == 1
  end
  for _, queue in ipairs(queues) do
    for _, priority in ipairs(call('ZRANGE', P .. 'levels:' .. queue, 0, -1)) do
      local lane, gated = level_key('lane', priority, queue), level_key('gated', priority, queue)
      if call('EXISTS', lane, gated) == 0 then
        remove(P .. 'levels:' .. queue, priority)
      else
        enter(tonumber(priority), queue, lane, gated)
      end
    end
  end
  table.sort(found, function(one, other) return one.priority > other.priority end)
  return found
end

local function next_due_at(found)
  if taken == limit then return until_ end
  local earliest = NEVER
  for _, level in ipairs(found) do
    for _, key in ipairs(level.keys) do
      local due_at = call('ZRANGEBYSCORE', key, '(' .. until_, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
      if due_at then earliest = math.min(earliest, tonumber(due_at)) end
    end
  end
  return earliest < NEVER and number(earliest) or ''
end

local found = levels()
for _, level in ipairs(found) do
  if taken < limit then
    if level.gated or level.keys[3] then take_from_level(level) else take_from_lane(level.keys[1]) end
  end
end
local next_at = next_due_at(found)
flush()
local job_ids = {}
for job_id in pairs(taken_of_job) do job_ids[#job_ids + 1] = job_id end
local loaded = load_beside(ids)
loaded[1] = rows
return {next_at, ids, loaded, job_ids, many('HMGET', P .. 'jobs', job_ids)}
