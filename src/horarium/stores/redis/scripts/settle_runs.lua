-- uses: shared_runs
-- ARGV: now; the ids; the changes (see `apply_change`), both in MessagePack; then whatever they give places of. Answers
-- 1 for each that was written.
local now, ids = tonumber(ARGV[1]), {cmsgpack.unpack(ARGV[2])}
local answers, at, written = {}, 0, nil
fetch(ids)
for place = 1, #ids do
  at, written = apply_change(ARGV[3], at, now)
  answers[place] = written and 1 or 0
end
flush()
return answers
