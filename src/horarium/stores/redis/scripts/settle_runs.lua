-- uses: shared_runs
-- ARGV: now; the changes, in MessagePack (see `apply`), then whatever they give places of. Answers 1 for each written.
local now, changes = tonumber(ARGV[1]), cmsgpack.unpack(ARGV[2])
local answers, ids = {}, {}
for place, change in ipairs(changes) do ids[place] = change[ID_CHANGED] end
fetch(ids)
for place, change in ipairs(changes) do answers[place] = apply(change, now) and 1 or 0 end
finish()
return answers
