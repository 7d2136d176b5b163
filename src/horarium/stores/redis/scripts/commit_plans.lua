-- uses: shared_runs, shared_jobs
-- ARGV: now; the plans, in MessagePack: {job id, version read, place of the new row, changes, withdrawals {id, token},
-- runs}; then whatever they give places of. Answers 1 for each that was carried out.
local now, plans = tonumber(ARGV[1]), cmsgpack.unpack(ARGV[2])
local answers, wanted = {}, {}

for _, plan in ipairs(plans) do
  for _, change in ipairs(plan[4]) do wanted[#wanted + 1] = change[ID_CHANGED] end
  for _, withdrawal in ipairs(plan[5]) do wanted[#wanted + 1] = withdrawal[1] end
  for _, new in ipairs(plan[6]) do wanted[#wanted + 1] = new[1] end
end
fetch(wanted)

local function withdraw(id, token)
  local run = find(id)
  if run and run.m[STATE] == PENDING and run.m[TOKEN] == token then forget_run(id, run) end
end

for place, plan in ipairs(plans) do
  local row = call('HGET', JOBS, plan[1])
  local job = row and read_job(row)
  if job and job.version == plan[2] then
    put_job(plan[1], ARGV[plan[3]], job)
    for _, change in ipairs(plan[4]) do apply(change, now) end
    for _, withdrawal in ipairs(plan[5]) do withdraw(withdrawal[1], withdrawal[2]) end
    for _, new in ipairs(plan[6]) do add_run(new) end
    answers[place] = 1
  else
    answers[place] = 0
  end
end
finish()
return answers
