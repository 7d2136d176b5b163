-- uses: shared_runs, shared_records
-- ARGV: the ids; for each the token under which the run must be pending, the run that takes its place (see `add_run`) and
-- the place of what comes along, both in MessagePack; then the arguments at those places. Answers 1 for each replaced.
local ids = {cmsgpack.unpack(ARGV[1])}
local answers, at, token, along = {}, 0, nil, nil
fetch(ids)
for place = 1, #ids do
  at, token = unpack_limit(ARGV[2], 1, at)
  local run = find(ids[place])
  answers[place] = 0
  if run and run[STATE] == PENDING and run[TOKEN] == token then
    delete_run(ids[place], run)
    at = add_run(ARGV[2], at)
    at, along = unpack_limit(ARGV[2], 1, at)
    bring_along(along)
    answers[place] = 1
  else
    at = unpack_limit(ARGV[2], 6, at)
  end
end
flush()
return answers
