-- uses: shared_reading
-- Rows of runs and every index over them; comes before each script that writes runs.
--
-- A row is one MessagePack array (`rows.py` has the same order): first what may change, then what is fixed, then what
-- no script looks at. A script reads the first two parts and copies the third unchanged.
--
-- Writes are collected and carried out by `flush`: one command for all members of one sorted set. A run that is met
-- again in a batch makes `find` flush first. What must be seen by the rest of the batch (fire times, unique keys) is
-- written at once.
--
--   runs          hash: id -> row             waiting:JOB_ID     unfinished runs of a job, by fire time; claimed ones
--   outcomes      hash: id -> error, result,                     lie 2^53 below, so that one of them comes first
--                 history (if there are any)  runs_of:OWNER      all runs of a job
--   progress      hash: id -> JSON            owners:NAME        which owners have runs under this job name
--   payloads      hash: id -> large payload   fires:JOB_ID       set: the fire times that have a run
--   unique        hash: unique key -> id
--   ids           all runs; ids:N: those that ended in a state that is not the usual one; in:Q: all of a queue
--   queues        queues with unfinished runs levels:QUEUE       its priorities
--   claimed:Q     claimed runs of a queue, by end of lease
--   claimed_in    queues in which runs may be claimed; `prune_runs` forgets those in which none are, some at a time
--   start_by      pending runs that must start by then
--   prunable      finished runs, by when they may be forgotten
--
--   health:JOB_ID how runs of a job ended: run, state, at, error, success, failures, since (those that are known)
--   failing       set: jobs with failures
--
-- What holds runs back is worked out when it changes, so that a claim looks at few more runs than it takes:
--
--   lane:P:Q      pending runs that nothing holds back, by due time
--   gated:P:Q     the other pending ones, by due time: serial ones that are not the first unfinished run of their job,
--                 and all with a concurrency key
--   opened        hash: job -> its serial run that is not in `gated` for its order ('': none), for each job that had one
--   held:KEY      claimed runs under a concurrency key
--   gate:N:KEY:G  its pending runs of one gate (priority, queue and maximum) that their order does not hold back, by
--                 due time; gates:KEY: hash: gate -> its run in `heads` ('': none)
--   heads:P:Q     the first run of each gate whose key has a place free, by due time

local RUNS, OUTCOMES, PROGRESS, PAYLOADS = P .. 'runs', P .. 'outcomes', P .. 'progress', P .. 'payloads'
local UNIQUE = P .. 'unique'
local IDS, PRUNABLE, QUEUES, OPENED = P .. 'ids', P .. 'prunable', P .. 'queues', P .. 'opened'

local PENDING, RUNNING, CANCELLING, COMPLETED = 0, 1, 2, 3
-- Places in the table of a run (`read_run`): where in the row its fixed part begins, what may change, the row, where
-- that begins which no script looks at, what is fixed.
local FIXED_BEGINS = 1
local STATE, TOKEN, ATTEMPT, DUE_AT, LEASE_EXPIRES_AT, STARTED_AT, START_BY, WORKER = 2, 3, 4, 5, 6, 7, 8, 9
local FINISHED_AT, DISPOSITION, PRUNE_AT, DEADLINE, ROW = 10, 11, 12, 13, 14
local QUEUE, PRIORITY, FIRE_AT, JOB_ID, JOB, SERIAL, KEY, KEY_MAX, UNIQUE_KEY = 16, 17, 18, 19, 20, 21, 22, 23, 24
local LEASE_MICROS, EXECUTION_MICROS, APART = 25, 26, 27
local CHANGING, FIXED, HEADER, CHANGE_HEAD = 12, 12, 3, 7
local ROW_BEGINS = string.char(220, 0, 29)
local FAR_BELOW = 2 ^ 53
local NEVER = 1 / 0
-- How many arguments one command is given at most: Lua's stack holds some 8,000.
local ARGUMENTS_MAX = 4000

local unpack_limit, pack, sub = cmsgpack.unpack_limit, cmsgpack.pack, string.sub

local function number(value) return string.format('%.0f', value) end

