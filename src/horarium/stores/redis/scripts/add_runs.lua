-- uses: shared_runs
-- ARGV: the ids; the runs (see `add_run`), both in MessagePack; then whatever they give places of. Answers 1 for each
-- that was inserted.
local ids = {cmsgpack.unpack(ARGV[1])}
local answers, at, added = {}, 0, nil
fetch(ids)
for place = 1, #ids do
  at, added = add_run(ARGV[2], at)
  answers[place] = added and 1 or 0
end
flush()
return answers
