-- uses: shared_runs, shared_records
-- ARGV: the ids; the runs (see `add_run`), each followed by the place of what comes along, both in MessagePack; then
-- the arguments at those places. Answers 1 for each that was inserted.
local ids = {cmsgpack.unpack(ARGV[1])}
local answers, at, added, along = {}, 0, nil, nil
fetch(ids)
for place = 1, #ids do
  at, added = add_run(ARGV[2], at)
  at, along = unpack_limit(ARGV[2], 1, at)
  if added then bring_along(along) end
  answers[place] = added and 1 or 0
end
flush()
return answers
