-- Membership of many at once; comes after `shared_runs`.

-- Of each of these members whether it is in a sorted set, or in a set: one command, or on old servers one for each.
local function present(many_at_once, one, key, members)
  local first = members[1] and redis.pcall(many_at_once, key, members[1])
  if first and not first.err then return many(many_at_once, key, members) end
  local answers = {}
  for place, member in ipairs(members) do answers[place] = call(one, key, member) end
  return answers
end
