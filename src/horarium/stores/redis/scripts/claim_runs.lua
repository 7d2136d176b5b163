-- uses: shared_runs
-- Takes runs in claim order: level by level (a priority in all asked queues), within it by due time, then by id.
-- Everything is chosen before anything is written: what this claim took already is counted beside what is stored.
-- ARGV: now, until, limit, worker, then the queues (each once). Answers when the next run is due ('' for none), the ids
-- taken, what `load_runs` does, and ids and rows of their jobs.
local now, until_, limit, worker = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local queues = {unpack(ARGV, 5)}
local taken = {}
local taken_under, taken_of_job = {}, {}

local function in_claim_order(one, other)
  if one.due_at ~= other.due_at then return one.due_at < other.due_at end
  return one.id < other.id
end

-- ---- who could be taken

local function candidate(into, id, due_at, row, gated)
  local m, f = read_row(row)
  if m[START_BY] and m[START_BY] <= now then return end
  into[#into + 1] = {id = id, due_at = due_at, row = row, m = m, f = f, gated = gated}
end

-- The first `wanted` due runs of a lane or a gate that may still start.
local function first_due(into, key, wanted, gated)
  local enough, offset = #into + wanted, 0
  while #into < enough do
    local part = call('ZRANGEBYSCORE', key, '-inf', until_, 'WITHSCORES', 'LIMIT', offset, wanted)
    if #part == 0 then return end
    local ids = {}
    for place = 1, #part, 2 do ids[#ids + 1] = part[place] end
    for place, row in ipairs(many('HMGET', RUNS, ids)) do
      if #into < enough then candidate(into, ids[place], tonumber(part[2 * place]), row, gated) end
    end
    if #ids < wanted then return end
    offset = offset + wanted
  end
end

local function free_under(key, max) return max - call('ZCARD', P .. 'held:' .. key) - (taken_under[key] or 0) end

-- Of a serial job only its first unfinished run may be taken, and none while one is claimed: that one would come first.
local function first_in_order(into, job_id, gate)
  if taken_of_job[job_id] then return end
  local first = call('ZRANGE', P .. 'waiting:' .. job_id, 0, 0, 'WITHSCORES')
  if not first[1] or tonumber(first[2]) < 0 then return end
  local due_at = call('ZSCORE', gate, first[1])
  if due_at and tonumber(due_at) <= tonumber(until_) then
    candidate(into, first[1], tonumber(due_at), call('HGET', RUNS, first[1]), true)
  end
end

local function from_gates(into, priority, queue, wanted)
  for _, gate in ipairs(call('ZRANGEBYSCORE', level_key('gates', priority, queue), '-inf', until_)) do
    local job_id, key, max = cmsgpack.unpack(gate)
    local free = key and free_under(key, max) or wanted
    if free > 0 then
      local runs = gate_key(priority, queue, gate)
      if job_id then first_in_order(into, job_id, runs) else first_due(into, runs, math.min(free, wanted), true) end
    end
  end
end

-- ---- taking

local function may_be_taken(run)
  local f = run.f
  if f[KEY] and free_under(f[KEY], f[KEY_MAX]) <= 0 then return false end
  return not (f[SERIAL] and f[JOB_ID] and taken_of_job[f[JOB_ID]])
end

local function take(run)
  local f = run.f
  if f[KEY] then taken_under[f[KEY]] = (taken_under[f[KEY]] or 0) + 1 end
  if f[JOB_ID] then taken_of_job[f[JOB_ID]] = true end
  taken[#taken + 1] = run
end

local function take_from_level(level)
  local wanted, runs = limit - #taken, {}
  for _, queue in ipairs(level.queues) do
    first_due(runs, level_key('lane', level.priority, queue), wanted, false)
    from_gates(runs, level.priority, queue, wanted)
  end
  table.sort(runs, in_claim_order)
  for _, run in ipairs(runs) do
    if #taken == limit then return end
    if not run.gated or may_be_taken(run) then take(run) end
  end
end

-- The levels of these queues, the highest first. One that is empty for good is forgotten.
local function levels()
  local found, by_priority = {}, {}
  for _, queue in ipairs(queues) do
    for _, priority in ipairs(call('ZRANGE', P .. 'levels:' .. queue, 0, -1)) do
      local lane, gated = level_key('lane', priority, queue), level_key('gated', priority, queue)
      if call('EXISTS', lane, gated) == 0 then
        remove(P .. 'levels:' .. queue, priority)
      else
        local level = by_priority[priority]
        if not level then
          level = {priority = priority, rank = tonumber(priority), queues = {}, lanes = {}}
          by_priority[priority] = level
          found[#found + 1] = level
        end
        level.queues[#level.queues + 1] = queue
        level.lanes[#level.lanes + 1] = lane
        level.lanes[#level.lanes + 1] = gated
      end
    end
  end
  table.sort(found, function(one, other) return one.rank > other.rank end)
  return found
end

local function next_due_at(found)
  if #taken == limit then return until_ end
  local earliest = NEVER
  for _, level in ipairs(found) do
    for _, lane in ipairs(level.lanes) do
      local due_at = call('ZRANGEBYSCORE', lane, '(' .. until_, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
      if due_at then earliest = math.min(earliest, tonumber(due_at)) end
    end
  end
  return earliest < NEVER and number(earliest) or ''
end

-- `ports.lease_end`, from when it starts.
local function claim(run)
  local id, m, f = run.id, run.m, run.f
  local started_at = math.max(now, m[DUE_AT])
  leave_lane(id, m, f)
  m[STATE], m[TOKEN], m[ATTEMPT], m[WORKER] = RUNNING, m[TOKEN] + 1, m[ATTEMPT] + 1, worker
  m[STARTED_AT] = started_at
  m[LEASE_EXPIRES_AT] = started_at + math.min(f[LEASE_MICROS], f[EXECUTION_MICROS] or f[LEASE_MICROS])
  enter_claimed(id, m, f)
  wait_in_job(id, RUNNING, f)
  run.row = write_row(run.row, m)
  set_field(RUNS, id, run.row)
end

local found = levels()
for _, level in ipairs(found) do
  if #taken < limit then take_from_level(level) end
end
local next_at = next_due_at(found)
local ids, job_ids = {}, {}
for place, run in ipairs(taken) do
  claim(run)
  ids[place] = run.id
end
for job_id in pairs(taken_of_job) do job_ids[#job_ids + 1] = job_id end
flush()
return {next_at, ids, load_runs(ids), job_ids, #job_ids > 0 and many('HMGET', P .. 'jobs', job_ids) or {}}
