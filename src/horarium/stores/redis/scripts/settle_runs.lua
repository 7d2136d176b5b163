-- uses: shared_runs, shared_records
-- ARGV: now; the ids; the changes (see `apply_change`), both in MessagePack; then what they give places of. Answers
-- 1 for each that was written.
local now, ids = tonumber(ARGV[1]), {cmsgpack.unpack(ARGV[2])}
local answers, at, written, along = {}, 0, nil, nil
fetch(ids)
for place = 1, #ids do
  at, written, along = apply_change(ARGV[3], at, now)
  bring_along(along)
  answers[place] = written and 1 or 0
end
flush()
count_ends()
return answers
