-- Membership of many at once; comes after `shared_runs`.

-- Of each of these members its score in a sorted set, or false: one command, or on old servers one for each.
local function present(key, members)
  local first = members[1] and redis.pcall('ZMSCORE', key, members[1])
  if first and not first.err then return many('ZMSCORE', key, members) end
  local answers = {}
  for place, member in ipairs(members) do answers[place] = call('ZSCORE', key, member) end
  return answers
end