-- One table made in one go: tables that grow, and a table for each part, cost more than all the rest.
local function read_run(row)
  local fixed, a, b, c, d, e, f, g, h, i, j, k, l = unpack_limit(row, CHANGING, HEADER)
  return {fixed, a, b, c, d, e, f, g, h, i, j, k, l, row, unpack_limit(row, FIXED, fixed)}
end

-- The row of a run, with this in place of what may change (twelve values in MessagePack).
local function row_with(run, changing) return ROW_BEGINS .. changing .. sub(run[ROW], run[FIXED_BEGINS] + 1) end

local function write_row(run)
  return ROW_BEGINS .. pack(unpack(run, STATE, DEADLINE)) .. sub(run[ROW], run[FIXED_BEGINS] + 1)
end

-- ---- reading

-- All values of a text, however many: more at once than Lua's stack holds is an error.
local function values_of(text)
  local values, at = {}, 0
  while at >= 0 and at < #text do
    local part = {unpack_limit(text, ARGUMENTS_MAX, at)}
    at = part[1]
    for place = 2, #part do values[#values + 1] = part[place] end
  end
  return values
end

local function many(command, key, arguments)
  if #arguments == 0 then return {} end
  if #arguments <= ARGUMENTS_MAX then return call(command, key, unpack(arguments)) end
  local answers = {}
  for first = 1, #arguments, ARGUMENTS_MAX do
    local part = call(command, key, unpack(arguments, first, math.min(first + ARGUMENTS_MAX - 1, #arguments)))
    if first == 1 then answers = part else for _, answer in ipairs(part) do answers[#answers + 1] = answer end end
  end
  return answers
end

-- What belongs to these runs besides their rows, from place 2 on; a hash that is empty is not looked into.
local function load_beside(ids)
  local parts = {{}, {}, {}, {}}
  for place, key in ipairs({OUTCOMES, PROGRESS, PAYLOADS}) do
    if #ids > 0 and call('EXISTS', key) == 1 then parts[place + 1] = many('HMGET', key, ids) end
  end
  return parts
end

-- What the client needs to build these runs. If it is more than a call brings, the parts end before the ids do, and the
-- client asks for the others.
local function load_runs(ids)
  local parts, keys = {many('HMGET', RUNS, ids), {}, {}, {}}, {}
  for place, key in ipairs({OUTCOMES, PROGRESS, PAYLOADS}) do
    if #ids > 0 and call('EXISTS', key) == 1 then keys[place + 1] = key end
  end
  if not next(keys) then return parts end
  local beside, brought = bring(keys, ids)
  for place, part in pairs(beside) do parts[place] = part end
  if brought < #ids then parts[1] = {unpack(parts[1], 1, brought)} end
  return parts
end

-- ---- writing, collected

local removals, additions, fields_set, fields_removed = {}, {}, {}, {}
-- Jobs whose unfinished runs changed, those of them that were given serial runs, and concurrency keys with their gates.
local jobs_touched, serial_touched, keys_touched = {}, {}, {}
-- Rows read before (false: there is none), and the runs that were written since.
local rows_read, touched = {}, {}

local function remove(key, member)
  local members = removals[key]
  if members then members[#members + 1] = member else removals[key] = {member} end
end

local function add(key, score, member)
  local members = additions[key]
  if not members then
    additions[key] = {score, member}
    return true
  end
  members[#members + 1], members[#members + 2] = score, member
  return false
end

local function set_field(key, id, value)
  local fields = fields_set[key]
  if not fields then fields = {}; fields_set[key] = fields end
  fields[#fields + 1], fields[#fields + 2] = id, value
end

local function remove_field(key, id)
  local fields = fields_removed[key]
  if fields then fields[#fields + 1] = id else fields_removed[key] = {id} end
end

local function in_parts(command, key, arguments)
  if #arguments <= ARGUMENTS_MAX then return call(command, key, unpack(arguments)) end
  for first = 1, #arguments, ARGUMENTS_MAX do
    call(command, key, unpack(arguments, first, math.min(first + ARGUMENTS_MAX - 1, #arguments)))
  end
end

local function write_collected()
  for key, ids in pairs(fields_removed) do in_parts('HDEL', key, ids) end
  for key, fields in pairs(fields_set) do in_parts('HSET', key, fields) end
  for key, members in pairs(removals) do in_parts('ZREM', key, members) end
  for key, members in pairs(additions) do in_parts('ZADD', key, members) end
  removals, additions, fields_set, fields_removed = {}, {}, {}, {}
end

local settle_order, settle_keys

local function flush()
  write_collected()
  if next(jobs_touched) then
    settle_order()
    write_collected()
  end
  if next(keys_touched) then
    settle_keys()
    write_collected()
  end
  jobs_touched, serial_touched, keys_touched = {}, {}, {}
end

-- Read the rows of these runs at once, for `find`.
local function fetch(ids)
  if #ids == 0 then return end
  for place, row in ipairs(many('HMGET', RUNS, ids)) do rows_read[ids[place]] = row end
end

-- What was read is of no use for runs that were written since.
local function forget_touched()
  flush()
  for id in pairs(touched) do rows_read[id] = nil end
  touched = {}
end

local function find(id)
  if touched[id] then forget_touched() end
  local row = rows_read[id]
  if row == nil then row = call('HGET', RUNS, id) end
  return row and read_run(row)
end

local function put(id, row)
  touched[id] = true
  set_field(RUNS, id, row)
end

-- ---- indexes of a run

local function level_key(kind, priority, queue) return P .. kind .. ':' .. priority .. ':' .. queue end

-- Keys that are asked for with every run: building one costs more than looking it up.
local function known(prefix)
  local keys = {}
  return function(name)
    local key = keys[name]
    if not key then key = prefix .. name; keys[name] = key end
    return key
  end
end

local in_queue_key, claimed_key = known(P .. 'in:'), known(P .. 'claimed:')

local lanes = {}
local function lane_key(priority, queue)
  local of_queue = lanes[queue]
  if not of_queue then of_queue = {}; lanes[queue] = of_queue end
  local key = of_queue[priority]
  if not key then key = level_key('lane', priority, queue); of_queue[priority] = key end
  return key
end

local function gate_key(key, gate) return P .. 'gate:' .. #key .. ':' .. key .. ':' .. gate end

-- The gate of a run with a concurrency key, to be looked at by `settle_keys`.
local function touch_gate(f)
  local key, gate = f[KEY], pack(f[PRIORITY], f[QUEUE], f[KEY_MAX])
  local gates = keys_touched[key]
  if not gates then gates = {}; keys_touched[key] = gates end
  gates[gate] = true
  return gate_key(key, gate)
end

local function enter_queue(queue) add(QUEUES, 0, queue) end

local function enter_lane(id, m, f)
  local queue, priority, in_order = f[QUEUE], f[PRIORITY], f[SERIAL] and f[JOB_ID]
  local lane = (in_order or f[KEY]) and level_key('gated', priority, queue) or lane_key(priority, queue)
  if in_order then
    serial_touched[in_order] = true
  elseif f[KEY] then
    add(touch_gate(f), m[DUE_AT], id)
  end
  if add(lane, m[DUE_AT], id) then
    add(P .. 'levels:' .. queue, priority, priority)
    enter_queue(queue)
  end
  if m[START_BY] then add(P .. 'start_by', m[START_BY], id) end
end

local function leave_lane(id, run)
  local queue, priority, key = run[QUEUE], run[PRIORITY], run[KEY]
  if key then remove(touch_gate(run), id) else remove(lane_key(priority, queue), id) end
  if key or run[SERIAL] then remove(level_key('gated', priority, queue), id) end
  if run[START_BY] then remove(P .. 'start_by', id) end
end

local function enter_claimed(id, m, f)
  if add(claimed_key(f[QUEUE]), m[LEASE_EXPIRES_AT] or NEVER, id) then
    enter_queue(f[QUEUE])
    add(P .. 'claimed_in', 0, f[QUEUE])
  end
  if f[KEY] then
    add(P .. 'held:' .. f[KEY], 0, id)
    touch_gate(f)
  end
end

local function leave_claimed(id, f)
  remove(claimed_key(f[QUEUE]), id)
  if f[KEY] then
    remove(P .. 'held:' .. f[KEY], id)
    touch_gate(f)
  end
end

-- The scores of claimed runs as text: the server takes long to write a number, and many jobs fire at one instant.
local scores_below = {}
local function far_below(fire_at)
  local text = scores_below[fire_at]
  if not text then text = number(fire_at - FAR_BELOW); scores_below[fire_at] = text end
  return text
end

local function wait_in_job(id, state, job_id, fire_at)
  if job_id then
    add(P .. 'waiting:' .. job_id, state == PENDING and fire_at or far_below(fire_at), id)
    jobs_touched[job_id] = true
  end
end

local function leave_job(id, job_id)
  if job_id then
    remove(P .. 'waiting:' .. job_id, id)
    jobs_touched[job_id] = true
  end
end

-- ---- what holds runs back

-- The first unfinished run of a job ('' if it is claimed: none may begin), or nothing.
local function first_of_job(job_id)
  local first = call('ZRANGE', P .. 'waiting:' .. job_id, 0, 0, 'WITHSCORES')
  if not first[1] then return nil end
  return tonumber(first[2]) < -FAR_BELOW / 2 and '' or first[1]
end

-- A pending serial run whose order holds it back no longer, or again.
local function open_run(id, run)
  if run[KEY] then
    add(touch_gate(run), run[DUE_AT], id)
  else
    add(lane_key(run[PRIORITY], run[QUEUE]), run[DUE_AT], id)
    remove(level_key('gated', run[PRIORITY], run[QUEUE]), id)
  end
end

local function shut_run(id, run)
  if run[KEY] then
    remove(touch_gate(run), id)
  else
    remove(lane_key(run[PRIORITY], run[QUEUE]), id)
    add(level_key('gated', run[PRIORITY], run[QUEUE]), run[DUE_AT], id)
  end
end

-- Of a job's serial runs only its first unfinished run may be taken, and none while one is claimed.
function settle_order()
  if not next(serial_touched) and call('EXISTS', OPENED) == 0 then return end
  local jobs, opened, shut = {}, {}, {}
  for job_id in pairs(jobs_touched) do jobs[#jobs + 1] = job_id end
  for place, before in ipairs(many('HMGET', OPENED, jobs)) do
    local job_id = jobs[place]
    if before or serial_touched[job_id] then
      local first = first_of_job(job_id)
      if first then set_field(OPENED, job_id, first) else remove_field(OPENED, job_id) end
      if first and first ~= '' then opened[#opened + 1] = first end
      if before and before ~= '' and before ~= first then shut[#shut + 1] = before end
    end
  end
  for place, row in ipairs(many('HMGET', RUNS, shut)) do
    local run = row and read_run(row)
    if run and run[STATE] == PENDING and run[SERIAL] then shut_run(shut[place], run) end
  end
  for place, row in ipairs(many('HMGET', RUNS, opened)) do
    local run = read_run(row)
    if run[SERIAL] then open_run(opened[place], run) end
  end
end

-- Under each key the first run of each gate may be taken, as long as a place is free for it.
function settle_keys()
  for key, gates_touched in pairs(keys_touched) do
    local held, of_key, gates = call('ZCARD', P .. 'held:' .. key), P .. 'gates:' .. key, {}
    for gate in pairs(gates_touched) do gates[gate] = '' end
    local known = call('HGETALL', of_key)
    for place = 1, #known, 2 do gates[known[place]] = known[place + 1] end
    for gate, before in pairs(gates) do
      local priority, queue, max = cmsgpack.unpack(gate)
      local first, heads = call('ZRANGE', gate_key(key, gate), 0, 0, 'WITHSCORES'), level_key('heads', priority, queue)
      local head = held < max and first[1] or ''
      if before ~= '' and before ~= head then remove(heads, before) end
      if head ~= '' then add(heads, first[2], head) end
      if first[1] then set_field(of_key, gate, head) else remove_field(of_key, gate) end
    end
  end
end

local function index_ended(id, state, prune_at)
  if state > COMPLETED then add(P .. 'ids:' .. state, 0, id) end
  if prune_at then add(PRUNABLE, prune_at, id) end
end

-- The indexes that a run is in by its state, besides `ids`.
local function index(id, m, f)
  local state = m[STATE]
  if state < COMPLETED then
    wait_in_job(id, state, f[JOB_ID], f[FIRE_AT])
    if state == PENDING then enter_lane(id, m, f) else enter_claimed(id, m, f) end
    return
  end
  index_ended(id, state, m[PRUNE_AT])
end

local function unindex(id, run)
  local state = run[STATE]
  if state < COMPLETED then
    leave_job(id, run[JOB_ID])
    if state == PENDING then leave_lane(id, run) else leave_claimed(id, run) end
    return
  end
  if state > COMPLETED then remove(P .. 'ids:' .. state, id) end
  if run[PRUNE_AT] then remove(PRUNABLE, id) end
end

-- From one state to another, leaving alone what stays.
local function reindex(id, run, m)
  local before, after = run[STATE], m[STATE]
  if before >= COMPLETED or after >= COMPLETED then
    unindex(id, run)
    index(id, m, run)
    return
  end
  if before == PENDING then leave_lane(id, run) else leave_claimed(id, run) end
  if after == PENDING then enter_lane(id, m, run) else enter_claimed(id, m, run) end
  wait_in_job(id, after, run[JOB_ID], run[FIRE_AT])
end

-- ---- what happens to runs. A batch comes as one string of MessagePack values; each function is given the place to
-- read from, and answers where it stopped.

local function owner_of(run) return run[JOB_ID] or run[JOB] and '=' .. run[JOB] end

-- Owners that were put under their job's name in this batch.
local named = {}

local function write_beside(id, outcome, progress, payload)
  if outcome then set_field(OUTCOMES, id, ARGV[outcome]) end
  if progress then set_field(PROGRESS, id, ARGV[progress]) end
  if payload then set_field(PAYLOADS, id, ARGV[payload]) end
end

-- Insert a run unless its id, its unique key or its fire time is taken. Five values: id, and the places in ARGV of its
-- row, its outcome, its progress and its large payload.
local function add_run(batch, at)
  local stopped, id, row, outcome, progress, payload = unpack_limit(batch, 5, at)
  if find(id) then return stopped, false end
  local run = read_run(ARGV[row])
  local key, job_id = run[UNIQUE_KEY], run[JOB_ID]
  if key and call('HEXISTS', UNIQUE, key) == 1 then return stopped, false end
  if job_id and call('SADD', P .. 'fires:' .. job_id, number(run[FIRE_AT])) == 0 then return stopped, false end
  if key then call('HSET', UNIQUE, key, id) end
  local owner = owner_of(run)
  if owner then
    add(P .. 'runs_of:' .. owner, 0, id)
    if run[JOB] and named[owner] ~= run[JOB] then
      call('SADD', P .. 'owners:' .. run[JOB], owner)
      named[owner] = run[JOB]
    end
  end
  add(IDS, 0, id)
  add(in_queue_key(run[QUEUE]), 0, id)
  put(id, run[ROW])
  write_beside(id, outcome, progress, payload)
  index(id, run, run)
  return stopped, true
end

-- The last run of a job is gone.
local function delete_owner(run, owner)
  named[owner] = nil
  if run[JOB] then call('SREM', P .. 'owners:' .. run[JOB], owner) end
  if run[JOB_ID] and call('SISMEMBER', P .. 'jobs_deleted', run[JOB_ID]) == 1 then
    call('SADD', P .. 'jobs_orphaned', run[JOB_ID])
  end
end

local function delete_run(id, run)
  touched[id] = true
  remove_field(RUNS, id)
  remove_field(OUTCOMES, id)
  remove_field(PROGRESS, id)
  if run[APART] then remove_field(PAYLOADS, id) end
  if run[UNIQUE_KEY] then call('HDEL', UNIQUE, run[UNIQUE_KEY]) end
  if run[JOB_ID] then call('SREM', P .. 'fires:' .. run[JOB_ID], number(run[FIRE_AT])) end
  remove(IDS, id)
  remove(in_queue_key(run[QUEUE]), id)
  unindex(id, run)
  local owner = owner_of(run)
  if owner then
    -- A run of this batch that is still to be added keeps the owner: `additions` has it.
    local key = P .. 'runs_of:' .. owner
    call('ZREM', key, id)
    if not additions[key] and call('EXISTS', key) == 0 then delete_owner(run, owner) end
  end
end

local outcomes_exist, progress_exists = call('EXISTS', OUTCOMES) == 1, call('EXISTS', PROGRESS) == 1

-- Whether the lease of a run is as a change says that it must be.
local function is_held(run, held, now)
  if held == nil then return true end
  local lease = run[LEASE_EXPIRES_AT]
  return lease and (lease > now) == held
end

local function write_end_beside(id, outcome, progress)
  if outcomes_exist and not outcome then remove_field(OUTCOMES, id) end
  if progress_exists and not progress then remove_field(PROGRESS, id) end
  if outcome or progress then write_beside(id, outcome, progress) end
end

-- ---- the health of jobs

local FAILED = 4
-- What this call ends, by job: the last run, the last success, and how many failed at which instants.
local ends = {}

-- This number of runs of a job ended alike; `id` is the greatest of theirs.
local function count_end(job_id, id, m, outcome, count)
  local state, at = m[STATE], m[FINISHED_AT]
  if not job_id or state > FAILED or not at then return end
  local of_job, done = ends[job_id], state == COMPLETED
  if not of_job then of_job = {at = -NEVER, success = -NEVER, failed = {}}; ends[job_id] = of_job end
  if done then of_job.success = math.max(of_job.success, at) end
  if state == FAILED then of_job.failed[at] = (of_job.failed[at] or 0) + count end
  if at < of_job.at or at == of_job.at and (of_job.done and not done or of_job.done == done and id < of_job.id) then return end
  of_job.at, of_job.done, of_job.id, of_job.state, of_job.outcome = at, done, id, state, outcome
end

-- The error in an outcome: bytes, which `cmsgpack` does not read.
local function error_of(outcome)
  local text = outcome and ARGV[outcome]
  local kind, high, low = (text or ''):byte(2, 4)
  if kind == 196 then return sub(text, 4, 3 + high) end
  if kind == 197 then return sub(text, 5, 4 + 256 * high + low) end
end

local function write_health(job_id, of_job)
  local key, failures, since = P .. 'health:' .. job_id, 0, NEVER
  for at, count in pairs(of_job.failed) do
    if at > of_job.success then failures, since = failures + count, math.min(since, at) end
  end
  local text = error_of(of_job.outcome)
  call('HSET', key, 'run', of_job.id, 'state', of_job.state, 'at', number(of_job.at))
  if text then call('HSET', key, 'error', text) else call('HDEL', key, 'error') end
  if of_job.success > -NEVER then
    call('HSET', key, 'success', number(of_job.success))
    call('HDEL', key, 'failures', 'since')
    call('SREM', P .. 'failing', job_id)
  end
  if failures > 0 then
    call('HINCRBY', key, 'failures', failures)
    call('HSETNX', key, 'since', number(since))
    call('SADD', P .. 'failing', job_id)
  end
end

-- Once in a call, when all is written.
local function count_ends()
  for job_id, of_job in pairs(ends) do write_health(job_id, of_job) end
end

-- Write a change if the stored run is still as it says. Nineteen values: id, token, state, whether the lease must be
-- held, the places in ARGV of outcome, progress and what comes along; then all that may change, as in a row. What comes
-- along is the caller's to bring (`bring_along`): its place is the third answer.
local function apply_change(batch, at, now)
  local begins, id, token, state, held, outcome, progress, along = unpack_limit(batch, CHANGE_HEAD, at)
  local m = {unpack_limit(batch, CHANGING, begins)}
  local stopped = m[1]
  local run = find(id)
  if not run or run[TOKEN] ~= token or run[STATE] ~= state then return stopped, false end
  if not is_held(run, held, now) then return stopped, false end
  put(id, row_with(run, sub(batch, begins + 1, stopped)))
  write_end_beside(id, outcome, progress)
  reindex(id, run, m)
  if state < COMPLETED and m[STATE] >= COMPLETED then count_end(run[JOB_ID], id, m, outcome, 1) end
  return stopped, true, along
end
