-- uses: shared_runs
-- ARGV: now, limit, how far the steady scale is ahead of now. Answers ids, what `load_runs` does, and the next lease or start limit that ends.
local now, limit, shift = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local overdue, ahead = {}, NEVER

local function look_into(key, ahead_by)
  local until_ = number(now + ahead_by)
  local entries = call('ZRANGEBYSCORE', key, '-inf', until_, 'WITHSCORES', 'LIMIT', 0, limit)
  for place = 1, #entries, 2 do
    overdue[#overdue + 1] = {id = entries[place], at = tonumber(entries[place + 1]) - ahead_by}
  end
  local later = call('ZRANGEBYSCORE', key, '(' .. until_, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if later then ahead = math.min(ahead, tonumber(later) - ahead_by) end
end

look_into(P .. 'start_by', 0)
for _, queue in ipairs(call('ZRANGE', P .. 'claimed_in', 0, -1)) do look_into(P .. 'claimed:' .. queue, shift) end
table.sort(overdue, function(one, other)
  if one.at ~= other.at then return one.at < other.at end
  return one.id < other.id
end)
local ids = {}
for place = 1, math.min(limit, #overdue) do ids[place] = overdue[place].id end
return {ids, load_runs(ids), ahead < NEVER and number(ahead)}
