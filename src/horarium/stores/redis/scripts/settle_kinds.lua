-- uses: shared_runs
-- Settles runs that end alike, kind by kind. ARGV: now; the ids, each once; the kinds, both in MessagePack; then what they
-- give places of. A kind is: how many of the ids it has, one after the other and ascending; token, state and whether the
-- lease must be held; the places in ARGV of outcome and progress; then all that may change, but for the due time, which
-- stays as the row has it. Answers the places, from 0, of those that were not written.
local now, ids, batch = tonumber(ARGV[1]), {cmsgpack.unpack(ARGV[2])}, ARGV[3]
local refused, find_in = {}, string.find
-- Where a row has its state, token and attempt if each is one byte, and then the nine of its due time.
local FIRST, DUE_BEGINS, DUE_ENDS, LONG, LONG_BYTES = 4, 7, 15, 207, 9
local BEFORE_DUE, AFTER_DUE, TO_KEY, TO_FIRE_AT, FROM_JOB = 3, 8, 7, 2, 4
-- Runs are read and written this many at a time: what is made of more does not stay in the caches of the processor.
local STRETCH = 200
local fields, members, prunable = {}, {}, {}
-- After this number of runs that were not like the one before, each of another job perhaps, no more is learned of them.
local LEARNS = 8

-- The bytes of the due time, if they are where they are in nearly every row.
local function due_of(row) return row:byte(DUE_BEGINS) == LONG and sub(row, DUE_BEGINS, DUE_ENDS) end

-- What the row of a run without a key has in common with others: the bytes before its due time, those between that and its
-- fire time, and those behind it up to where a key would be. Nothing if its fire time is an unusual one.
local function likeness(row, fixed)
  local fires, queue = unpack_limit(row, TO_FIRE_AT, fixed)
  if row:byte(fires + 1) ~= LONG then return nil end
  local behind_at = fires + LONG_BYTES
  local stopped, job_id, _, _, key = unpack_limit(row, FROM_JOB, behind_at)
  if key then return nil end
  return sub(row, 1, DUE_BEGINS), sub(row, DUE_ENDS + 1, fires + 1), sub(row, behind_at + 1, stopped), behind_at + 1, queue, job_id
end

local function settle_kind(at, first)
  local begins, count, token, state, held, outcome, progress = unpack_limit(batch, 6, at)
  local middle, after, new_token, attempt = unpack_limit(batch, BEFORE_DUE, begins)
  local stopped, lease, started_at, start_by, worker, finished_at, disposition, prune_at, deadline =
    unpack_limit(batch, AFTER_DUE, middle)
  local m = {0, after, new_token, attempt, 0, lease, started_at, start_by, worker, finished_at, disposition, prune_at,
    deadline}
  local head, tail = ROW_BEGINS .. sub(batch, begins + 1, middle), sub(batch, middle + 1, stopped)
  local prunable_from = prune_at and number(prune_at)
  local ends, head_before, tail_before, fixed = state ~= PENDING and after >= COMPLETED, nil, nil, nil
  local before, between, behind, behind_at, queue, job_id
  local beside, learns = outcomes_exist or progress_exists or outcome or progress, LEARNS

  -- Of runs that were claimed together all bytes are the same up to what is fixed, but for those of the due time: what was
  -- found of the first holds for each.
  local function is_like_first(row)
    return sub(row, FIRST, DUE_BEGINS - 1) == head_before and sub(row, DUE_ENDS + 1, fixed) == tail_before
  end

  -- Answers whether the run was written, and whether its row is one from which others can be known.
  local function settle(id, row)
    local due = due_of(row)
    if head_before and due and is_like_first(row) then
      local _, its_queue, _, _, its_job, _, _, key = unpack_limit(row, TO_KEY, fixed)
      if not key then
        put(id, head .. due .. tail .. sub(row, fixed + 1))
        remove(claimed_key(its_queue), id)
        leave_job(id, its_job)
        index_ended(id, after, prunable_from)
        count_end(its_job, id, m, outcome, 1)
        return true, true
      end
    end
    local run = read_run(row)
    if run[TOKEN] ~= token or run[STATE] ~= state or not is_held(run, held, now) then return false end
    m[DUE_AT] = run[DUE_AT]
    put(id, row_with(run, sub(head, HEADER + 1) .. pack(run[DUE_AT]) .. tail))
    reindex(id, run, m)
    if state < COMPLETED and after >= COMPLETED then count_end(run[JOB_ID], id, m, outcome, 1) end
    if ends and due and token < 128 and run[ATTEMPT] < 128 then
      fixed = run[FIXED_BEGINS]
      head_before, tail_before = sub(row, FIRST, DUE_BEGINS - 1), sub(row, DUE_ENDS + 1, fixed)
      return true, true
    end
    return true, false
  end

  -- They have one lease, so they lie in the order of their ids. If nothing else lies between them they go by their ranks: no
  -- place has to be looked for.
  local function leave_lease(count)
    local claimed = claimed_key(queue)
    local lowest, highest = call('ZRANK', claimed, members[1]), call('ZRANK', claimed, members[count])
    if lowest and highest and highest - lowest == count - 1 then
      call('ZREMRANGEBYRANK', claimed, lowest, highest)
    else
      call('ZREM', claimed, unpack(members, 1, count))
    end
  end

  -- Runs that were found like another: their rows are in `fields`.
  local function write_alike(count)
    if count == 0 then return end
    call('HSET', RUNS, unpack(fields, 1, 2 * count))
    leave_lease(count)
    if job_id then
      call('ZREM', P .. 'waiting:' .. job_id, unpack(members, 1, count))
      count_end(job_id, members[count], m, outcome, count)
      jobs_touched[job_id] = true
    end
    if prunable_from then call('ZADD', PRUNABLE, unpack(prunable, 1, 2 * count)) end
  end

  -- These of the ids. Runs that were claimed together mostly differ in times and payloads alone: a row of which all other bytes
  -- are those of a row that was written is written as that one was, without a look at its values.
  local function settle_stretch(from, to)
    local rows, alike = call('HMGET', RUNS, unpack(ids, from, to)), 0
    for place = from, to do
      local id, row = ids[place], rows[place - from + 1]
      if not row then
        refused[#refused + 1] = place - 1
      elseif
        before
        and find_in(row, before, 1, true) == 1
        and find_in(row, between, DUE_ENDS + 1, true) == DUE_ENDS + 1
        and find_in(row, behind, behind_at, true) == behind_at
      then
        alike, learns = alike + 1, LEARNS
        members[alike] = id
        local pair = 2 * alike
        fields[pair - 1], fields[pair] = id, head .. sub(row, DUE_BEGINS, DUE_ENDS) .. tail .. sub(row, fixed + 1)
        prunable[pair - 1], prunable[pair] = prunable_from, id
        if after > COMPLETED then add(P .. 'ids:' .. after, 0, id) end
        if beside then write_end_beside(id, outcome, progress) end
      else
        local written, is_usual = settle(id, row)
        if written then write_end_beside(id, outcome, progress) else refused[#refused + 1] = place - 1 end
        if is_usual then
          learns = learns - 1
          write_alike(alike)
          alike, before = 0, nil
        end
        if is_usual and learns > 0 then
          before, between, behind, behind_at, queue, job_id = likeness(row, fixed)
        end
      end
    end
    write_alike(alike)
  end

  local last = first + count - 1
  for from = first, last, STRETCH do settle_stretch(from, math.min(from + STRETCH - 1, last)) end
  return stopped, last + 1
end

local at, first = 0, 1
while first <= #ids do at, first = settle_kind(at, first) end
flush()
count_ends()
return refused
