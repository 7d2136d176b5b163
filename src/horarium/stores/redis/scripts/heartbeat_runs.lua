-- uses: shared_runs
-- ARGV: now; the beats, in MessagePack: {id, token, place of the progress in ARGV or nil}; progress. Answers for each
-- the end of its lease and whether a cancel was asked, or nothing.
local now, beats = tonumber(ARGV[1]), cmsgpack.unpack(ARGV[2])
local answers, ids = {}, {}
for place, beat in ipairs(beats) do ids[place] = beat[1] end
fetch(ids)

-- `ports.lease_end`.
local function lease_end(m, f)
  local ends = now + f[LEASE_MICROS]
  if not f[EXECUTION_MICROS] or not m[STARTED_AT] then return ends end
  return math.min(ends, m[STARTED_AT] + f[EXECUTION_MICROS])
end

local function pulse(beat)
  local id = beat[1]
  local run = find(id)
  if not run then return false end
  local m = run.m
  local state, lease = m[STATE], m[LEASE_EXPIRES_AT]
  if (state ~= RUNNING and state ~= CANCELLING) or m[TOKEN] ~= beat[2] or not lease or lease <= now then return false end
  if state == RUNNING then
    m[LEASE_EXPIRES_AT] = lease_end(m, run.f)
    set_field(RUNS, id, write_row(run.row, m))
    add(P .. 'claimed:' .. run.f[QUEUE], m[LEASE_EXPIRES_AT], id)
  end
  if beat[3] then set_field(PROGRESS, id, ARGV[beat[3]]) end
  return {number(m[LEASE_EXPIRES_AT]), state == CANCELLING and 1 or 0}
end

for place, beat in ipairs(beats) do answers[place] = pulse(beat) end
flush()
return answers
