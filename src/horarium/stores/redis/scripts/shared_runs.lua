-- Rows of runs and every index over them; stands before each script that writes runs.
--
-- A row is one MessagePack array (`rows.py` has the same order): first what may change, then what is fixed, then what
-- no script looks at. A script reads the first two parts and copies the third as it stands.
--
-- Writes are collected and carried out at the end, together: one command for all members of one sorted set. Until
-- `flush` nothing is written but by `add_run` and `forget_run`, whose checks must see what came before in the batch.
--
--   runs          hash: id -> row             waiting:JOB_ID     unfinished runs of a job, by fire time; claimed ones
--   outcomes      hash: id -> error, result,                     lie 2^53 below, so that one of them comes first
--                 history (if there are any)  runs_of:OWNER      all runs of a job
--   progress      hash: id -> JSON            owners:NAME        which owners have runs under this job name
--   payloads      hash: id -> large payload   fires:JOB_ID       set: the fire times that have a run
--   unique        hash: unique key -> id
--   ids           all runs; ids:N: those that ended in a state that is not the usual one
--   queues        queues with unfinished runs levels:QUEUE       its priorities
--   lane:P:Q      pending runs that nothing holds back, by due time
--   gated:P:Q     pending runs that a key or their order may hold back, by due time
--   gate:P:Q:G    those of one gate; gates:P:Q: the gates, by the due time of their first run
--   held:KEY      claimed runs under a concurrency key       claimed:Q   claimed runs of a queue, by end of lease
--   start_by      pending runs that must start by then       prunable    finished runs, by when they may be forgotten

local P, call = KEYS[1], redis.call
local RUNS, OUTCOMES, PROGRESS, PAYLOADS, UNIQUE = P .. 'runs', P .. 'outcomes', P .. 'progress', P .. 'payloads', P .. 'unique'
local IDS, PRUNABLE, QUEUES = P .. 'ids', P .. 'prunable', P .. 'queues'

local PENDING, RUNNING, CANCELLING, COMPLETED = 0, 1, 2, 3
-- What may change: places in the table that `read_row` gives first; place 1 is where the rest of the row begins.
local STATE, TOKEN, ATTEMPT, DUE_AT, LEASE_EXPIRES_AT, STARTED_AT, START_BY, WORKER = 2, 3, 4, 5, 6, 7, 8, 9
local FINISHED_AT, DISPOSITION, PRUNE_AT = 10, 11, 12
-- What is fixed: places in the second table.
local QUEUE, PRIORITY, FIRE_AT, JOB_ID, JOB, SERIAL, KEY, KEY_MAX, UNIQUE_KEY = 2, 3, 4, 5, 6, 7, 8, 9, 10
local LEASE_MICROS, EXECUTION_MICROS, APART = 11, 12, 13
local CHANGING, FIXED, HEADER = 11, 12, 3
local ROW_BEGINS = string.char(220, 0, 28)
local FAR_BELOW = 2 ^ 53
local NEVER = 1 / 0
-- How many arguments one command is given at the most: Lua's stack holds some 8,000.
local ARGUMENTS_MAX = 4000

local unpack_limit, pack = cmsgpack.unpack_limit, cmsgpack.pack

local function number(value) return string.format('%.0f', value) end

local function read_row(row)
  local changing = {unpack_limit(row, CHANGING, HEADER)}
  return changing, {unpack_limit(row, FIXED, changing[1])}
end

local function write_row(row, m)
  return ROW_BEGINS .. pack(unpack(m, STATE, PRUNE_AT)) .. row:sub(m[1] + 1)
end

-- ---- reading

local function many(command, key, arguments)
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

-- What the client needs to build these runs.
local function load_runs(ids)
  local parts = load_beside(ids)
  parts[1] = many('HMGET', RUNS, ids)
  return parts
end

-- ---- writing, collected

