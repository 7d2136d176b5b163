-- uses: shared_runs
-- Settles runs that end alike, kind by kind. ARGV: now; the ids; the kinds, both in MessagePack; then what they give places
-- of. A kind is: how many of the ids it has, one after the other; token, state and whether the lease must be held; the places
-- in ARGV of outcome and progress; then all that may change, but for the due time, which stays as the row has it. Answers 1
-- for each that was written.
local now, ids, batch = tonumber(ARGV[1]), {cmsgpack.unpack(ARGV[2])}, ARGV[3]
local rows, answers, place = many('HMGET', RUNS, ids), {}, 0
-- Where a row has its state, token and attempt if each is one byte, and then the nine of its due time.
local FIRST, DUE_BEGINS, DUE_ENDS, LONG = 4, 7, 15, 207
local BEFORE_DUE, AFTER_DUE, TO_KEY = 3, 7, 7

-- The bytes of the due time, if they are where they are in nearly every row.
local function due_of(row) return row:byte(DUE_BEGINS) == LONG and sub(row, DUE_BEGINS, DUE_ENDS) end

local function settle_kind(at)
  local begins, count, token, state, held, outcome, progress = unpack_limit(batch, 6, at)
  local middle, after, new_token, attempt = unpack_limit(batch, BEFORE_DUE, begins)
  local stopped, lease, started_at, start_by, worker, finished_at, disposition, prune_at =
    unpack_limit(batch, AFTER_DUE, middle)
  local m = {0, after, new_token, attempt, 0, lease, started_at, start_by, worker, finished_at, disposition, prune_at}
  local head, tail = ROW_BEGINS .. sub(batch, begins + 1, middle), sub(batch, middle + 1, stopped)
  local prunable_from = prune_at and number(prune_at)
  local ends, head_before, tail_before, fixed = state ~= PENDING and after >= COMPLETED, nil, nil, nil

  -- Of runs that were claimed together all bytes are the same up to what is fixed, but for those of the due time: what was
  -- found of the first holds for each.
  local function is_like_first(row)
    return sub(row, FIRST, DUE_BEGINS - 1) == head_before and sub(row, DUE_ENDS + 1, fixed) == tail_before
  end

  local function settle(id, row)
    local due = due_of(row)
    if head_before and due and is_like_first(row) then
      local _, queue, _, _, job_id, _, _, key = unpack_limit(row, TO_KEY, fixed)
      if not key then
        put(id, head .. due .. tail .. sub(row, fixed + 1))
        remove(claimed_key(queue), id)
        leave_job(id, job_id)
        index_ended(id, after, prunable_from)
        return true
      end
    end
    local run = read_run(row)
    if run[TOKEN] ~= token or run[STATE] ~= state or not is_held(run, held, now) then return false end
    m[DUE_AT] = run[DUE_AT]
    put(id, row_with(run, sub(head, HEADER + 1) .. pack(run[DUE_AT]) .. tail))
    reindex(id, run, m)
    if ends and due and token < 128 and run[ATTEMPT] < 128 then
      fixed = run[FIXED_BEGINS]
      head_before, tail_before = sub(row, FIRST, DUE_BEGINS - 1), sub(row, DUE_ENDS + 1, fixed)
    end
    return true
  end

  for _ = 1, count do
    place = place + 1
    local id, row = ids[place], rows[place]
    if touched[id] then
      flush()
      row = call('HGET', RUNS, id)
    end
    local written = row and settle(id, row)
    if written then write_end_beside(id, outcome, progress) end
    answers[place] = written and 1 or 0
  end
  return stopped
end

local at = 0
while place < #ids do at = settle_kind(at) end
flush()
return answers
