-- uses: shared_runs
-- Takes runs in claim order: level by level (a priority in all asked queues), within it by due time, then by id.
-- Everything is chosen before anything is written: what this claim took already is counted beside what is stored.
-- ARGV: now, until, limit, after how many bytes of payloads, jobs and the like it ends too, worker, how far the steady
-- scale is ahead of now, then the queues (each
-- once). It also ends after what costs as much as a thousand runs that nothing holds back. Answers when the next run is due
-- ('' for none), how many were taken, their ids in MessagePack, each with its row behind it, in several texts, what
-- `load_beside` does, and ids and rows of their jobs.
local now, until_, limit, bytes, worker = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local shift, queues = tonumber(ARGV[6]), {unpack(ARGV, 7)}
local ids, taken = {}, 0
-- Of some runs at a time ids and rows are one text: two values for each would be two for the server to write, and two for
-- the client to read. `texts` are done, `parts` are of the next one.
local texts, parts, TOGETHER, ID_CHARS, ID_HEAD = {}, {}, 100, 36, string.char(217, 36)
local together = 0
local taken_under, taken_of_job = {}, {}
local cost, COST_MAX, COST_OF_KEY = 0, 1000, 8
local char, find_in = string.char, string.find

-- ---- taking

local function end_text()
  texts[#texts + 1] = table.concat(parts, '', 1, 3 * together)
  together = 0
end

local function answer_with(id, row)
  taken = taken + 1
  ids[taken] = id
  local place = 3 * together
  if #id == ID_CHARS then
    parts[place + 1], parts[place + 2], parts[place + 3] = ID_HEAD, id, row
  else
    parts[place + 1], parts[place + 2], parts[place + 3] = pack(id), '', row
  end
  together = together + 1
  if together == TOGETHER then end_text() end
end

-- The claim brings this job along.
local function bring_job(job_id)
  if not taken_of_job[job_id] then
    taken_of_job[job_id] = true
    bytes = bytes - call('HSTRLEN', P .. 'jobs', job_id)
  end
end

-- Chosen: `ports.lease_end` from when it starts. The row is built here, the indexes follow in `flush`.
local function take(id, run)
  local key, job_id, started_at = run[KEY], run[JOB_ID], run[DUE_AT]
  local lasts, limited_to = run[LEASE_MICROS], run[EXECUTION_MICROS]
  if started_at < now then started_at = now end
  local begins = started_at + shift
  if limited_to then run[DEADLINE] = begins + limited_to end
  if limited_to and limited_to < lasts then lasts = limited_to end
  leave_lane(id, run)
  run[STATE], run[TOKEN], run[ATTEMPT], run[WORKER] = RUNNING, run[TOKEN] + 1, run[ATTEMPT] + 1, worker
  run[STARTED_AT], run[LEASE_EXPIRES_AT] = started_at, begins + lasts
  enter_claimed(id, run, run)
  wait_in_job(id, RUNNING, run[JOB_ID], run[FIRE_AT])
  if key then taken_under[key] = (taken_under[key] or 0) + 1 end
  if job_id then bring_job(job_id) end
  local row = write_row(run)
  set_field(RUNS, id, row)
  answer_with(id, row)
  if run[APART] then bytes = bytes - call('HSTRLEN', PAYLOADS, id) end
  if run[ATTEMPT] > 1 then bytes = bytes - call('HSTRLEN', OUTCOMES, id) - call('HSTRLEN', PROGRESS, id) end
  cost = cost + (key and COST_OF_KEY or 1)
  if bytes <= 0 or cost >= COST_MAX then limit = taken end
end

-- Held back, as the indexes do not show: by the time, or by what this claim took.
local function may_be_taken(run)
  if run[START_BY] and run[START_BY] <= now then return false end
  return not (run[SERIAL] and taken_of_job[run[JOB_ID]])
end

-- What follows the due time in the rows of runs that are claimed for this long, and when their lease ends, as text.
local endings, ends = {}, {}
local function ending(lasts, limited_to)
  local kind = limited_to and lasts .. '/' .. limited_to or lasts
  if not ends[kind] then
    local steady = now + shift
    local lease = steady + (limited_to and math.min(lasts, limited_to) or lasts)
    endings[kind] = pack(lease, now, nil, worker, nil, nil, nil, limited_to and steady + limited_to or nil)
    ends[kind] = number(lease)
  end
  return endings[kind], ends[kind]
end

-- Most runs were never claimed, and nothing but their time holds them back. No table is made of such a run, and of its row
-- only the bytes that change are written: state, token and attempt, a byte each, and what follows the nine of the due
-- time. Answers whether it is one of them.
local LONG, DUE_BEGINS, DUE_ENDS = 207, 7, 15
local function take_plain(id, row)
  if row:byte(DUE_BEGINS) ~= LONG then return false end
  local fixed, _, token, attempt, due_at, _, _, start_by, _, finished_at, disposition, prune_at =
    unpack_limit(row, CHANGING, HEADER)
  if attempt ~= 0 or token > 126 or due_at > now or start_by or finished_at or disposition or prune_at then return false end
  local _, queue, _, fire_at, job_id, _, serial, key, _, _, lasts, limited_to, apart = unpack_limit(row, FIXED, fixed)
  if serial or key or apart then return false end
  local tail, lease_ends = ending(lasts, limited_to)
  row = ROW_BEGINS .. char(RUNNING, token + 1, 1) .. sub(row, DUE_BEGINS, DUE_ENDS) .. tail .. sub(row, fixed + 1)
  if add(claimed_key(queue), lease_ends, id) then
    enter_queue(queue)
    add(P .. 'claimed_in', 0, queue)
  end
  if job_id then
    wait_in_job(id, RUNNING, job_id, fire_at)
    bring_job(job_id)
  end
  set_field(RUNS, id, row)
  answer_with(id, row)
  cost = cost + 1
  if bytes <= 0 or cost >= COST_MAX then limit = taken end
  return true
end

-- ---- a level that is one lane and nothing else: what comes first is taken

-- Runs are read and written this many at a time: what is made of more does not stay in the caches of the processor.
local STRETCH = 200
local fields, leases = {}, {}
-- After this number of runs that were not like the one before, each of another job perhaps, no more is learned of them.
local LEARNS = 8
local TO_FIRE_AT, FROM_JOB, LONG_BYTES = 2, 9, 9

local function value_at(row, place)
  local _, value = unpack_limit(row, 1, place)
  return value
end

-- What the row of a run that `take_plain` took has in common with others: the bytes before its due time, those between that
-- and its fire time, and those behind it that a script looks at. Nothing if its fire time is an unusual one.
local function likeness(row)
  local fixed = unpack_limit(row, CHANGING, HEADER)
  local fires = unpack_limit(row, TO_FIRE_AT, fixed)
  if row:byte(fires + 1) ~= LONG then return nil end
  local behind_at = fires + LONG_BYTES
  local stopped, job_id, _, _, _, _, _, lasts, limited_to = unpack_limit(row, FROM_JOB, behind_at)
  local tail, lease_ends = ending(lasts, limited_to)
  local head = ROW_BEGINS .. char(RUNNING, row:byte(HEADER + 2) + 1, 1)
  local before, between, behind = sub(row, 1, DUE_BEGINS), sub(row, DUE_ENDS + 1, fires + 1), sub(row, behind_at + 1, stopped)
  return before, between, behind, behind_at + 1, job_id, head, tail, lease_ends, fixed + 1
end

-- Takes what may be taken of the next runs of a lane. Answers how many it looked at, and how many of those were taken from
-- the first one on without a gap.
--
-- The runs of a lane mostly differ in times and payloads alone: a row of which all other bytes are those of a row that was
-- taken is taken as that one was, without a look at its values.
local function take_stretch(lane, queue, offset, wanted)
  local part = call('ZRANGEBYSCORE', lane, '-inf', until_, 'LIMIT', offset, wanted)
  local rows, written, first, gap = many('HMGET', RUNS, part), 0, 0, false
  local learns, before, between, behind, behind_at, job_id, head, tail, lease_ends, rest = LEARNS, nil
  local after_due, all_due = DUE_ENDS + 1, tonumber(until_) <= now
  for place = 1, #part do
    local id, row, is_plain = part[place], rows[place], true
    if
      before
      and find_in(row, before, 1, true) == 1
      and find_in(row, between, after_due, true) == after_due
      and find_in(row, behind, behind_at, true) == behind_at
      and (all_due or value_at(row, DUE_BEGINS - 1) <= now)
    then
      if job_id then wait_in_job(id, RUNNING, job_id, value_at(row, behind_at - 1 - LONG_BYTES)) end
      row = head .. sub(row, DUE_BEGINS, DUE_ENDS) .. tail .. sub(row, rest)
      written = written + 2
      fields[written - 1], fields[written] = id, row
      leases[written - 1], leases[written] = lease_ends, id
      answer_with(id, row)
      cost, learns = cost + 1, LEARNS
      if cost >= COST_MAX then limit = taken end
    elseif take_plain(id, row) then
      if learns > 0 then
        learns = learns - 1
        before, between, behind, behind_at, job_id, head, tail, lease_ends, rest = likeness(row)
      else
        before = nil
      end
    else
      is_plain, gap = false, true
      local run = read_run(row)
      if may_be_taken(run) then take(id, run) end
    end
    if is_plain and gap then
      remove(lane, id)
    elseif is_plain then
      first = first + 1
    end
    if taken == limit then break end
  end
  if written > 0 then
    call('HSET', RUNS, unpack(fields, 1, written))
    call('ZADD', claimed_key(queue), unpack(leases, 1, written))
  end
  -- By their ranks no place has to be looked for, and nothing but the number of them is written to the log.
  if first > 0 then call('ZREMRANGEBYRANK', lane, offset, offset + first - 1) end
  return #part, first
end

local function take_from_lane(lane, queue)
  local offset, wanted, seen, gone = 0, nil, nil, nil
  repeat
    wanted = math.min(limit - taken, STRETCH)
    seen, gone = take_stretch(lane, queue, offset, wanted)
    offset = offset + seen - gone
  until taken == limit or seen < wanted
end

-- ---- any other level: its lanes, its heads, and the gates behind heads that were taken, merged in claim order

-- A walk over the due runs of a sorted set, in claim order. It reads ahead, the further the longer it is.
local function walk_from(key, offset, gate)
  return {key = key, offset = offset, reads = 1, place = 0, found = {}, rows = {}, gate = gate}
end

-- Go to the next run. Answers whether there is one.
local function advance(walk)
  walk.place = walk.place + 1
  if walk.place > #walk.found / 2 then
    if walk.ended then return false end
    walk.found = call('ZRANGEBYSCORE', walk.key, '-inf', until_, 'WITHSCORES', 'LIMIT', walk.offset, walk.reads)
    local count = #walk.found / 2
    local part = {}
    for place = 1, count do part[place] = walk.found[2 * place - 1] end
    walk.rows = many('HMGET', RUNS, part)
    walk.ended = count < walk.reads
    walk.offset, walk.reads, walk.place = walk.offset + count, math.min(2 * walk.reads, limit), 1
    if count == 0 then return false end
  end
  walk.id, walk.due_at = walk.found[2 * walk.place - 1], tonumber(walk.found[2 * walk.place])
  return true
end

local function comes_before(one, other)
  if one.due_at ~= other.due_at then return one.due_at < other.due_at end
  return one.id < other.id
end

-- A heap of walks, by the run that each has come to.
local function sink(heap)
  local place, count = 1, #heap
  while true do
    local least, left = place, 2 * place
    if left <= count and comes_before(heap[left], heap[least]) then least = left end
    if left < count and comes_before(heap[left + 1], heap[least]) then least = left + 1 end
    if least == place then return end
    heap[place], heap[least] = heap[least], heap[place]
    place = least
  end
end

local function push(heap, walk)
  if not advance(walk) then return end
  local place = #heap + 1
  heap[place] = walk
  while place > 1 do
    local above = math.floor(place / 2)
    if not comes_before(walk, heap[above]) then return end
    heap[place], heap[above] = heap[above], walk
    place = above
  end
end

-- The first walk goes on, or is over.
local function go_on(heap)
  if not advance(heap[1]) then
    heap[1] = heap[#heap]
    heap[#heap] = nil
  end
  sink(heap)
end

local function is_free(key, max) return call('ZCARD', P .. 'held:' .. key) + (taken_under[key] or 0) < max end

-- The runs behind the head of a gate.
local function gate_behind(run)
  return walk_from(gate_key(run[KEY], pack(run[PRIORITY], run[QUEUE], run[KEY_MAX])), 1, true)
end

local function take_from_level(level)
  local heap = {}
  for _, lane in ipairs(level.lanes) do push(heap, walk_from(lane, 0)) end
  for _, heads in ipairs(level.heads) do push(heap, walk_from(heads, 0)) end
  while heap[1] and taken < limit do
    local walk = heap[1]
    local id, row, of_gate = walk.id, walk.rows[walk.place], walk.gate
    if take_plain(id, row) then
      remove(walk.key, id)
      go_on(heap)
    else
      local run = read_run(row)
      local key = run[KEY]
      local free = not key or is_free(key, run[KEY_MAX])
      if free and may_be_taken(run) then take(id, run) end
      -- Of a gate whose key is full nothing more will be taken.
      if of_gate and not free then walk.ended, walk.found = true, {} end
      go_on(heap)
      if key and free and not of_gate then push(heap, gate_behind(run)) end
    end
  end
end

-- ---- levels

-- The levels of these queues, the highest first. One that is empty for good is forgotten.
local function levels()
  local found, by_priority = {}, {}
  local function enter(priority, queue, lane, gated)
    local level, heads = by_priority[priority], level_key('heads', priority, queue)
    if not level then
      level = {priority = priority, queue = queue, lanes = {}, heads = {}, gated = {}}
      by_priority[priority] = level
      found[#found + 1] = level
    end
    level.lanes[#level.lanes + 1] = lane
    level.gated[#level.gated + 1] = gated
    if call('EXISTS', heads) == 1 then level.heads[#level.heads + 1] = heads end
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
  local function look_into(key)
    local due_at = call('ZRANGEBYSCORE', key, '(' .. until_, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    if due_at then earliest = math.min(earliest, tonumber(due_at)) end
  end
  for _, level in ipairs(found) do
    for _, lane in ipairs(level.lanes) do look_into(lane) end
    for _, gated in ipairs(level.gated) do look_into(gated) end
  end
  return earliest < NEVER and number(earliest) or ''
end

local found = levels()
for _, level in ipairs(found) do
  if taken < limit then
    if level.heads[1] or level.lanes[2] then take_from_level(level) else take_from_lane(level.lanes[1], level.queue) end
  end
end
local next_at = next_due_at(found)
flush()
if together > 0 then end_text() end
local job_ids = {}
for job_id in pairs(taken_of_job) do job_ids[#job_ids + 1] = job_id end
return {next_at, taken, texts, load_beside(ids), job_ids, many('HMGET', P .. 'jobs', job_ids)}