local removals, additions, rows_set, fields_set, fields_removed, gates_touched = {}, {}, {}, {}, {}, {}

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
  for first = 1, #arguments, ARGUMENTS_MAX do
    call(command, key, unpack(arguments, first, math.min(first + ARGUMENTS_MAX - 1, #arguments)))
  end
end

local function flush()
  for key, ids in pairs(fields_removed) do in_parts('HDEL', key, ids) end
  for key, fields in pairs(fields_set) do in_parts('HSET', key, fields) end
  for key, members in pairs(removals) do in_parts('ZREM', key, members) end
  for key, members in pairs(additions) do in_parts('ZADD', key, members) end
  for gate, touched in pairs(gates_touched) do
    local first = call('ZRANGE', gate, 0, 0, 'WITHSCORES')
    if first[1] then call('ZADD', touched[1], first[2], touched[2]) else call('ZREM', touched[1], touched[2]) end
  end
end

-- ---- indexes of a run

-- The gate of a run: the order of its job if it is serial, and its concurrency key with its own maximum.
local function gate_of(f)
  local serial_job = f[SERIAL] and f[JOB_ID]
  if not serial_job and not f[KEY] then return nil end
  return pack(serial_job or false, f[KEY] or false, f[KEY] and f[KEY_MAX] or 0)
end

local function level_key(kind, priority, queue) return P .. kind .. ':' .. priority .. ':' .. queue end

-- Asked for with every run; building it costs more than looking it up.
local lanes = {}
local function lane_key(priority, queue)
  local of_queue = lanes[queue]
  if not of_queue then of_queue = {}; lanes[queue] = of_queue end
  local key = of_queue[priority]
  if not key then key = level_key('lane', priority, queue); of_queue[priority] = key end
  return key
end

local function gate_key(priority, queue, gate)
  return P .. 'gate:' .. priority .. ':' .. #queue .. ':' .. queue .. ':' .. gate
end

local function enter_queue(queue) add(QUEUES, 0, queue) end

local function enter_lane(id, m, f)
  local queue, priority = f[QUEUE], f[PRIORITY]
  local gate = gate_of(f)
  local new
  if gate then
    new = add(level_key('gated', priority, queue), m[DUE_AT], id)
    local key = gate_key(priority, queue, gate)
    add(key, m[DUE_AT], id)
    gates_touched[key] = {level_key('gates', priority, queue), gate}
  else
    new = add(lane_key(priority, queue), m[DUE_AT], id)
  end
  if new then
    add(P .. 'levels:' .. queue, priority, priority)
    enter_queue(queue)
  end
  if m[START_BY] then add(P .. 'start_by', m[START_BY], id) end
end

local function leave_lane(id, m, f)
  local queue, priority = f[QUEUE], f[PRIORITY]
  local gate = gate_of(f)
  if gate then
    remove(level_key('gated', priority, queue), id)
    local key = gate_key(priority, queue, gate)
    remove(key, id)
    gates_touched[key] = {level_key('gates', priority, queue), gate}
  else
    remove(lane_key(priority, queue), id)
  end
  if m[START_BY] then remove(P .. 'start_by', id) end
end

local function enter_claimed(id, m, f)
  if add(P .. 'claimed:' .. f[QUEUE], m[LEASE_EXPIRES_AT] or NEVER, id) then enter_queue(f[QUEUE]) end
  if f[KEY] then add(P .. 'held:' .. f[KEY], 0, id) end
end

local function leave_claimed(id, f)
  remove(P .. 'claimed:' .. f[QUEUE], id)
  if f[KEY] then remove(P .. 'held:' .. f[KEY], id) end
end

local function wait_in_job(id, state, f)
  if f[JOB_ID] then
    add(P .. 'waiting:' .. f[JOB_ID], state == PENDING and f[FIRE_AT] or f[FIRE_AT] - FAR_BELOW, id)
  end
end

-- What a run stands in by its state, besides `ids`.
local function index(id, m, f)
  local state = m[STATE]
  if state < COMPLETED then
    wait_in_job(id, state, f)
    if state == PENDING then enter_lane(id, m, f) else enter_claimed(id, m, f) end
    return
  end
  if state > COMPLETED then add(P .. 'ids:' .. state, 0, id) end
  if m[PRUNE_AT] then add(PRUNABLE, m[PRUNE_AT], id) end
end

local function unindex(id, m, f)
  local state = m[STATE]
  if state < COMPLETED then
    if f[JOB_ID] then remove(P .. 'waiting:' .. f[JOB_ID], id) end
    if state == PENDING then leave_lane(id, m, f) else leave_claimed(id, f) end
    return
  end
  if state > COMPLETED then remove(P .. 'ids:' .. state, id) end
  if m[PRUNE_AT] then remove(PRUNABLE, id) end
end

-- From one state to another, leaving alone what stays.
local function reindex(id, old, new, f)
  local before, after = old[STATE], new[STATE]
  if before >= COMPLETED or after >= COMPLETED then
    unindex(id, old, f)
    index(id, new, f)
    return
  end
  if before == PENDING then leave_lane(id, old, f) else leave_claimed(id, f) end
  if after == PENDING then enter_lane(id, new, f) else enter_claimed(id, new, f) end
  wait_in_job(id, after, f)
end

-- ---- the rows of this batch: as they were stored, and as they are now

local stored, current = {}, {}

-- Read these rows at once; a later `find` costs nothing.
local function fetch(ids)
  if #ids == 0 then return end
  for place, row in ipairs(many('HMGET', RUNS, ids)) do
    if stored[ids[place]] == nil then
      local found = false
      if row then
        local m, f = read_row(row)
        found = {row = row, m = m, f = f}
      end
      stored[ids[place]], current[ids[place]] = found, found
    end
  end
end

local function find(id)
  if stored[id] == nil then fetch({id}) end
  return current[id]
end

-- ---- what happens to runs

local function owner_of(f) return f[JOB_ID] or f[JOB] and '=' .. f[JOB] end

-- Insert a run unless its id, its unique key or its fire time is taken. `new`: {id, and the places in ARGV of its row,
-- its outcome, its progress and its large payload}.
local function add_run(new)
  local id, row = new[1], ARGV[new[2]]
  if find(id) then return false end
  local m, f = read_row(row)
  local key, job_id = f[UNIQUE_KEY], f[JOB_ID]
  if key and call('HEXISTS', UNIQUE, key) == 1 then return false end
  if job_id and call('SADD', P .. 'fires:' .. job_id, number(f[FIRE_AT])) == 0 then return false end
  if key then call('HSET', UNIQUE, key, id) end
  local owner = owner_of(f)
  if owner then
    call('ZADD', P .. 'runs_of:' .. owner, 0, id)
    if f[JOB] then call('SADD', P .. 'owners:' .. f[JOB], owner) end
  end
  if f[APART] then call('HSET', PAYLOADS, id, ARGV[new[5]]) end
  current[id] = {row = row, m = m, f = f, added = true, outcome = new[3], progress = new[4]}
  return true
end

local function forget_run(id, run)
  local f = run.f
  call('HDEL', OUTCOMES, id)
  call('HDEL', PROGRESS, id)
  if f[APART] then call('HDEL', PAYLOADS, id) end
  if f[UNIQUE_KEY] then call('HDEL', UNIQUE, f[UNIQUE_KEY]) end
  if f[JOB_ID] then call('SREM', P .. 'fires:' .. f[JOB_ID], number(f[FIRE_AT])) end
  local owner = owner_of(f)
  if owner and call('ZREM', P .. 'runs_of:' .. owner, id) == 1 and call('EXISTS', P .. 'runs_of:' .. owner) == 0 then
    if f[JOB] then call('SREM', P .. 'owners:' .. f[JOB], owner) end
    if f[JOB_ID] and call('SISMEMBER', P .. 'jobs_deleted', f[JOB_ID]) == 1 then
      call('SADD', P .. 'jobs_orphaned', f[JOB_ID])
    end
  end
  current[id] = false
end

local function write_or_remove(key, id, value)
  if value then set_field(key, id, value) else remove_field(key, id) end
end

-- One change, as `rows.py` sends it: a place for the script, the eleven new values as in a row, then id, token, state,
-- held, and the places in ARGV of outcome and progress. Written if the stored run is still as the change says.
local ID_CHANGED, TOKEN_READ, STATE_READ, HELD, OUTCOME, NEW_PROGRESS = 13, 14, 15, 16, 17, 18

local function apply(change, now)
  local id, held = change[ID_CHANGED], change[HELD]
  local run = find(id)
  if not run then return false end
  local m = run.m
  if m[TOKEN] ~= change[TOKEN_READ] or m[STATE] ~= change[STATE_READ] then return false end
  if held ~= nil then
    local lease = m[LEASE_EXPIRES_AT]
    if not lease or (lease > now) ~= held then return false end
  end
  change[1] = m[1]
  current[id] = {
    row = run.row, m = change, f = run.f, changed = true, added = run.added,
    outcome = change[OUTCOME], progress = change[NEW_PROGRESS],
  }
  return true
end

local function write_outcome(id, run, outcomes, progress)
  if run.outcome or run.changed and outcomes then write_or_remove(OUTCOMES, id, ARGV[run.outcome]) end
  if run.progress or run.changed and progress then write_or_remove(PROGRESS, id, ARGV[run.progress]) end
end

-- Work out what the batch comes to, for each run once, and write it.
local function finish()
  local outcomes, progress = call('EXISTS', OUTCOMES) == 1, call('EXISTS', PROGRESS) == 1
  for id, run in pairs(current) do
    local before = stored[id]
    if run ~= before then
      if not run then
        remove_field(RUNS, id)
        remove(IDS, id)
        unindex(id, before.m, before.f)
      else
        write_outcome(id, run, outcomes, progress)
        set_field(RUNS, id, run.changed and write_row(run.row, run.m) or run.row)
        if not before then add(IDS, 0, id) end
        if before and not run.added then
          reindex(id, before.m, run.m, run.f)
        else
          if before then unindex(id, before.m, before.f) end
          index(id, run.m, run.f)
        end
      end
    end
  end
  flush()
end
