-- uses: shared_reading
-- ARGV: from which cursor on, behind which id of those with this very cursor ('': with all of them), how many. Answers
-- rows of jobs (nothing in place of one that is gone), and the cursor and the id at which a full page ends, or one that is
-- as much as a call brings.
local AHEAD, from, behind, limit = P .. 'jobs_ahead', ARGV[1], ARGV[2], tonumber(ARGV[3])
local first = call('ZCOUNT', AHEAD, '-inf', '(' .. from)
if behind ~= '' then
  local beyond = first + call('ZCOUNT', AHEAD, from, from)
  while first < beyond do
    local middle = math.floor((first + beyond) / 2)
    if call('ZRANGE', AHEAD, middle, middle)[1] <= behind then first = middle + 1 else beyond = middle end
  end
end
local entries, ids = call('ZRANGE', AHEAD, first, first + limit - 1, 'WITHSCORES'), {}
for place = 1, #entries, 2 do ids[#ids + 1] = entries[place] end
local rows, brought = bring_rows(P .. 'jobs', ids)
local more = brought > 0 and (brought < #ids or #ids == limit)
return {rows, more and entries[2 * brought], more and ids[brought]}
