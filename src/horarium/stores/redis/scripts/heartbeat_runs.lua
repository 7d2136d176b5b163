-- uses: shared_runs
-- ARGV: the steady present; the ids; the beats, in MessagePack: token, place of the progress in ARGV or nil; progress. Answers for
-- each the end of its lease and whether a cancel was asked, or nothing.
local steady, ids = tonumber(ARGV[1]), {cmsgpack.unpack(ARGV[2])}
local answers, at = {}, 0
fetch(ids)

-- `ports.lease_end`.
local function lease_end(run)
  local ends = steady + run[LEASE_MICROS]
  return run[DEADLINE] and math.min(ends, run[DEADLINE]) or ends
end

local function pulse(id, token, progress)
  local run = find(id)
  if not run then return false end
  local state = run[STATE]
  if (state ~= RUNNING and state ~= CANCELLING) or run[TOKEN] ~= token then return false end
  local lease = run[LEASE_EXPIRES_AT]
  if state == RUNNING then lease = lease_end(run) end
  if not lease or lease <= steady then return false end
  if state == RUNNING then
    run[LEASE_EXPIRES_AT] = lease
    put(id, write_row(run))
    add(P .. 'claimed:' .. run[QUEUE], run[LEASE_EXPIRES_AT], id)
  end
  write_beside(id, nil, progress)
  return {number(run[LEASE_EXPIRES_AT]), state == CANCELLING and 1 or 0}
end

for place, id in ipairs(ids) do
  local token, progress
  at, token, progress = unpack_limit(ARGV[3], 2, at)
  answers[place] = pulse(id, token, progress)
end
flush()
return answers
