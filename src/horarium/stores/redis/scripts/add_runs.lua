-- uses: shared_runs
-- ARGV: the runs, in MessagePack (see `add_run`), then whatever they give places of. Answers 1 for each inserted.
local runs = cmsgpack.unpack(ARGV[1])
local answers, ids = {}, {}
for place, new in ipairs(runs) do ids[place] = new[1] end
fetch(ids)
for place, new in ipairs(runs) do answers[place] = add_run(new) and 1 or 0 end
finish()
return answers
