-- Changes of records made; comes after `shared_runs` and `shared_records`. A change is: name, version expected, the places
-- in ARGV of its row (nil: it is removed) and of what comes along.
local function put_records(count, batch)
  local answers, at = {}, 0

  local function put_record(name, expected, row, along)
    local stored = call('HGET', RECORDS, name)
    if (stored and read_record(stored) or 0) ~= expected then return 0 end
    if stored then delete_record(name, stored) end
    if row then add_record(name, ARGV[row]) end
    bring_along(along)
    return 1
  end

  for place = 1, count do
    local name, expected, row, along
    at, name, expected, row, along = unpack_limit(batch, 4, at)
    answers[place] = put_record(name, expected, row, along)
  end
  return answers
end
