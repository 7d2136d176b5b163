-- uses: shared_runs, shared_jobs, shared_present, shared_listing
-- ARGV: up to how many disabled jobs are all looked at; labels. Answers the names of all, in no order; nothing if they are
-- more, or more than have one of the labels.
local number = call('SCARD', DISABLED)
local sets, sizes = sets_of({unpack(ARGV, 2)})
if number > tonumber(ARGV[1]) or sets[1] and sizes[sets[1]] < number then return false end
local names = {}
for place, row in ipairs(many('HMGET', JOBS, call('SMEMBERS', DISABLED))) do
  if row then
    local _, _, name = unpack_limit(row, 2, JOB_HEADER)
    names[#names + 1] = name
  end
end
return names
